"""Which run a request to an MCP server belongs to: the same for every framework that servers are written with.

The protocol has no notion of a longer task, so each request is a run of its own, unless the client names one in ``_meta``
or is itself guarded and sends the key of its call. An identical request within the window is the same run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import ceil
from typing import Any, Final

import amends
from amends.errors import NoRun
from amends.idempotency import CALLER_META, KEY_META
from amends.visible import visible, visible_value

RUN_META: Final = "amends/run"
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
THREAD_META: Final = "amends/thread"
"""The key in ``_meta`` for the conversation, which becomes a tag of the run."""
REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
END: Final = "end_run"
WINDOW_S: Final = 3_600.0
"""For how long an identical request is answered from the record, unless the program says otherwise."""
WINDOW_S_MAX: Final = 10 * 366 * 86_400.0
ENDED: Final = ("committed", "rolled_back", "abandoned")
BLOCK_TYPES: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})
"""What a content block of the protocol may be."""
NOTHING: Final = {"type": "object", "properties": {}}
"""The schema of an input that is not needed: a client is only told something."""
STATELESS: Final = "2026-07-28"
"""From this protocol version on, a server cannot ask during a request: its response says that it needs an input."""

_log = logging.getLogger("amends")


def window_of(seconds: object, *, is_named: bool) -> int:
    """Return for how many seconds a run's record answers an identical request; 0: it does not.

    ``is_named``: the server itself names the run of each request. Otherwise 0 is warned of.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < WINDOW_S_MAX:
        raise amends.UsageError(
            f"repeat_window is {seconds!r}; it is a number of seconds",
            hint="3600 is the default; 0: each request is new",
        )
    if not seconds and not is_named:
        _log.warning(
            "repeat_window=0 without run_id: a client that lost the answer and asks again does everything twice, unless "
            "it names its run in _meta"
        )
    return ceil(seconds)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs: its run, if that is known before the ledger is searched, and how the run is opened."""

    run_id: str | None
    stays: bool
    """The client has named the run, which goes on after this request."""
    window: int
    tag: str
    options: dict[str, Any]
    """For ``rt.run``."""

    @property
    def same(self) -> str:
        """A filter that finds the runs of the same earlier request."""
        return f'tag:"{self.tag}"'

    @property
    def warns(self) -> bool:
        """Whether a failure in this run takes it back when the client ends it."""
        return self.stays and self.options["on_open_failure"] == "rollback"

    def next_id(self, newest: amends.RunInfo | None, *, is_kept: bool) -> str | None:
        """Return the run: that of the newest identical request, if it counts, else the one after it.

        The id is computed and not made up: of two identical requests at once, the second finds the run of the first.
        None: each is a run of its own.
        """
        if not (self.window or is_kept):
            return None
        if newest is not None and is_kept:
            return newest.id
        stem = f"{self.tag.replace(':', '-')}-"
        number = 0 if newest is None else int(newest.id.removeprefix(stem))
        return f"{stem}{number + 1}"


def place_of(
    rt: amends.Runtime | amends.AsyncRuntime,
    tool: str,
    asked: list[Any],
    *,
    who: Any,
    named: str | None,
    chosen: str | None,
    meta: Callable[[str], str | None],
    window: int,
    options: Mapping[str, Any],
) -> Place:
    """Return where a request belongs.

    ``asked``: what makes it another request than an earlier one. ``who``: whose it is. ``named``: the run that the client
    named. ``chosen``: that which the server chose. ``meta``: reads ``_meta``. ``options``: the program's, for ``rt.run``.
    """
    is_read = rt.kind_of(tool) == "read"
    key, caller, thread = meta(KEY_META), meta(CALLER_META), meta(THREAD_META)
    # One key of a guarded client is one run here: it is executed once, however often and however late it is asked for.
    keyed = f"key-{digest([tool, key, who])[:32]}" if key and not is_read else None
    run_id = named or chosen or keyed
    window = 0 if run_id is not None or is_read else window
    tag = f"{'request' if window else 'asked'}:{digest([tool, *asked, who])[:32]}"
    tags = [*options.get("tags", ()), *([f"thread:{thread}"] if thread else []), *([] if named else [tag])]
    tags += [f"caller:{caller}"] if caller else []
    stays = named is not None
    # In a run of one request nothing stands beside a failure; rolled back, the run is open for the next try.
    ends: dict[str, Any] = {} if stays else {"requires": None, "on_open_failure": "rollback"}
    recover = {"recover": "wait"} if stays else {}
    return Place(run_id, stays, window, tag, {**recover, **options, **ends, "tags": tags, "history": True})


def find_run(rt: amends.Runtime, place: Place) -> str | None:
    """Return the run of a request that names none."""
    if is_replay():
        return None
    newest = next(iter(rt.runs(place.same)), None)
    is_kept = newest is not None and _is_recent(newest, place.window)
    if newest is not None and not is_kept and place.window:
        is_kept = next(iter(rt.runs(f"{place.same} age:<{place.window}s")), None) is not None
    return place.next_id(newest, is_kept=is_kept)


async def find_run_async(rt: amends.AsyncRuntime, place: Place) -> str | None:
    """Return the run of a request that names none."""
    if is_replay():
        return None
    newest = await _first(rt.runs(place.same))
    is_kept = newest is not None and _is_recent(newest, place.window)
    if newest is not None and not is_kept and place.window:
        is_kept = await _first(rt.runs(f"{place.same} age:<{place.window}s")) is not None
    return place.next_id(newest, is_kept=is_kept)


def run_named(named: str | None, principal: list[str | None] | None) -> str | None:
    """Return the run that the client has named; if clients log in, each has its own names."""
    return named if named is None or principal is None else f"{named}@{digest(principal)[:12]}"


def notice_text(tool: str, asked: amends.Approval) -> str:
    """Return what a client is told when a call waits for a person."""
    args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in asked.call.args.items())
    return (
        f"{visible(tool)}({args}) waits for a person's approval ({asked.id}). Approve or reject it there; "
        "your answer here decides nothing, it only makes the server check again."
    )


def digest(value: Any) -> str:
    """Return a digest of a value that JSON can say."""
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def is_replay() -> bool:
    """Return whether this is a replay, which supplies the run, so that the ledger is not searched."""
    try:
        return bool(amends.current_run().awaits_opening)
    except NoRun:
        return False


def _is_recent(run: amends.RunInfo, window: int) -> bool:
    """Return whether the run has not ended, or within the window: its client may have waited as long for the answer."""
    if run.state not in ENDED or run.closed_at is None:
        return run.state not in ENDED
    return abs((datetime.now(UTC) - run.closed_at).total_seconds()) < window


async def _first(found: Any) -> Any:
    async for one in found:
        return one
    return None
