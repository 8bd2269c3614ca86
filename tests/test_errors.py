"""Errors keep their facts when they are pickled or copied: between processes, and in frameworks that copy them."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest

from amends import errors
from amends.errors import Error

SINCE = datetime(2026, 11, 16, tzinfo=UTC)
MADE: list[Error] = [
    errors.UsageError("wrong", hint="do this", run_id="r"),
    errors.BadRule("rule 1 is wrong", rule=1, tool="pay", argument="cents"),
    errors.RunConflict("another input", recorded=1, given=2, run_id="r"),
    errors.UnknownTool("chrge", known=["charge"]),
    errors.OutOfOrder("wire", law="pivot_early", missing=["book"], run_id="r"),
    errors.Locked("pay", lock="a", holder="r-1", since=SINCE, waited=1.0, held_s=2.0, run_id="r"),
    errors.ApprovalVoid("wire", why="expired", expired_at=SINCE),
    errors.ResultGone("charge", gone_at=SINCE),
    errors.Busy("busy", owner="p", retry_after=3.0),
    errors.LedgerTampered("changed", run_id="r", event=3, how="edited"),
]


@pytest.mark.parametrize("error", MADE, ids=lambda one: type(one).__name__)
def test_a_pickled_or_copied_error_has_the_same_text_and_facts(error: Error) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert again.for_model() == error.for_model()
        assert again.to_dict() == error.to_dict()


def test_what_a_model_is_told_quotes_braces_as_they_are() -> None:
    assert errors.Rejected("wire", by="ada", reason="not {0.tool}").for_model() == (
        "A person rejected wire: not {0.tool}. Do not ask again with these arguments."
    )
