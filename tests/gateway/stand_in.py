"""A stand-in for the Linear MCP server, which speaks GraphQL to its API: ``python -m tests.gateway.stand_in ENTRY STATE.json``.

Its tools and their schemas are those that the real server listed (``listed/ENTRY.json``), and it refuses arguments that
the real one does not have. It does what ``TABLE`` says with the state in a file. A tool that is not in the table fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from tests.gateway.accounts import listed

State = dict[str, dict[str, Any]]
"""Things by kind and id."""
Does = Callable[[State, dict[str, Any]], Any]


class Refused(Exception):
    """What the API says no to."""


def found(state: State, kind: str, key: Any) -> dict[str, Any]:
    try:
        return state[kind][str(key)]  # type: ignore[no-any-return]
    except KeyError:
        raise Refused(f"{kind} {key}: not found") from None


def makes(kind: str, *, wrapped: str = "", **more: Any) -> Does:
    """Make a thing of the arguments, under a new id."""

    def does(state: State, args: dict[str, Any]) -> Any:
        things, numbers = state.setdefault(kind, {}), state.setdefault("numbers", {})
        number = numbers[kind] = numbers.get(kind, 0) + 1
        things[f"{kind}-{number}"] = {**json.loads(json.dumps(more)), **args, "id": f"{kind}-{number}"}
        return {wrapped: things[f"{kind}-{number}"]} if wrapped else things[f"{kind}-{number}"]

    return does


def removes(kind: str, arg: str) -> Does:
    def does(state: State, args: dict[str, Any]) -> Any:
        found(state, kind, args[arg])
        del state[kind][str(args[arg])]
        return {"success": True}

    return does


def gets(kind: str, arg: str) -> Does:
    return lambda state, args: found(state, kind, args[arg])


def sets(kind: str, arg: str, **values: Any) -> Does:
    """Set values of a thing."""

    def does(state: State, args: dict[str, Any]) -> Any:
        thing = found(state, kind, args[arg])
        thing |= values
        return {"success": True, "id": args[arg]}

    return does


def label(state: State, args: dict[str, Any], *, has: bool) -> Any:
    issue = found(state, "issue", args["issueId"])
    others = [one for one in issue["labels"] if one["id"] != args["labelId"]]
    if has is (others == issue["labels"]):
        issue["labels"] = [*others, {"id": args["labelId"]}] if has else others
    return {"success": True}


def into_project(state: State, args: dict[str, Any]) -> Any:
    found(state, "issue", args["issueId"])["project"] = {"id": args["projectId"]}
    return {"success": True}


def out_of_project(state: State, args: dict[str, Any]) -> Any:
    issue = found(state, "issue", args["issueId"])
    if issue["project"] != {"id": args["projectId"]}:
        raise Refused(f"Issue {args['issueId']} is not associated with project {args['projectId']}")
    issue["project"] = None
    return {"success": True}


TABLE: dict[str, dict[str, Does]] = {
    "linear": {
        "linear_createIssue": makes("issue", labels=[], project=None),
        "linear_archiveIssue": sets("issue", "issueId", archived=True),
        "linear_getIssueById": gets("issue", "id"),
        "linear_createComment": makes("comment"),
        "linear_deleteComment": removes("comment", "id"),
        "linear_createIssueRelation": makes("relation", wrapped="relation"),
        "linear_deleteIssueRelation": removes("relation", "id"),
        "linear_createDocument": makes("document"),
        "linear_archiveDocument": sets("document", "id", archived=True),
        "linear_unarchiveDocument": sets("document", "id", archived=False),
        "linear_createProject": makes("project"),
        "linear_archiveProject": sets("project", "projectId", archived=True),
        "linear_addIssueLabel": lambda state, args: label(state, args, has=True),
        "linear_removeIssueLabel": lambda state, args: label(state, args, has=False),
        "linear_addIssueToProject": into_project,
        "linear_removeIssueFromProject": out_of_project,
    },
}


def check_arguments(schema: dict[str, Any], args: dict[str, Any]) -> None:
    """Raise ``Refused`` for arguments that the real server does not have, or of another type."""
    if unknown := sorted(set(args) - set(schema.get("properties", {}))):
        raise Refused(f"there is no argument {', '.join(unknown)}")
    try:
        jsonschema.validate(args, schema)
    except jsonschema.ValidationError as error:
        raise Refused(error.message) from None


async def serve(entry: str, path: Path) -> None:
    schemas: dict[str, Any] = listed(entry)["tools"]

    async def tools(_ctx: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name=name, input_schema=schema) for name, schema in schemas.items()])

    async def called(_ctx: Any, params: Any) -> CallToolResult:
        state: State = json.loads(path.read_text()) if path.exists() else {}
        args = dict(params.arguments or {})
        try:
            if params.name not in TABLE[entry]:
                raise Refused(f"the stand-in does nothing for {params.name}")
            check_arguments(schemas[params.name], args)
            answer = TABLE[entry][params.name](state, args)
        except Refused as refusal:
            return CallToolResult(content=[TextContent(text=f"Error: {refusal}")], is_error=True)
        path.write_text(json.dumps(state))
        return CallToolResult(content=[TextContent(text=json.dumps(answer))])

    server = Server(f"stand-in-{entry}", on_list_tools=tools, on_call_tool=called)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
