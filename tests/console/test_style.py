"""The style sheet: whole, and with every size, space and colour named once."""

import re
from pathlib import Path

from amends.serve.console.html import HERE

SHEET = (HERE / "static" / "console.css").read_text(encoding="utf-8")
PLAIN = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", SHEET, flags=re.DOTALL)


def test_every_block_is_closed_where_its_section_ends() -> None:
    """A merge that loses a brace hides every rule after it, and no browser says so."""
    depth, open_at = 0, []
    for number, line in enumerate(SHEET.splitlines(), 1):
        if line.startswith("/* ----") and depth:
            open_at.append(f"{number}: {line}")
        depth += line.count("{") - line.count("}")
    assert (depth, open_at) == (0, [])


def test_every_name_that_is_used_is_defined() -> None:
    defined = set(re.findall(r"(--[\w-]+)\s*:", PLAIN))
    used = set(re.findall(r"var\((--[\w-]+)", PLAIN))
    assert used - defined == set()


def test_colours_are_named_in_one_place() -> None:
    root = PLAIN[PLAIN.index(":root") : PLAIN.index(".tone-ok")]
    elsewhere = PLAIN.replace(root, "")
    assert re.findall(r"#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b(?!-)", elsewhere) == []


def test_a_class_belongs_to_one_page_or_to_all() -> None:
    """Two pages that style the same name break each other, and neither sees it alone."""
    homes: dict[str, set[str]] = {}
    for section in re.split(r"(?m)^(?=/\* ---- )", SHEET[SHEET.index("/* ---- ") :]):
        title = section.partition("\n")[0]
        depth = 0
        for selectors, brace in re.findall(r"([^{}]*)([{}])", re.sub(r"/\*.*?\*/", "", section, flags=re.DOTALL)):
            if brace == "{" and depth == 0:  # inside of @media a name is only changed
                alone = [one.strip() for one in selectors.split(",")]
                for name in [one for one in alone if re.fullmatch(r"\.[\w-]+", one)]:
                    homes.setdefault(name, set()).add(title)
            depth += 1 if brace == "{" else -1
    assert {name: sorted(found) for name, found in homes.items() if len(found) > 1} == {}


def test_no_template_has_a_style_or_a_script_of_its_own() -> None:
    for template in sorted(Path(HERE / "templates").glob("*.html")):
        text = template.read_text(encoding="utf-8")
        assert re.findall(r"\sstyle=|<style|<script(?! src=)|\son[a-z]+=|\|\s*safe\b|javascript:", text) == [], template
