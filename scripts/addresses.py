"""Where the documentation and the repository will be published. Reserved, not yet live: see CONTRIBUTING.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from amends.errors import DOCS

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS_URL: Final = DOCS
REPOSITORY_URL: Final = "https://github.com/amends-dev/amends"
RAW_URL: Final = "https://raw.githubusercontent.com/amends-dev/amends/main/"
"""Where a picture of the repository is found: the package index shows the README without its files."""
BUILT: Final = ("reference/python/",)
"""Parts of the site that only `make site` writes."""


def page_of(address: str) -> Path | None:
    """Return the file of this repository that an address of ours shows; None for any other address.

    The file need not exist: that is for the caller to check. A part of the site that is built answers for its builder.
    """
    address = address.partition("#")[0]
    for start in (RAW_URL, f"{REPOSITORY_URL}/blob/main/", f"{REPOSITORY_URL}/tree/main/"):
        if address.startswith(start):
            return ROOT / address.removeprefix(start)
    if not address.startswith(DOCS_URL):
        return None
    path = address.removeprefix(DOCS_URL)
    if path == "changelog/":
        return ROOT / "CHANGELOG.md"
    if path.startswith(BUILT):
        return ROOT / "scripts" / "site.py"
    page = ROOT / "docs" / path
    if path and not path.endswith("/"):
        return page  # a file, such as a picture; a page has a slash at its end
    return page / "index.md" if page.is_dir() else page.with_suffix(".md")
