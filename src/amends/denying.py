"""Inside a replay nothing leaves the process: sockets, name look-ups and new processes are refused.

Python tells an audit hook of each of them before it happens. A hook stays for as long as the process lives, so it is
added with the first replay, and looks only at code that runs inside one. Code is inside a replay if one of these is:
its context, its thread, its task, or the callback of an event loop that it runs in.

A replayed program may also hand work to threads and tasks that are older than the replay, and do live work besides.
So the places where work is handed over are watched: pools, queues, and the callbacks and tasks of event loops. Whoever
takes an item that the replay put into a queue is inside the replay until it takes the next one. What is handed over by
other means, such as a list that another task looks into, is not seen; nor is what a C extension does without Python's
modules.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Final

from amends.context import guards
from amends.engine.replay import Replay
from amends.errors import ReplayDenied
from amends.loop import is_on_loop

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
_tasks: Final[weakref.WeakKeyDictionary[asyncio.Future[Any], Replay]] = weakref.WeakKeyDictionary()
"""Tasks that a replay runs in, or has started: with another context, too."""
_takers: Final[weakref.WeakKeyDictionary[Any, Replay]] = weakref.WeakKeyDictionary()
"""Threads and tasks that have taken an item of a replay from a queue, until they take the next one."""
_items: Final[weakref.WeakKeyDictionary[Any, list[tuple[object, Replay]]]] = weakref.WeakKeyDictionary()
"""What replays have put into queues."""


class _Now(threading.local):
    """What this thread does at this moment."""

    replay: Replay | None = None
    """The replay on whose behalf it runs a callback or a piece of work."""
    passes: Replay | None = None
    """The replay whose item it passes on to the task that waits for it."""


_now: Final = _Now()
_adding: Final = threading.RLock()
_added = False
_active = 0
"""How many replays are under way in this process."""
_watched: Final[set[type]] = set()
"""Classes of event loops and executors that tell what is handed to them."""


@contextmanager
def denied(replay: Replay) -> Iterator[None]:
    """Inside this block the code reaches nothing but its run.

    This thread does nothing else meanwhile, whatever context its code runs in; unless it is that of an event loop.
    """
    global _active
    _add_hook()
    _watch_processes()
    _replay.set(replay)
    here: Any = current_task()
    if here is not None:
        _watch_loops(type(here.get_loop()))
        _tasks[here] = replay
    elif not is_on_loop():
        here = threading.current_thread()
        _born[here] = replay
    with _adding:
        _active += 1
    try:
        yield
    finally:
        with _adding:
            _active -= 1
        # Contexts that still have it, this one or another, see that it is over: the block may be left anywhere.
        replay.finished = True
        places: Any = _born if isinstance(here, threading.Thread) else _tasks
        if here is not None and places.get(here) is replay:
            del places[here]
        if _replay.get() is replay:
            _replay.set(None)


def current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def replay_here() -> Replay | None:
    """The replay that this code runs inside of, if any."""
    if not _active:
        return None
    thread, task = threading.current_thread(), current_task()
    found = [_replay.get(), _now.replay, _born.get(thread), _takers.get(thread)]
    if task is not None:
        found += [_tasks.get(task), _takers.get(task)]
    return next((one for one in found if one is not None and not one.finished), None)


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
            _watch_loops(asyncio.BaseEventLoop)
            _watch_queues()
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
    """Run ``fn`` on behalf of a replay, whatever context and thread it has."""
    before, _now.replay = _now.replay, replay
    try:
        return fn(*args, **kwargs)
    finally:
        _now.replay = before


def _patched(owner: Any, name: str, told: Callable[..., Any]) -> None:
    """Let ``told`` stand for a method of a class; its first argument is the method itself."""
    method = getattr(owner, name)

    @wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return told(method, *args, **kwargs) if _active else method(*args, **kwargs)

    setattr(owner, name, replaced)


def _watch_processes() -> None:
    """A pool of processes that is older than the replay starts none, and would be seen by no hook."""
    module = sys.modules.get("concurrent.futures.process")
    pool: Any = getattr(module, "ProcessPoolExecutor", None)
    if pool is None or pool in _watched:
        return

    def submit(method: Any, self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is not None:
            replay.stop(_denial(replay, "ProcessPoolExecutor.submit", "another process"))
        return method(self, fn, *args, **kwargs)

    _watched.add(pool)
    _patched(pool, "submit", submit)


def _watch_loops(loop: Any) -> None:
    """Tasks that a replay starts, and callbacks that it asks for, belong to it in any context and on any loop."""
    if any(one in _watched for one in loop.__mro__):
        return

    def soon(method: Any, self: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, _owned(callback, args), *args, **kwargs)

    def at(method: Any, self: Any, when: float, callback: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, when, _owned(callback, args), *args, **kwargs)

    def create_task(method: Any, self: Any, coroutine: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return method(self, coroutine, **kwargs)
        task = _inside(replay, method, self, coroutine, **kwargs)  # an eager task has begun by then
        _tasks[task] = replay
        return task

    _watched.add(loop)
    _patched(loop, "call_soon", soon)
    _patched(loop, "call_soon_threadsafe", soon)
    _patched(loop, "call_at", at)
    if not issubclass(loop, asyncio.BaseEventLoop):
        _patched(loop, "call_later", at)  # elsewhere it asks call_at
    _patched(loop, "create_task", create_task)


def _owned(callback: Any, args: tuple[Any, ...]) -> Any:
    """Return a callback that the replay asks for here so that it runs on its behalf.

    A task or a future that the replay only wakes goes on as it was: others wait for them, too.
    """
    replay = replay_here()
    task = getattr(callback, "__self__", None)
    if len(args) == 1 and isinstance(args[0], asyncio.Future):
        passed = _now.passes or _passed_on(args[0])
        if passed is None:
            return callback
        if not isinstance(task, asyncio.Task):
            return partial(_pass, passed, callback)
        _takers[task] = passed
        return callback
    if replay is None:
        return callback
    if not isinstance(task, asyncio.Task):
        return partial(_inside, replay, callback)
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        _tasks[task] = replay  # it begins, and whoever made it did not ask the loop
    return callback


def _passed_on(ended: asyncio.Future[Any]) -> Replay | None:
    """The replay whose item this task has taken from a queue, if it did nothing else: ``wait_for(queue.get(), 1)``."""
    replay = _takers.get(ended)
    if replay is None or replay.finished or not isinstance(ended, asyncio.Task):
        return None
    return replay if getattr(ended.get_coro(), "__qualname__", "") == asyncio.Queue.get.__qualname__ else None


def _pass(replay: Replay, callback: Any, /, *args: Any) -> Any:
    before, _now.passes = _now.passes, replay
    try:
        return callback(*args)
    finally:
        _now.passes = before


def _watch_queues() -> None:
    """Whoever takes what a replay has put into a queue works for the replay; what others have put there stays live."""

    def put(method: Any, self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return method(self, item, *args, **kwargs)
        with _adding:
            _items.setdefault(self, []).append((item, replay))
        try:
            return method(self, item, *args, **kwargs)
        except BaseException:  # the queue is full
            _of_replay(self, item)
            raise

    def get(method: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        item = method(self, *args, **kwargs)
        taker: Any = threading.current_thread() if isinstance(self, queue.Queue) else current_task()
        replay = _of_replay(self, item)
        if taker is None or (replay is None and taker not in _takers):
            return item
        if replay is None:
            del _takers[taker]
        else:
            _takers[taker] = replay
        return item

    _patched(asyncio.Queue, "put_nowait", put)
    _patched(asyncio.Queue, "get_nowait", get)
    _patched(queue.Queue, "put", put)
    for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
        _patched(kind, "_get", get)  # not get: threads may be waiting inside of it


def _of_replay(source: Any, item: object) -> Replay | None:
    """The replay that has put this item into this queue, which is not asked again; None: somebody else has."""
    with _adding:
        known = _items.get(source, [])
        for place, (one, replay) in enumerate(known):
            if one is item:
                del known[place]
                return None if replay.finished else replay
    return None


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
