"""Both colours have the same names with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from amends import AsyncAttempt, AsyncRun, AsyncRuntime, Attempt, Run, Runtime

PAIRS = [(Runtime, AsyncRuntime), (Run, AsyncRun), (Attempt, AsyncAttempt)]


def _public(cls: type) -> dict[str, object]:
    bases = [base for base in reversed(cls.__mro__) if base.__module__.startswith("amends")]
    # Looked up by getattr: some verbs are made when somebody asks for them.
    return {name: getattr(cls, name) for base in bases for name in vars(base) if not name.startswith("_")}


@pytest.mark.parametrize("blocking, looped", PAIRS, ids=lambda cls: cls.__name__)
def test_the_public_names_are_the_same(blocking: type, looped: type) -> None:
    assert set(_public(blocking)) == set(_public(looped))


@pytest.mark.parametrize("blocking, looped", PAIRS, ids=lambda cls: cls.__name__)
def test_the_parameters_are_the_same(blocking: type, looped: type) -> None:
    for name, value in {**_public(blocking), "__init__": vars(blocking).get("__init__", object.__init__)}.items():
        if not callable(value) or (name == "__init__" and blocking is not Runtime):
            continue
        here = inspect.signature(value).parameters.values()
        there = inspect.signature(getattr(looped, name)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in here] == [(p.name, p.kind, p.default) for p in there], name


@pytest.mark.parametrize("blocking, looped", PAIRS, ids=lambda cls: cls.__name__)
def test_properties_are_properties_in_both_and_are_not_awaited(blocking: type, looped: type) -> None:
    for name, value in _public(blocking).items():
        other = _public(looped)[name]
        assert isinstance(value, property) == isinstance(other, property), name
        if isinstance(other, property):
            assert not inspect.iscoroutinefunction(other.fget), name


@pytest.mark.parametrize("cls", [Runtime, AsyncRuntime], ids=lambda cls: cls.__name__)
def test_every_verb_looks_like_a_method_that_was_written_here(cls: type) -> None:
    for name, value in _public(cls).items():
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            assert value.__name__ == name
            assert not {"host", "view"} & {*inspect.signature(value).parameters, *value.__annotations__}, name
            assert not inspect.iscoroutinefunction(inspect.unwrap(value)) or cls is AsyncRuntime, name


def test_what_drives_a_flow_is_a_coroutine_function_on_an_event_loop() -> None:
    for name in ("approve", "report", "resolve", "gc", "schema", "export", "test_rules"):
        assert inspect.iscoroutinefunction(getattr(AsyncRuntime, name)), name
        assert not inspect.iscoroutinefunction(getattr(Runtime, name)), name


def test_run_and_open_take_the_same_options() -> None:
    for cls in (Runtime, AsyncRuntime):
        assert [*inspect.signature(cls.run).parameters] == [*inspect.signature(cls.open).parameters]


def test_instances_have_the_same_public_attributes() -> None:
    import asyncio

    async def names() -> set[str]:
        rt = AsyncRuntime("memory:")
        async with rt.run("r") as run:
            found = {name for name in vars(run) if not name.startswith("_")}
        await rt.close()
        return found

    with Runtime("memory:").run("r") as run:
        blocking = {name for name in vars(run) if not name.startswith("_")}
    assert blocking == asyncio.run(names()) == {"id", "tenant", "input", "resumed", "generation", "note"}
