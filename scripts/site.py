"""Build the documentation site from docs/: ``python scripts/site.py ZENSICAL [FOLDER]`` writes build/site/html.

With FOLDER it writes FOLDER/site/html.

The pages are those of docs/, copied and changed only where a site differs from a folder of files: links to files outside
docs/ point to the repository, pictures in HTML are one folder further up, the changelog is a page, and every public name
has its signature and docstring. The navigation is made from the index pages: their headings and links, in their order.
A page that no index names comes last.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import amends

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.addresses import DOCS_URL, REPOSITORY_URL  # noqa: E402 (found by the line above)

BUILD = ROOT / "build" / "site"
PAGES = BUILD / "docs"
SECTIONS: Final = {
    "Tutorial": "tutorial",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
}
MODULES: Final = {
    "amends": "What most programs need: tools, runs and the runtime.",
    "amends.errors": "Every error, with the facts that it carries.",
    "amends.notify": "Tell people that a call waits for them.",
    "amends.links": "Links by which people decide.",
    "amends.visible": "Mark characters that could deceive the eye.",
    "amends.secrets": "Keys that encrypt the payloads of a ledger.",
    "amends.signing": "Keys that sign checkpoints.",
    "amends.telemetry": "Spans and metrics.",
    "amends.idempotency": "The key of the running call, for HTTP clients and MCP.",
    "amends.worker": "The loop that recovers runs.",
    "amends.llm": "An agent loop, and recorded model calls.",
    "amends.client": "The client of the service.",
    "amends.serve": "The service over HTTP.",
    "amends.testing": "Check tools, stores and adapters.",
}
MERMAID: Final = "mermaid@11.17.2"
LINK: Final = re.compile(r"(?P<head>\]\()(?P<target>(?!\w+:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
PICTURE: Final = re.compile(r'\b(src|srcset)="(?!\w+:)([^"]+)"')


# ---- pages --------------------------------------------------------------------------------


def staged(page: Path, text: str, home: Path) -> str:
    """Return the page as the site shows it. ``home``: the folder that its links start from."""
    parts = FENCED.split(text)
    return "".join(part if place % 2 else _moved(page, part, home) for place, part in enumerate(parts))


def _moved(page: Path, text: str, home: Path) -> str:
    def link(found: re.Match[str]) -> str:
        target, anchor = (home / found["target"]).resolve(), found["anchor"] or ""
        if target == ROOT / "CHANGELOG.md":
            return f"{found['head']}{_up(page)}changelog.md{anchor})"
        if target.is_relative_to(ROOT / "docs") and target.is_file():
            return f"{found['head']}{_up(page)}{target.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        kind = "tree" if target.is_dir() else "blob"
        return f"{found['head']}{REPOSITORY_URL}/{kind}/main/{target.relative_to(ROOT).as_posix()}{anchor})"

    def picture(found: re.Match[str]) -> str:
        target = (home / found[2]).resolve().relative_to(ROOT / "docs").as_posix()
        is_index = page.name == "index.md"
        return f'{found[1]}="{_up(page)}{"" if is_index else "../"}{target}"'

    return PICTURE.sub(picture, LINK.sub(link, text))


def _up(page: Path) -> str:
    """Return the way from the folder of a page to the top."""
    return "../" * (len(page.relative_to(PAGES).parts) - 1)


def stage() -> None:
    """Copy every page and picture, the changelog, and the reference made from docstrings."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for page in sorted(PAGES.rglob("*.md")):
        home = (ROOT / "docs" / page.relative_to(PAGES)).parent
        page.write_text(staged(page, page.read_text(encoding="utf-8"), home), encoding="utf-8")
    draw(page for page in PAGES.rglob("*.md") if "```mermaid" in page.read_text(encoding="utf-8"))
    log = PAGES / "changelog.md"
    log.write_text(staged(log, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), ROOT), encoding="utf-8")
    folder = PAGES / "reference" / "python"
    folder.mkdir()
    rows = "".join(f"| [`{name}`]({_file(name)}) | {said} |\n" for name, said in MODULES.items())
    head = "# Python\n\nEvery public name with its signature and its docstring, read from the code.\n\n"
    (folder / "index.md").write_text(f"{head}| module | what it is for |\n| --- | --- |\n{rows}", encoding="utf-8")
    for name, said in MODULES.items():
        (folder / _file(name)).write_text("".join(reference(name, said)), encoding="utf-8")


