"""One module for each framework or SDK, named after its distribution; each is an extra of its own.

Here: what several of them need: to recognize an agent that is called as a tool, and to record a request in one form.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_FUNCTIONS: Final = frozenset(
    {
        "all", "any", "bool", "dict", "enumerate", "float", "format", "frozenset", "int", "isinstance", "len", "list",
        "max", "min", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
    }
)  # fmt: skip
"""Built-in functions that change nothing."""
DEPTH_MAX: Final = 10
_PLAIN: Final = (str, bytes, int, float, bool, type(None))
_FRAMEWORKS: Final = ("langchain", "langgraph", "pydantic", "pydantic_ai", "typing", "datetime", "decimal", "uuid")
_REFUSED: Final = (
    ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
    ast.Lambda, ast.Delete, ast.Yield, ast.YieldFrom,
)  # fmt: skip


def agents_run_by(function: Any, is_agent: Callable[[object], bool]) -> list[object]:
    """Return the agents that a tool's function runs, if it certainly does nothing else; otherwise an empty list.

    Besides methods of agents it may call a few built-in functions, classes that only hold data, and methods of values
    that it made itself or that are plain. Everything else might have an effect that nothing records.
    """
    tree = _definition_of(function)
    if tree is None:
        return []
    values = {**function.__globals__, **_closure_of(function)}
    own = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    own |= {one.name for one in ast.walk(tree) if isinstance(one, ast.ExceptHandler) and one.name}
    given = {one.arg: one.annotation for one in _parameters_of(tree)}
    found: list[object] = []
    for statement in tree.body:
        for node, above in _nodes(statement, ()):
            if isinstance(node, _REFUSED) or _stores_elsewhere(node):
                return []
            if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store) or node.id in own - given.keys():
                continue
            if node.id in given:
                is_harmless = _is_plain_name(given[node.id]) or _goes_to_agent(node, above, values, is_agent)
            elif node.id in values and is_agent(values[node.id]):
                is_harmless = _is_callee(above)
                found.append(values[node.id])
            else:
                is_harmless = _is_data(node.id, values) and not _is_callee(above)
            if not is_harmless:
                return []
    return found


def _definition_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        return None  # what wraps it may do anything
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # it has no source: made in a console, or a part of a line
        return None
    is_whole = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and tree.name == function.__name__
    return tree if is_whole else None  # type: ignore[return-value]


def _closure_of(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def _parameters_of(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    said = tree.args
    rest = [one for one in (said.vararg, said.kwarg) if one is not None]
    return [*said.posonlyargs, *said.args, *said.kwonlyargs, *rest]


def _nodes(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yield every node below, with the nodes above it, the nearest first."""
    yield node, above
    for one in ast.iter_child_nodes(node):
        yield from _nodes(one, (node, *above))


def _stores_elsewhere(node: ast.AST) -> bool:
    """Return whether this changes a value that the function has not made, or calls what it has only a name for."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return True
    return isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute)


def _is_callee(above: tuple[ast.AST, ...]) -> bool:
    """Return whether the name is the agent of ``agent.method(...)``."""
    if len(above) < 2:
        return False
    method, call = above[0], above[1]
    return isinstance(method, ast.Attribute) and isinstance(call, ast.Call) and call.func is method


def _goes_to_agent(
    node: ast.AST, above: tuple[ast.AST, ...], values: Mapping[str, Any], is_agent: Callable[[object], bool]
) -> bool:
    """Return whether a parameter is only passed on to an agent: what it does with it is guarded."""
    below: ast.AST = node
    for one in above:
        if isinstance(one, ast.Call):
            if one.func is below:
                return False  # it is called itself
            root = one.func.value if isinstance(one.func, ast.Attribute) else None
            return isinstance(root, ast.Name) and root.id in values and is_agent(values[root.id])
        below = one
    return False


def _is_plain_name(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Annotated":
        said = annotation.slice
        return isinstance(said, ast.Tuple) and _is_plain_name(said.elts[0])
    return isinstance(annotation, ast.Name) and annotation.id in ("str", "int", "float", "bool", "bytes")


def _is_data(name: str, values: Mapping[str, Any]) -> bool:
    if name not in values:
        return name in _FUNCTIONS or (name.endswith(("Error", "Exception")) and name[0].isupper())
    value = values[name]
    if isinstance(value, type):
        is_known = value.__module__.partition(".")[0].startswith(_FRAMEWORKS) or value.__module__ == "builtins"
        return is_known or dataclasses.is_dataclass(value) or hasattr(value, "model_fields") or _is_typed_dict(value)
    return _is_plain(value, DEPTH_MAX)


def _is_plain(value: object, depth: int) -> bool:
    """Return whether this is plain data all the way down."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(one, depth - 1) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
    return isinstance(value, _PLAIN)


def _is_typed_dict(value: type) -> bool:
    return hasattr(value, "__required_keys__")


# ---- A request in one form


PLAIN_DEPTH_MAX: Final = 32
"""How deep sets are looked for in a request."""


def in_order(plain: Any, value: Any, depth: int = PLAIN_DEPTH_MAX) -> Any:
    """Return ``plain``, the JSON form of ``value``, with the members of every set in it sorted.

    The order that a set itself has is another one in each process: the same request would be another call after a restart.
    """
    if depth == 0:
        return plain
    inner = _parts(value)
    if isinstance(plain, dict):
        pairs = inner if isinstance(inner, dict) else {}
        return {name: in_order(one, pairs[name], depth - 1) if name in pairs else one for name, one in plain.items()}
    if isinstance(inner, dict) and inner.keys() == {"root"}:  # a model that is one value
        return in_order(plain, inner["root"], depth - 1)
    if not isinstance(plain, list) or not isinstance(inner, list) or len(plain) != len(inner):
        return plain
    made = [in_order(one, of, depth - 1) for one, of in zip(plain, inner, strict=True)]
    is_set = isinstance(value, set | frozenset)
    return sorted(made, key=lambda one: json.dumps(one, sort_keys=True, default=str)) if is_set else made


def _parts(value: Any) -> dict[str, Any] | list[Any] | None:
    """Return what a value consists of, by every name that its JSON form may have for it; None: it has no parts."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return {str(getattr(name, "value", name)): one for name, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    fields = getattr(type(value), "model_fields", None) or getattr(type(value), "__fields__", None)  # pydantic 2, or 1
    if not isinstance(fields, Mapping):
        return None
    found: dict[str, Any] = {}
    for name, field in fields.items():
        names = (name, getattr(field, "alias", None), getattr(field, "serialization_alias", None))
        found |= {one: getattr(value, name, None) for one in names if isinstance(one, str)}
    return found
