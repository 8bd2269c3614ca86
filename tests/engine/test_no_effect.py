"""``no_effect=``: errors by which a tool says for certain that nothing happened."""

from __future__ import annotations

from typing import Any

import pytest

from amends import Absent, InDoubt, Retry, RunBlocked, tool
from amends.errors import BadDeclaration
from tests.world import runtime, states


class Declined(Exception):
    """The bank said no."""


class Expired(Declined):
    """A narrower no."""


class PoolTimeout(TimeoutError):
    """No connection was free, so nothing was sent."""


def _charge(*errors: BaseException, probed: bool = True, **options: Any) -> tuple[Any, list[str]]:
    log: list[str] = []
    left = list(errors)

    @tool(key="order", **options)
    def charge(order: str) -> str:
        log.append("sent")
        if left:
            raise left.pop(0)
        return "ok"

    charge.compensate(lambda: None)
    if probed:

        @charge.probe
        def look() -> Absent:
            log.append("probed")
            return Absent()

    return charge, log


@pytest.mark.parametrize("error", [Declined(), Expired(), ExceptionGroup("x", [Declined(), Expired()])])
def test_it_fails_without_asking_the_probe(error: Exception) -> None:
    charge, log = _charge(error, no_effect=Declined)
    rt = runtime(charge)
    with rt.run("r"), pytest.raises(type(error)):
        charge("1")
    assert (log, states(rt, "r")) == (["sent"], {"charge": "failed"})


def test_without_it_every_error_is_probed() -> None:
    charge, log = _charge(Declined())
    with runtime(charge).run("r"), pytest.raises(Declined):
        charge("1")
    assert log == ["sent", "probed"]


def test_it_is_certain_whatever_it_was_raised_over_and_whatever_it_derives_from() -> None:
    for error in (PoolTimeout(), Declined()):
        error.__cause__ = TimeoutError()
        charge, _ = _charge(error, probed=False, no_effect=(PoolTimeout, Declined))
        rt = runtime(charge)
        with rt.run("r"), pytest.raises(type(error)):
            charge("1")
        assert states(rt, "r") == {"charge": "failed"}


def test_a_group_with_a_lost_answer_stays_a_doubt() -> None:
    charge, _ = _charge(ExceptionGroup("x", [Declined(), TimeoutError()]), probed=False, no_effect=Declined)
    rt = runtime(charge)
    with pytest.raises(RunBlocked), rt.run("r"):
        charge("1")
    assert states(rt, "r") == {"charge": "in_doubt"}


def test_it_is_retried_and_the_key_is_free() -> None:
    charge, log = _charge(Declined(), Declined(), no_effect=Declined, retry=Retry(attempts=2, delay=0.0))
    with runtime(charge).run("r"):
        with pytest.raises(Declined):
            charge("1")
        assert charge("1") == "ok"
    assert log == ["sent"] * 3


def test_it_speaks_about_the_body_and_not_about_the_compensation() -> None:
    @tool(no_effect=PoolTimeout)
    def charge() -> None: ...

    @charge.compensate(retry=1)
    def refund() -> None:
        raise PoolTimeout

    rt = runtime(charge)
    with pytest.raises(RunBlocked), rt.run("r"):
        charge()
        raise ValueError("boom")
    assert states(rt, "r") == {"charge": "compensation_in_doubt"}


@pytest.mark.parametrize(
    "given, words",
    [
        (Exception, "includes"),
        (OSError, "includes TimeoutError"),
        (TimeoutError, "includes TimeoutError"),
        (ConnectionError, "includes ConnectionError"),
        (InDoubt, "amends raises it"),
        ("Declined", "takes exception classes"),
        (KeyboardInterrupt, "takes exception classes"),
    ],
)
def test_what_would_hide_a_doubt_is_refused(given: Any, words: str) -> None:
    charge, _ = _charge(no_effect=given)
    with pytest.raises(BadDeclaration, match=words):
        runtime(charge)


def test_one_error_cannot_be_both() -> None:
    charge, _ = _charge(no_effect=Expired, doubt=Declined)
    with pytest.raises(BadDeclaration, match="narrower"):
        runtime(charge)