def draw(pages: Iterator[Path]) -> None:
    """Let pages with a diagram load the program that draws it from the site itself. Without npm they show its text."""
    npm = shutil.which("npm")
    if npm is not None:
        subprocess.run([npm, "pack", MERMAID, "--silent"], cwd=BUILD, stdout=subprocess.DEVNULL, check=False)
    packed = next(BUILD.glob("mermaid-*.tgz"), None)
    if packed is None:
        print(f"site: npm did not bring {MERMAID}, so the diagrams of states are shown as text")
        return
    with tarfile.open(packed) as files:
        program = files.extractfile("package/dist/mermaid.min.js")
        assert program is not None, "the package has its program"
        (PAGES / "assets" / "mermaid.min.js").write_bytes(program.read())
    packed.unlink()
    for page in pages:
        script = f'<script src="{_up(page)}../assets/mermaid.min.js"></script>'
        page.write_text(f"{page.read_text(encoding='utf-8')}\n{script}\n", encoding="utf-8")


def _file(module: str) -> str:
    return f"{module.replace('.', '-')}.md"


# ---- reference ------------------------------------------------------------------------------


def reference(module: str, about: str) -> Iterator[str]:
    """Yield the page of one module: its public names, in their order."""
    home = importlib.import_module(module)
    yield f"# `{module}`\n\n{about}\n\n"
    for name in public_names(home):
        yield from _thing(f"{module}.{name}", name, getattr(home, name), level=2)


def public_names(home: Any) -> list[str]:
    """Return what a module exports, or without a list of that, what it defines."""
    if hasattr(home, "__all__"):
        return [name for name in home.__all__ if not inspect.ismodule(getattr(home, name))]
    tree = ast.parse(inspect.getsource(home))
    found = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in found if not name.startswith("_")]


