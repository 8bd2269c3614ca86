"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""

from __future__ import annotations

from pathlib import Path

from tests.surface.public import surface

RECORDED = Path(__file__).with_name("public_surface.txt")

# Changes made on purpose since the copy was recorded, with the reason. Record the copy anew when a release is made:
# `python -m tests.surface.public > tests/surface/public_surface.txt`.
ADDED: dict[str, str] = {
    "amends.testing.STORE_CHECKS: Suite": "a dict still, with the decorators that register a check",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0, make_store=<type>)": "schedules are played on SQLite too",
}
REMOVED: dict[str, str] = {
    "amends.testing.STORE_CHECKS: dict": "see ADDED",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0)": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
