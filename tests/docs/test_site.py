"""The documentation site: every page is in its navigation, its links lead somewhere, and its addresses are known."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import site as documentation
from scripts.addresses import DOCS_URL, RAW_URL, REPOSITORY_URL, page_of

ROOT = Path(__file__).resolve().parents[2]


def pages_in(menu: Any) -> Iterator[str]:
    for one in menu if isinstance(menu, list) else menu.values():
        if isinstance(one, str):
            yield one
        else:
            yield from pages_in(one)


def test_every_page_is_in_the_navigation_once() -> None:
    named = [page for page in pages_in(documentation.navigation()) if not page.startswith("reference/python/")]
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted([*written, "changelog.md"])


def test_the_settings_of_the_site_can_be_read_with_the_navigation_in_them() -> None:
    project = tomllib.loads(documentation.configured())["project"]
    assert project["site_url"] == DOCS_URL
    assert list(pages_in(project["nav"])) == list(pages_in(documentation.navigation()))


@pytest.mark.parametrize("module", documentation.MODULES)
def test_every_public_name_of_a_module_has_its_part_with_a_docstring(module: str) -> None:
    text = "".join(documentation.reference(module, ""))
    home = sys.modules[module]
    for name in documentation.public_names(home):
        part = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert part.strip() or not callable(getattr(home, name)), f"{module}.{name} has no docstring"


@pytest.mark.parametrize(
    "address, file",
    [
        (DOCS_URL, "docs/index.md"),
        (f"{DOCS_URL}how-to/", "docs/how-to/index.md"),
        (f"{DOCS_URL}how-to/serve/#stop", "docs/how-to/serve.md"),
        (f"{DOCS_URL}changelog/", "CHANGELOG.md"),
        (f"{REPOSITORY_URL}/blob/main/LICENSE", "LICENSE"),
        (f"{RAW_URL}docs/assets/saga.svg", "docs/assets/saga.svg"),
    ],
)
def test_an_address_of_ours_shows_a_file_of_this_repository(address: str, file: str) -> None:
    assert page_of(address) == ROOT / file
    assert (ROOT / file).exists()


def test_an_address_without_its_page_is_reported() -> None:
    from scripts.docs import broken_links

    said = f"[a]({DOCS_URL}how-to/nothing/) [b]({REPOSITORY_URL}/blob/main/nothing.py) [c](https://example.com/x)"
    assert [problem.split()[-5] for problem in broken_links(ROOT / "docs" / "index.md", said)] == [
        "docs/how-to/nothing.md,",
        "nothing.py,",
    ]


def test_the_metadata_of_the_package_names_the_same_addresses() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Documentation"] == DOCS_URL
    assert urls["Repository"] == REPOSITORY_URL
    assert page_of(urls["Changelog"]) == ROOT / "CHANGELOG.md"


def test_every_extra_for_users_is_in_the_table_of_the_readme_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| you want | extra |")[2].partition("\n\n")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for_users = set(extras) - {"dev", "e2e", "site", "test"}
    assert set(re.findall(r"`([\w-]+)`", table)) == for_users


def test_every_test_that_the_comparison_names_exists() -> None:
    text = (ROOT / "docs" / "explanation" / "comparison.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    folders = (ROOT / "tests" / name for name in ("peers", "engines"))
    found = {
        name
        for folder in folders
        for path in folder.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named, "the page names tests"
    assert named <= found, f"there is no {sorted(named - found)}"


@pytest.mark.rest
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    zensical = ROOT / ".venv-site" / "bin" / "zensical"
    if not zensical.exists():
        pytest.skip("make site has not been called here")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "site.py"), str(zensical), str(tmp_path)],
        capture_output=True, encoding="utf-8", check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
