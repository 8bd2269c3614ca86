"""Write the generated parts of the docs again, or with ``--check`` say which of them are stale.

A generated part stands between two comments; whatever is between them is replaced:

    <!-- generated: call moves -->
    <!-- end -->

Links between pages are checked too: a page that is not there fails both ways.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from amends import states

ROOT: Final = Path(__file__).resolve().parent.parent
PART: Final = re.compile(r"(<!-- generated: (?P<name>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK: Final = re.compile(r"\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
FENCED: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _diagram(text: str) -> str:
    return f"```mermaid\n{text}\n```\n"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "call moves": lambda: _diagram(states.diagram(states.CALL_MOVES)),
    "run moves": lambda: _diagram(states.diagram(states.RUN_MOVES)),
}


def pages() -> list[Path]:
    """Every page a reader may open."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def fresh(text: str) -> str:
    """The page with every generated part as the code has it now."""
    return PART.sub(lambda part: part[1] + PARTS[part["name"]]() + part[3], text)


def broken_links(page: Path, text: str) -> Iterator[str]:
    """What the page points to in this tree that is not there."""
    for link in LINK.finditer(FENCED.sub("", text)):
        if not (page.parent / link["target"]).exists():
            yield f"{page.relative_to(ROOT)}: {link['target']} is not there"


def main() -> int:
    """Do what the module says; 0 when the docs are as they should be."""
    is_check = "--check" in sys.argv[1:]
    problems: list[str] = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        wanted = fresh(text)
        if wanted != text and is_check:
            problems.append(f"{page.relative_to(ROOT)}: a generated part is stale; run make docs")
        elif wanted != text:
            page.write_text(wanted, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
        problems += broken_links(page, wanted)
    print("\n".join(problems) or "docs: generated parts and links are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
