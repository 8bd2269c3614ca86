"""After an error of the infrastructure a model is not told to correct its arguments; `x: str = None` takes null."""

from __future__ import annotations

import errno

import pytest

from amends import Runtime, tool
from amends.errors import ToolFailed

INFRASTRUCTURE: list[Exception] = [
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    OSError(errno.ENOSPC, "No space left on device"),
    MemoryError(),
    ImportError("no module named stripe"),
    AssertionError("broken"),
    NotImplementedError("soon"),
    RecursionError("too deep"),
]
ARGUMENTS: list[Exception] = [
    ValueError("address unknown"),
    KeyError("order"),
    TypeError("no"),
    FileNotFoundError(errno.ENOENT, "No such file", "/tmp/x"),
    PermissionError(errno.EACCES, "Permission denied", "/etc/shadow"),
    type("CardDeclined", (Exception,), {})("declined"),
]


def _told(error: Exception) -> str:
    @tool(kind="read")
    def ship(to: str) -> str:
        raise error

    with Runtime("memory:", tools=[ship]).run() as run:
        return run.answer("ship", {"to": "x"}).text


@pytest.mark.parametrize("error", INFRASTRUCTURE, ids=lambda one: type(one).__name__)
def test_an_error_of_the_infrastructure_is_not_blamed_on_the_arguments(error: Exception) -> None:
    text = _told(error)
    assert "correct the arguments" not in text
    assert "with the same ones, or stop and tell the user" in text


@pytest.mark.parametrize("error", ARGUMENTS, ids=lambda one: type(one).__name__)
def test_another_error_may_be_about_the_arguments(error: Exception) -> None:
    assert _told(error).endswith("You may correct the arguments and call it again.")


def test_a_recorded_failure_says_the_same() -> None:
    for name, is_infrastructure in (
        ("ConnectionRefusedError", True),
        ("builtins.OSError", True),
        ("ValueError", False),
    ):
        text = ToolFailed("no", call=None, type_name=name).for_model()
        assert ("correct the arguments" not in text) == is_infrastructure


def test_a_default_of_none_makes_an_argument_optional() -> None:
    @tool(kind="read")
    def find(x: str = None, n: list[int] = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{x} {n}"

    rt = Runtime("memory:", tools=[find])
    properties = rt.schemas()[0]["function"]["parameters"]["properties"]
    assert properties["x"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    with rt.run() as run:
        assert find() == find(x=None) == "None None"  # type: ignore[arg-type]
        assert find("a", None) == "a None"  # type: ignore[arg-type]
        assert run.answer("find", {"x": None, "n": [1]}).value == "None [1]"
        assert run.answer("find", {"x": 5}).status == "refused"
