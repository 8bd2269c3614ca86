"""The anchor's checkpoint: beside the approval's mark, never backwards, never another ledger's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amends.encoding.chain import Anchored
from amends.errors import LedgerUnavailable
from amends.host.anchor import Anchor, Mark


def at(n: int, ledger: str = "ldg") -> Anchored:
    return Anchored(ledger, n, 1.5, f"{n:064x}", "key", "signature")


def test_the_two_parts_are_kept_beside_each_other(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "a")
    assert anchor.keep_checkpoint(at(1))
    assert anchor.read() == Mark(0, "", at(1))
    anchor.keep(5, "apr_5")
    assert anchor.read() == Mark(5, "apr_5", at(1))
    assert anchor.keep_checkpoint(at(2))
    assert anchor.read() == Mark(5, "apr_5", at(2))
    assert anchor.keep_checkpoint(at(1)), "a later one is known"
    assert anchor.read() == Mark(5, "apr_5", at(2)), "never backwards"


def test_a_persons_word_lets_the_ledger_count_anew(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "a")
    anchor.keep_checkpoint(at(7))
    anchor.reset()
    assert anchor.read() == Mark()
    assert anchor.keep_checkpoint(at(4))


def test_an_anchor_of_another_ledger_is_left_as_it_is(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "a")
    anchor.keep_checkpoint(at(7))
    assert not anchor.keep_checkpoint(at(9, "other"))
    assert anchor.read() == Mark(0, "", at(7))


def test_an_anchor_without_a_checkpoint_is_read(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "a")
    anchor.path.write_text('{"at": 4.5, "approval": "apr"}', encoding="ascii")
    assert anchor.read() == Mark(4.5, "apr")
    anchor.keep_checkpoint(at(1))
    assert json.loads(anchor.path.read_text(encoding="ascii"))["at"] == 4.5


@pytest.mark.parametrize(
    "text", ["[]", '{"at": 1, "approval": "", "checkpoint": []}', '{"at": 1, "approval": "", "checkpoint": {}}']
)
def test_a_broken_one_is_said(tmp_path: Path, text: str) -> None:
    anchor = Anchor(tmp_path / "a")
    anchor.path.write_text(text, encoding="ascii")
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        anchor.read()


def test_one_that_cannot_be_written_says_what_was(tmp_path: Path) -> None:
    missing = Anchor(tmp_path / "no folder" / "a")
    with pytest.raises(LedgerUnavailable, match="checkpoint 3 is in the ledger but cannot be written to its anchor"):
        missing.keep_checkpoint(at(3))


def test_one_that_cannot_be_locked_is_written_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "anchor.lock").mkdir()
    anchor = Anchor(tmp_path / "anchor")
    for at in (5.0, 6.0):
        anchor.keep(at, f"apr_{at}")
    assert anchor.read() == Mark(6.0, "apr_6.0")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
