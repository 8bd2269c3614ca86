"""Tools declared in ``amends.toml``: its ``[[tools]]`` tables, for tools whose body is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

from amends.errors import BadConfig, BadDeclaration, close_to
from amends.tools.compensation import found_at
from amends.tools.declarations import check_described, declaration
from amends.tools.spec import Declaration, DeclareOptions

TOOLS_MAX: Final = 1_000
NOT_IN_A_TABLE: Final = frozenset({"locks"})
"""Options that are functions of the call, and can be given in Python only."""
WORDS: Final = ("name", "like", *sorted(set(DeclareOptions.__annotations__) - NOT_IN_A_TABLE))
RULES: Final = ("needs_approval", "cost", "key")
"""Options that may be a function of the call, in a table as "package.module:name"."""


Table: TypeAlias = Mapping[str, Any]


def declared_in(table: Table, origin: str) -> Declaration:
    """Return the declaration of one table; functions that it names by path are imported."""
    name = table["name"]

    def found(word: str, path: Any) -> Any:
        def refuse(problem: str) -> NoReturn:
            raise BadDeclaration(f"{name}: its {word} {problem}", tool=name, where=origin)

        if not isinstance(path, str):
            refuse(f'is {path!r}; it is a path such as "package.module:name"')
        return found_at(path, refuse)

    def meant(word: str, value: Any) -> Any:
        if word == "doubt":
            return tuple(found(word, path) for path in (value if isinstance(value, list) else [value]))
        if word in RULES and isinstance(value, str) and ":" in value:
            return found(word, value)
        return tuple(value) if isinstance(value, list) else value

    options = {word: meant(word, value) for word, value in table.items() if word not in ("name", "like")}
    made = declaration(name, origin, options=options)
    if "like" in table:
        made.like = found("like", table["like"])
        check_described(made.like, name, origin)
    return made


def checked_tools(tables: object, origin: str = "argument") -> tuple[Table, ...]:
    """Check that each table has a name and only known options; raise ``BadConfig``. Values are checked later."""
    if isinstance(tables, Mapping | str) or not isinstance(tables, Iterable):
        raise _bad(f"tools is a list of tables, [[tools]], not {type(tables).__name__}", origin)
    made = tuple(_checked(table, number, origin) for number, table in enumerate(tables, 1))
    if len(made) > TOOLS_MAX:
        raise _bad(f"there are {len(made)} tools; at most {TOOLS_MAX}", origin)
    return made


def _checked(table: object, number: int, origin: str) -> Table:
    if not isinstance(table, Mapping):
        raise _bad(f"tool {number} is {table!r}, which is not a table", origin)
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise _bad(f'tool {number} has no name: name = "charge"', origin)
    strange = sorted(set(table) - set(WORDS))
    if strange:
        close = close_to(strange[0], WORDS, cutoff=0.4)
        why = "is a function, so it needs Python" if strange[0] in NOT_IN_A_TABLE else "is not an option of a tool"
        raise _bad(f"{name}: {strange[0]!r} {why}" + (f"; did you mean {close[0]!r}?" if close else ""), origin)
    return dict(table)


def _bad(what: str, origin: str) -> BadConfig:
    return BadConfig(f"{what} ({origin})", setting="tools", origin=origin)
