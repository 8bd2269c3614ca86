"""A verb of the runtime is made when it is first looked up, and is an ordinary method from then on."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import pytest

from amends.host.host import Host, View
from amends.host.verbs import awaited, blocking, direct


async def told(_host: Host, _view: View, word: str, *, loud: bool = False) -> str:
    """Return the word."""
    return word.upper() if loud else word


def shown(_host: Host, _view: View, word: str) -> str:
    """Return the word at once."""
    return word


def _run(flow: Coroutine[Any, Any, str]) -> str:
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    return str(end.value.value)


def fresh(asked: list[str]) -> Any:
    """Return a class whose verbs nobody has looked up yet; each notes when it is."""

    def noted(verb: Callable[..., Any]) -> Any:
        asked.append(verb.__name__)
        return verb

    class Here:
        """Like a runtime."""

        _host = _view = None
        _drive = staticmethod(_run)
        tell = blocking(lambda: noted(told))
        tell_later = awaited(lambda: noted(told))
        show = direct(lambda: noted(shown))

    return Here


def test_a_verb_is_asked_for_once_and_becomes_an_ordinary_function() -> None:
    asked: list[str] = []
    cls = fresh(asked)
    assert asked == []
    assert cls().tell("a", loud=True) == "A"
    assert cls().tell("a") == "a"
    assert cls.tell(cls(), "b") == "b"
    assert asked == ["told"]
    made = vars(cls)["tell"]
    assert isinstance(made, FunctionType)
    assert made is cls.tell
    assert str(inspect.signature(made)) == "(self, word: 'str', *, loud: 'bool' = False) -> 'str'"
    assert (made.__name__, made.__doc__) == ("told", "Return the word.")
    assert not inspect.iscoroutinefunction(made)
    assert inspect.iscoroutinefunction(cls.tell_later)


def test_it_is_found_in_a_derived_class_and_by_super() -> None:
    cls = fresh([])

    class Derived(cls):  # type: ignore[misc, valid-type]
        """Says more."""

        def show(self, word: str) -> str:
            return f"{super().show(word)}!"

    assert Derived().show("a") == "a!"
    assert Derived().tell("a") == "a"
    assert "tell" not in vars(Derived)
    assert isinstance(vars(cls)["tell"], FunctionType)


def test_many_threads_may_look_it_up_at_once() -> None:
    for _ in range(20):
        cls = fresh([])
        start = threading.Barrier(8)

        def use(number: int, cls: Any = cls, start: threading.Barrier = start) -> Any:
            start.wait()
            return cls().show(str(number))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(use, range(8))) == [str(number) for number in range(8)]
