"""What ``help`` and an editor show: every parameter of ``tool`` and of the runtimes, with its meaning."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.host.settings import DEFAULTS
from amends.tools.spec import ClassOptions


def told(thing: Any) -> dict[str, str]:
    """Return the parameters that the docstring names, each with what it says."""
    text = inspect.getdoc(thing) or ""
    parts = re.split(r"^``(\w+)``: ", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (" ".join(part.split()) for part in parts[1::2]), strict=True))


@pytest.mark.parametrize("thing", [Runtime, AsyncRuntime, tool], ids=["Runtime", "AsyncRuntime", "tool"])
def test_help_has_every_parameter_with_its_meaning(thing: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(thing))
    parameters = [name for name in inspect.signature(thing).parameters if name != "target"]
    assert set(told(thing)) == set(parameters)
    assert all(len(meaning) > 20 and meaning.endswith(".") for meaning in told(thing).values())
    assert all(f"``{name}``: " in shown for name in parameters)


def test_both_runtimes_say_the_same() -> None:
    assert told(Runtime) == told(AsyncRuntime)


def test_the_signature_of_tool_has_every_option_and_no_others() -> None:
    target, *options = inspect.signature(tool).parameters.values()
    assert (target.name, [one.name for one in options[:2]]) == ("target", ["name", "kind"])
    assert {one.name for one in options} == set(ClassOptions.__annotations__)
    assert {one.kind for one in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert "name: 'str' = ..., kind: 'Kind' = ..." in str(inspect.signature(tool))


@pytest.mark.parametrize("name", [name for name in told(Runtime) if isinstance(DEFAULTS.get(name), int | float)])
def test_a_default_that_is_said_is_the_default(name: str) -> None:
    said = re.search(r"Default: ([\w. ]+?)[.;]?(?: say .*)?$", told(Runtime)[name])
    assert said is not None, f"{name} has a default, and its meaning does not say which"
    default = DEFAULTS[name]
    assert said[1].rstrip(".") == (
        "1 MiB" if name == "payload_bytes_max" else f"{default:g}" if isinstance(default, float) else str(default)
    )
