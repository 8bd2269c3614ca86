"""``Feed``: following a ledger without losing an event that is committed late, and without showing one twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from amends import Event, Feed, Runtime, tool
from amends.encoding.chain import feed_place, read_place


def event(at: float, root: str = "run_a", n: int = 1) -> Event:
    moment = datetime.fromtimestamp(at, UTC)
    return Event(n, moment, "r", None, "run", "", "", "", place=feed_place(at, root, n))


def read(feed: Feed, ledger: list[Event]) -> list[Event]:
    """Read once, as ``rt.events(after=feed.after)`` does."""
    rest = [one for one in ledger if read_place(one.place) > read_place(feed.after)]
    return [one for one in sorted(rest, key=lambda one: read_place(one.place)) if feed.is_new(one)]


def test_an_event_that_is_committed_late_is_shown_and_none_twice() -> None:
    feed, ledger = Feed(), [event(100.0), event(101.0, n=2)]
    assert read(feed, ledger) == ledger
    assert read(feed, ledger) == []
    late = event(100.5, "run_b")
    assert read(feed, [*ledger, late]) == [late]
    assert read(feed, [*ledger, late]) == []
    assert feed.place == ledger[-1].place, "its place does not go back"


def test_two_trees_may_write_at_the_same_moment() -> None:
    feed, one, two = Feed(), event(100.0, "run_b"), event(100.0, "run_a")
    assert read(feed, [one]) == [one]
    assert read(feed, [one, two]) == [two]


def test_it_remembers_no_more_than_the_margin() -> None:
    feed = Feed(margin_s=5.0)
    ledger = [event(float(at)) for at in range(1_000)]
    assert read(feed, ledger) == ledger
    assert len(feed._shown) <= 6
    assert read_place(feed.after)[0] == 994.0


def test_a_place_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    for at, root, n in ((0.0, "", 0), (1_700_000_000.123456, "run_a.b", 12)):
        assert read_place(feed_place(at, root, n)) == (at, root, n)
    assert read_place("") == (0.0, "", 0)
    for text in ("1", "1.2", "x.run.1", "1.run.x", "1.run.-1", "٣.run.1", f"{'9' * 19}.run.1", ".", ".."):
        with pytest.raises(ValueError, match="not a place"):
            read_place(text)


def test_a_program_that_begins_at_the_newest_event_sees_what_comes_next() -> None:
    @tool(kind="read")
    def note(n: int) -> int:
        return n

    with Runtime("memory:", tools=[note]) as rt:
        assert rt.newest_event() is None
        with rt.run("old"):
            note(n=1)
        newest = rt.newest_event()
        assert newest is not None
        feed = Feed(newest.place)
        known = [one for one in rt.events(after=feed.after) if feed.is_new(one)]
        assert {one.run_id for one in known} == {"old"}, "the margin before it is shown once more"
        with rt.run("new"):
            note(n=2)
        shown = [one for one in rt.events(after=feed.after) if feed.is_new(one)]
        assert shown == list(rt.events("new"))