def _thing(path: str, name: str, thing: Any, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`\n\n"
    signature = _signature(thing)
    if signature is not None:
        shown = f"{'class ' if inspect.isclass(thing) else ''}{path if level == 2 else name}{signature}"
        yield f"```python\n{shown}\n```\n\n"
    said = docstring(thing) or ("" if callable(thing) else f"A constant of the type `{type(thing).__name__}`.")
    if said:
        yield f"{said}\n\n"
    if inspect.isclass(thing):
        for member in members(thing):
            yield from _thing(f"{path}.{member}", f"{name}.{member}", getattr(thing, member), level=level + 1)


def members(cls: type[Any]) -> list[str]:
    """Return the public methods and properties of a class, its own and those that it inherits from amends."""
    owners = [one for one in cls.__mro__ if one.__module__.partition(".")[0] == "amends"]
    found = dict.fromkeys(name for one in owners for name in vars(one) if not name.startswith("_"))
    return [name for name in found if name not in ("is_async", "direct") and _is_shown(getattr(cls, name, None))]


def _is_shown(value: Any) -> bool:
    return isinstance(value, property) or (callable(value) and not inspect.isclass(value))


def docstring(thing: Any) -> str:
    """Return what the code says of a thing, as Markdown: never what Python itself says of a text or a number."""
    if not (callable(thing) or isinstance(thing, property)):
        return ""
    said = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and said.startswith(f"{thing.__name__}("):
        return ""  # written by dataclasses
    said = re.sub(r":(?:\w+:)?`([^`]+)`", r"`\1`", said).replace("``", "`")
    return re.sub(r"<(?=\w)", "&lt;", said)


def _signature(thing: Any) -> str | None:
    if not callable(thing):
        return None
    try:
        said = str(_bare(inspect.signature(thing)))
    except (TypeError, ValueError):
        return None
    said = re.sub(r"<(?:object|function|class) [^>]*>", "...", said)
    return said if len(said) < 100 else _folded(said)


class _Words(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without `self`, and with annotations as they are written."""
    asked = [
        one.replace(annotation=_Words(one.annotation) if isinstance(one.annotation, str) else one.annotation)
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    result = signature.return_annotation
    return signature.replace(parameters=asked, return_annotation=_Words(result) if isinstance(result, str) else result)


def _folded(signature: str) -> str:
    """Return a long signature with one parameter on a line."""
    parts, depth, start = [], 0, 1
    end = signature.rindex(")")
    for place, sign in enumerate(signature[:end]):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 1:
            parts.append(signature[start:place].strip())
            start = place + 1
    parts.append(signature[start:end].strip())
    lines = "".join(f"    {part},\n" for part in parts if part)
    return f"(\n{lines}{signature[end:]}"


# ---- navigation -----------------------------------------------------------------------------


def navigation() -> list[Any]:
    """Return the menu: the sections, in them the headings of their index, in those the pages that it names."""
    menu: list[Any] = [{"Home": "index.md"}]
    for title, folder in SECTIONS.items():
        menu.append({title: [f"{folder}/index.md", *_menu_of(folder)]})
    menu[3]["Reference"].append({"Python": [f"reference/python/{_file(name)}" for name in ("index", *MODULES)]})
    menu.append({"Changelog": "changelog.md"})
    return menu


def _menu_of(folder: str) -> list[Any]:
    groups: dict[str, list[Any]] = {"": []}
    group, seen = "", {"index.md"}
    for line in (ROOT / "docs" / folder / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = line[3:]
            groups.setdefault(group, [])
        for title, target in re.findall(r"\[([^\]]+)\]\(([\w-]+\.md)\)", line):
            if target not in seen:
                seen.add(target)
                groups[group].append({title.replace("`", ""): f"{folder}/{target}"})
    rest = sorted(path for path in (ROOT / "docs" / folder).glob("*.md") if path.name not in seen)
    groups.setdefault("More" if len(groups) > 1 else "", []).extend(f"{folder}/{path.name}" for path in rest)
    return [*groups.pop(""), *({name: pages} for name, pages in groups.items() if pages)]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def configured() -> str:
    """Return the settings of the site, with the navigation and the addresses."""
    settings = (ROOT / "scripts" / "site.toml").read_text(encoding="utf-8")
    menu = "".join(f"  {_toml(one)},\n" for one in navigation())
    own = {
        "site_url": DOCS_URL,
        "repo_url": REPOSITORY_URL,
        "repo_name": REPOSITORY_URL.removeprefix("https://github.com/"),
        "docs_dir": "docs",
        "site_dir": "html",
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())
    return settings.replace("[project]\n", f"[project]\n{lines}nav = [\n{menu}]\n", 1)


def main() -> int:
    """Build the site; return 0 if there was no warning."""
    global BUILD, PAGES
    zensical, *folder = sys.argv[1:] or [""]
    if not Path(zensical).is_file() or len(folder) > 1:
        print("usage: python scripts/site.py ZENSICAL [FOLDER]; make site installs Zensical first", file=sys.stderr)
        return 2
    if folder:
        BUILD = Path(folder[0]).resolve() / "site"
        PAGES = BUILD / "docs"
    stage()
    (BUILD / "zensical.toml").write_text(configured(), encoding="utf-8")
    done = subprocess.run(
        [str(Path(zensical).absolute()), "build", "--clean", "--strict"],
        cwd=BUILD, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    print(said.strip())
    count = sum(1 for _ in (BUILD / "html").rglob("*.html"))
    if done.returncode or re.search(r"\bwarning\b", said, re.IGNORECASE):
        print("site: there are warnings")
        return 1
    lost = [page for page in sorted(PAGES.rglob("*.md")) if not _built(page).exists()]
    if lost:
        print("\n".join(f"site: {page.relative_to(PAGES)} was not built" for page in lost))
        return 1
    print(f"site: {count} pages in {BUILD / 'html'}; amends {amends.__version__}")
    return 0


def _built(page: Path) -> Path:
    inside = page.relative_to(PAGES)
    folder = inside.parent if inside.name == "index.md" else inside.with_suffix("")
    return BUILD / "html" / folder / "index.html"


if __name__ == "__main__":
    sys.exit(main())
