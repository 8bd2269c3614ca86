"""Inside a replay nothing leaves the process: sockets, name look-ups and new processes are refused.

Python tells an audit hook of each of them before it happens. A hook stays for as long as the process lives, so it is
added with the first replay, and looks only at code that runs inside one: by its context, or in a thread that was born
there. What a C extension does without Python's own modules it is not told of.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Final

from amends.context import guards
from amends.engine.replay import Replay
from amends.errors import ReplayDenied

REFUSED: Final = {
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"), "the network"),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), "a name on the network"),
    "socket.getnameinfo": "a name on the network",
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"), "another process"),
    **dict.fromkeys(("os.fork", "os.forkpty", "pty.spawn", "os.startfile"), "another process"),
}
THREAD: Final = "_thread.start_new_thread"
JOINABLE: Final = "_thread.start_joinable_thread"
"""What the event of a new thread is called since Python 3.13."""

_replay: ContextVar[Replay | None] = ContextVar("amends.replay", default=None)
_born: Final[weakref.WeakKeyDictionary[threading.Thread, Replay]] = weakref.WeakKeyDictionary()
"""Threads that code inside a replay has started: they do not have its context."""
_adding: Final = threading.Lock()
_added = False


@contextmanager
def denied(replay: Replay) -> Iterator[None]:
    """Inside this block the code reaches nothing but its run.

    This thread does nothing else meanwhile, whatever context its code runs in; unless it is that of an event loop.
    """
    _add_hook()
    whole_thread = not _is_on_loop()
    _replay.set(replay)
    here = threading.current_thread()
    if whole_thread:
        _born[here] = replay
    try:
        yield
    finally:
        if whole_thread:
            _born.pop(here, None)
        # Contexts that still have it, this one or another, see that it is over: the block may be left anywhere.
        replay.finished = True
        if _replay.get() is replay:
            _replay.set(None)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def replay_here() -> Replay | None:
    """The replay that this code runs inside of, if any."""
    found = _replay.get()
    if found is None and _born:
        found = _born.get(threading.current_thread())
    return None if found is None or found.finished else found


def born_in(replay: Replay) -> bool:
    """Whether threads that were started inside this replay, or given something to do, are at work beside this one."""
    if replay.pooled:
        return True
    here = threading.current_thread()
    return any(one is replay and thread.is_alive() and thread is not here for thread, one in list(_born.items()))


def refuse_in_replay(what: str) -> None:
    """The ledger is neither asked nor told anything by a program that is replayed."""
    replay = replay_here()
    if replay is not None:
        replay.stop(_denial(replay, what, "the ledger"))


def _add_hook() -> None:
    global _added
    with _adding:
        if not _added:
            sys.addaudithook(_hook)
            guards.append(refuse_in_replay)
            if sys.version_info < (3, 12):
                _watch_threads()
            _watch_pools()
            _added = True


def _watch_threads() -> None:
    """Before Python 3.12 no hook is told of new threads: the one place where they begin tells it."""
    module: Any = threading
    begin = module._start_new_thread

    def told(function: Any, *more: Any) -> Any:
        _note_birth(function)
        return begin(function, *more)

    module._start_new_thread = told


def _watch_pools() -> None:
    """The threads of a pool are older than the replay, and have no context of it: what is given to them there has."""
    pool: Any = ThreadPoolExecutor
    submit = pool.submit

    @wraps(submit)
    def told(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return submit(self, fn, *args, **kwargs)
        future = submit(self, partial(_inside, replay, fn), *args, **kwargs)
        replay.pooled.add(future)
        future.add_done_callback(replay.pooled.discard)
        return future

    pool.submit = told


def _inside(replay: Replay, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = _replay.set(replay)
    try:
        return fn(*args, **kwargs)
    finally:
        _replay.reset(token)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in REFUSED:
        replay = replay_here()
        if replay is not None:
            replay.stop(_denial(replay, f"{event}({_target(event, args)})", REFUSED[event]))
    elif event in (THREAD, JOINABLE):
        _note_birth(args[0])


def _note_birth(function: Any) -> None:
    replay = replay_here()
    if replay is not None:
        thread = getattr(function, "__self__", None)
        if isinstance(thread, threading.Thread):
            _born[thread] = replay


def _denial(replay: Replay, what: str, where: str) -> ReplayDenied:
    run = replay.record.run
    return ReplayDenied(f"{what}: code inside the replay of run {run.id} reached for {where}", what=what, run_id=run.id)


def _target(event: str, args: tuple[Any, ...]) -> str:
    """What it was about, as far as that is no secret: an address, a program."""
    if event.startswith("socket.") and event != "socket.getaddrinfo" and len(args) > 1:
        return str(args[1])[:200]
    return str(args[0])[:200] if args else ""
