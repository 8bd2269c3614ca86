"""The entries of the catalogue for servers that need an account.

Names and arguments are compared with the lists of the real servers, and those lists with the servers. The real servers
are run without an account, against stand-ins of their APIs: what was done is taken back, a kill repeats nothing, and an
error that the server tells in an ordinary answer is an error. Only Linear has a stand-in of the server.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

import amends
from amends.gateway import catalogue
from amends.gateway.config import ToolTable
from tests.adapters.loops import on_a_loop
from tests.gateway import stand_in
from tests.gateway.account_api import Api, Thing, issue, serving
from tests.gateway.accounts import ACCOUNTS, listed, tools_of
from tests.gateway.desk import Desk, Plan, text

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
Calls = list[tuple[str, dict[str, Any]]]
REPO = {"owner": "o", "repo": "r"}
HOSTS = {
    "github": "api.github.com",
    "gmail": "gmail.googleapis.com",
    "google-calendar": "www.googleapis.com",
    "notion": "api.notion.com",
    "slack": "slack.com",
    "stripe": "api.stripe.com",
}
PAGE = {"object": "page", "id": "p", "in_trash": False, "parent": {"type": "page_id", "page_id": "old"}}
LUNCH = {"summary": "Lunch", "start": "2026-01-01T10:00:00", "end": "2026-01-01T11:00:00"}
BEFORE: dict[str, dict[str, dict[str, Thing]]] = {
    "github": {
        "issue": {
            "7": issue(7, title="Old", labels=["bug"], assignees=["ann"]),
            "8": issue(8, title="Old", body="Text"),
        },
    },
    "linear": {
        "issue": {
            "i": {"id": "i", "labels": [{"id": "red"}], "project": {"id": "p1"}},
            "j": {"id": "j", "labels": [], "project": None},
        },
        "document": {"d": {"id": "d", "title": "Plan"}},
    },
    "notion": {
        "page": {"p": PAGE, "q": {**PAGE, "id": "q", "parent": {"type": "block_id", "block_id": "b"}}},
        "block": {"b": {"object": "block", "id": "b", "archived": False}},
    },
}
CALLS: dict[str, Calls] = {
    "github": [
        ("create_issue", {**REPO, "title": "New"}),
        ("create_pull_request", {**REPO, "title": "Change", "head": "a", "base": "main"}),
        ("update_issue", {**REPO, "issue_number": 7, "title": "New", "body": "x", "labels": [], "assignees": ["ben"]}),
        ("update_issue", {**REPO, "issue_number": 8, "body": "other", "state": "closed"}),
        ("update_issue", {**REPO, "issue_number": 7, "title": "Newer"}),
    ],
    "linear": [
        ("linear_createIssue", {"title": "t", "teamId": "x"}),
        ("linear_createComment", {"issueId": "i", "body": "hello"}),
        ("linear_createIssueRelation", {"issueId": "i", "relatedIssueId": "j", "type": "blocks"}),
        ("linear_createDocument", {"title": "t"}),
        ("linear_archiveDocument", {"id": "d"}),
        ("linear_createProject", {"name": "n", "teamIds": ["x"]}),
        ("linear_addIssueLabel", {"issueId": "i", "labelId": "blue"}),
        ("linear_addIssueLabel", {"issueId": "i", "labelId": "red"}),
        ("linear_removeIssueLabel", {"issueId": "i", "labelId": "red"}),
        ("linear_removeIssueLabel", {"issueId": "j", "labelId": "red"}),
        ("linear_addIssueToProject", {"issueId": "i", "projectId": "p2"}),
        ("linear_addIssueToProject", {"issueId": "j", "projectId": "p2"}),
    ],
    "notion": [
        ("API-post-page", {"parent": {"page_id": "p"}, "properties": {}}),
        ("API-patch-block-children", {"block_id": "b", "children": [{"paragraph": {}}, {"to_do": {}}]}),
        ("API-delete-a-block", {"block_id": "b"}),
        ("API-move-page", {"page_id": "p", "parent": {"type": "page_id", "page_id": "new"}}),
    ],
    "google-calendar": [
        ("create-event", {"calendarId": "primary", **LUNCH}),
        (
            "create-events",
            {"calendarId": "primary", "events": [{**LUNCH, "summary": one} for one in ("Tea", "Dinner")]},
        ),
    ],
    "gmail": [
        ("create_label", {"name": "Invoices"}),
        ("create_filter", {"criteria": {"from": "a@example.com"}, "action": {"addLabelIds": ["x"]}}),
        (
            "create_filter_from_template",
            {"template": "fromSender", "parameters": {"senderEmail": "a@example.com", "labelIds": ["x"]}},
        ),
    ],
    "slack": [],
    "stripe": [],
}
IDLE: Calls = [
    ("linear_addIssueLabel", {"issueId": "i", "labelId": "red"}),
    ("linear_removeIssueLabel", {"issueId": "j", "labelId": "red"}),
]
"""Calls that change nothing, and whose compensation must not, either."""
PIVOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "slack": ("slack_post_message", {"channel_id": "C1", "text": "hello"}),
    "stripe": ("create_customer", {"name": "Ann"}),
}
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "github": ("merge_pull_request", {**REPO, "pull_number": 7}),
    "gmail": ("send_email", {"to": ["a@example.com"], "subject": "s", "body": "b"}),
    "google-calendar": ("delete-event", {"calendarId": "primary", "eventId": "e"}),
    "linear": ("linear_createTeam", {"name": "n"}),  # nobody has declared it
    "notion": ("API-update-a-data-source", {"data_source_id": "d"}),
    "stripe": ("create_refund", {"payment_intent": "pi_1", "amount": 100}),
}


@dataclass
class World:
    """A gateway with one server, and what that server changes."""

    desk: Desk
    shown: Callable[[], Any]
    api: Api | None = None


@contextmanager
def world_of(folder: Path, name: str, *, plan: Plan | None = None) -> Iterator[World]:
    desk = Desk(folder)
    if name not in HOSTS:
        path = folder / "state.json"
        path.write_text(json.dumps(BEFORE[name]))
        command = [sys.executable, "-m", "tests.gateway.stand_in", name, str(path)]
        desk.add(name, command, plan=plan, env={"PYTHONPATH": "src:."}, catalogue=name)
        yield World(desk, lambda: seen(json.loads(path.read_text())))
        return
    with serving(HOSTS[name], BEFORE.get(name, {})) as (url, api):
        env = ACCOUNTS[name].environment(folder, api=url)
        desk.add(name, ACCOUNTS[name].command(), plan=plan, env=env, catalogue=name)
        yield World(desk, lambda: seen(api.books), api)
        assert api.unknown == []


def seen(books: dict[str, dict[str, Thing]]) -> dict[str, dict[str, Thing]]:
    """Return what people see: nothing that is closed, archived or in the trash."""
    gone = ("archived", "in_trash")
    kept = {
        kind: {
            name: {word: value for word, value in thing.items() if word not in gone}
            for name, thing in things.items()
            if thing.get("state") != "closed" and not any(thing.get(word) for word in gone)
        }
        for kind, things in books.items()
        if kind != "numbers"
    }
    return {kind: json.loads(json.dumps(things)) for kind, things in kept.items() if things}


# ---- The catalogue, the recorded lists and the real servers


def accounts() -> list[str]:
    return [name for name in catalogue.names() if catalogue.entry(name)["tested"] != "server"]


def compensatable(name: str) -> set[str]:
    return {tool for tool, said in catalogue.entry(name)["tools"].items() if said["kind"] == "compensatable"}


def test_every_entry_tries_all_that_can_be_taken_back() -> None:
    assert set(accounts()) == set(ACCOUNTS) == set(CALLS) == {*HOSTS, *stand_in.TABLE}
    for name in accounts():
        said = catalogue.entry(name)
        assert {tool for tool, _ in CALLS[name]} == compensatable(name), name
        assert all(one["why"] for one in said["tools"].values()), name
        assert said["tested"] == ("api" if name in HOSTS else "list"), name


@pytest.mark.parametrize("name", sorted(ACCOUNTS))
@on_a_loop
async def test_the_recorded_list_is_what_the_real_server_lists(tmp_path: Path, name: str) -> None:
    recorded = listed(name)
    assert (recorded["package"], recorded["version"]) == (ACCOUNTS[name].package, ACCOUNTS[name].version)
    assert await tools_of(ACCOUNTS[name], tmp_path) == recorded["tools"], "python -m tests.gateway.accounts"


@pytest.mark.parametrize("name", sorted(ACCOUNTS))
def test_the_entry_names_what_the_server_lists(name: str) -> None:
    recorded, said = listed(name), catalogue.entry(name)
    assert said["package"] == f"npm {recorded['package']} {recorded['version']}"
    assert said["listed"] == recorded["listed"]
    assert problems(said["tools"], recorded["tools"]) == []


def problems(declared: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    """Return what a declaration says of tools and arguments that the server does not have."""
    found = [f"{tool}: there is no such tool" for tool in declared if tool not in schemas]
    for tool in sorted(declared.keys() & schemas.keys()):
        table = ToolTable.model_validate(declared[tool])
        has = set(schemas[tool].get("properties", {}))
        named = set(re.findall(r"\$\{?args\.([A-Za-z_]\w*)", json.dumps(declared[tool])))
        named |= {table.key} if isinstance(table.key, str) else set(table.key or ())
        named |= {*(table.ignore or ()), *table.redact}
        found += [f"{tool}: there is no argument {one}" for one in sorted(named - has)]
        for part, one in asked_by(table):
            if one.tool not in schemas:
                found.append(f"{tool}.{part}: there is no tool {one.tool}")
                continue
            takes, needs = set(schemas[one.tool].get("properties", {})), set(schemas[one.tool].get("required", ()))
            found += [f"{tool}.{part}: {one.tool} has no argument {arg}" for arg in sorted(set(one.args) - takes)]
            found += [f"{tool}.{part}: {one.tool} needs {arg}" for arg in sorted(needs - set(one.args))]
    return found


def asked_by(table: ToolTable) -> Iterator[tuple[str, Any]]:
    """Return each request of a declaration, with the part that makes it."""
    for part in ("before", "guard", "probe"):
        if getattr(table, part) is not None:
            yield part, getattr(table, part)
    for one in table.compensate.calls if table.compensate else ():
        yield "compensate", one


def test_a_wrong_name_in_an_entry_is_noticed() -> None:
    schemas = listed("github")["tools"]
    good = catalogue.entry("github")["tools"]
    for wrong in (
        {"close_issue": good["create_issue"]},
        {"create_issue": {**good["create_issue"], "compensate": {"tool": "close_issue", "args": {}}}},
        {
            "create_issue": {
                **good["create_issue"],
                "compensate": {"tool": "update_issue", "args": {"number": 1, **REPO}},
            }
        },
        {"create_issue": {**good["create_issue"], "key": "name"}},
        {"update_issue": {**good["update_issue"], "locks": ["issue:${args.number}"]}},
        {"update_issue": {**good["update_issue"], "before": {"tool": "get_issue", "args": REPO}}},
    ):
        assert problems(wrong, schemas), wrong
    assert problems(good, schemas) == []


@pytest.mark.parametrize("name", sorted(ACCOUNTS))
def test_a_tool_that_the_entry_leaves_out_is_no_secret(name: str) -> None:
    """Such a tool needs approval for each call; only Linear has some, and its entry says so."""
    left = listed(name)["tools"].keys() - catalogue.entry(name)["tools"].keys()
    assert not left or "needs approval for each call" in catalogue.entry(name)["about"], sorted(left)


# ---- What the servers do


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name]])
@on_a_loop
async def test_what_was_done_is_taken_back(tmp_path: Path, name: str) -> None:
    with world_of(tmp_path, name) as world:
        before = world.shown()
        async with world.desk.client() as client:
            await client.call_tool("amends_begin", {"run": "undone"})
            for tool, args in CALLS[name]:
                was = world.shown()
                said = await client.call_tool(tool, args)
                assert not said.is_error, (tool, text(said))
                assert (world.shown() != was) is ((tool, args) not in IDLE), tool
            undone = text(await client.call_tool("amends_rollback", {}))
            assert f"{len(CALLS[name])} of {len(CALLS[name])} calls undone" in undone, undone
        assert world.shown() == before


@pytest.mark.parametrize("who", ["gateway", "server"])
@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name]])
@on_a_loop
async def test_a_kill_between_effect_and_record_repeats_nothing(tmp_path: Path, name: str, who: str) -> None:
    tool, args = CALLS[name][0]
    with world_of(tmp_path, name, plan=(tool, who, "after")) as world:
        before = world.shown()
        with suppress(MCPError, BaseExceptionGroup):
            async with world.desk.client() as client:
                await client.call_tool("amends_begin", {"run": "killed"})
                await client.call_tool(tool, args)
        assert (tmp_path / f"{name}.killed").exists()
        left = world.shown()
        assert left != before
        async with world.desk.client() as client:
            assert (await client.call_tool(tool, args)).is_error
            assert world.shown() == left, "it was not made again"
            [made] = new(before, left)
            with amends.Runtime(world.desk.url) as rt:
                [call] = rt.report("killed").calls
                assert call.state == "in_doubt"
                answer = {"content": [{"type": "text", "text": ANSWERS[name](made)}]}
                rt.resolve(call.id, amends.Happened(answer), by="ann", why="it is in the books")
            assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}))
        assert world.shown() == before


ANSWERS: dict[str, Callable[[Thing], str]] = {
    "github": json.dumps,
    "gmail": lambda made: f"ID: {made['id']}",
    "google-calendar": lambda made: json.dumps({"event": {**made, "calendarId": "primary", "accountId": "normal"}}),
    "linear": json.dumps,
    "notion": json.dumps,
}
"""What the first call would have returned, for the thing that it made."""


def new(before: Any, after: Any) -> list[Thing]:
    """Return the things that were made."""
    return [
        thing for kind, things in after.items() for name, thing in things.items() if name not in before.get(kind, {})
    ]


@pytest.mark.parametrize("name", PIVOTS)
@on_a_loop
async def test_what_cannot_be_taken_back_is_named(tmp_path: Path, name: str) -> None:
    tool, args = PIVOTS[name]
    with world_of(tmp_path, name) as world:
        async with world.desk.client() as client:
            assert not (await client.call_tool(tool, args)).is_error
            made = world.shown()
            assert made
            assert not (await client.call_tool(tool, args)).is_error
            assert world.shown() == made, "a repeat is answered from the record"
            assert tool in text(await client.call_tool("amends_rollback", {}))
        assert world.shown() == made


@pytest.mark.parametrize("name", HELD)
@on_a_loop
async def test_what_does_most_harm_waits_for_a_person(tmp_path: Path, name: str) -> None:
    tool, args = HELD[name]
    with world_of(tmp_path, name) as world:
        before = world.shown()
        async with world.desk.client() as client:
            assert "approval" in text(await client.call_tool(tool, args))
        assert world.shown() == before
        with amends.Runtime(world.desk.url) as rt:
            [asked] = list(rt.approvals())
            assert asked.call.tool == f"{name}.{tool}"


REFUSED: dict[str, tuple[str, dict[str, Any], str, tuple[int, Any]]] = {
    "github": ("create_issue", {**REPO, "title": "x"}, "POST /repos/o/r/issues", (422, {"message": "Validation Failed"})),
    "gmail": (
        "create_label", {"name": "x"}, "POST /gmail/v1/users/me/labels",
        (409, {"error": {"code": 409, "message": "Label name exists"}}),
    ),
    "google-calendar": (
        "create-event", {"calendarId": "primary", **LUNCH}, "POST /calendar/v3/calendars/primary/events",
        (403, {"error": {"code": 403, "message": "Forbidden"}}),
    ),
    "notion": (
        "API-post-page", {"parent": {"page_id": "p"}, "properties": {}}, "POST /v1/pages",
        (400, {"object": "error", "status": 400, "code": "validation_error", "message": "No."}),
    ),
    "slack": (
        "slack_post_message", {"channel_id": "C1", "text": "x"}, "POST /api/chat.postMessage",
        (200, {"ok": False, "error": "is_archived"}),
    ),
}  # fmt: skip
"""A call, the request that it makes, and how the API refuses it."""


@pytest.mark.parametrize("name", REFUSED)
@on_a_loop
async def test_what_the_api_refuses_has_failed(tmp_path: Path, name: str) -> None:
    """Some of these servers tell it in an ordinary answer."""
    tool, args, request, answer = REFUSED[name]
    assert await outcome(tmp_path, name, (tool, args), {request: answer}) == "failed"


LOST: dict[str, tuple[int, Any]] = {
    "github": (502, {"message": "Server Error"}),
    "gmail": (500, {"error": {"code": 500, "message": "Internal error encountered."}}),
    "google-calendar": (500, {"error": {"code": 500, "message": "Backend Error"}}),
    "notion": (
        500, {"object": "error", "status": 500, "code": "internal_server_error", "message": "Internal server error."},
    ),
}  # fmt: skip
"""How the API says that it does not know what it has done."""


@pytest.mark.parametrize("name", LOST)
@on_a_loop
async def test_what_the_api_does_not_know_is_in_doubt(tmp_path: Path, name: str) -> None:
    tool, args, request, _ = REFUSED[name]
    assert await outcome(tmp_path, name, (tool, args), {request: LOST[name]}) == "in_doubt"


@on_a_loop
async def test_a_failure_that_the_server_does_not_explain_is_in_doubt(tmp_path: Path) -> None:
    answer = (402, {"error": {"type": "card_error", "message": "No."}})
    assert await outcome(tmp_path, "stripe", PIVOTS["stripe"], {"POST /v1/customers": answer}) == "in_doubt"


async def outcome(folder: Path, name: str, call: tuple[str, Any], failing: dict[str, tuple[int, Any]]) -> str:
    """Return the state of a call to which the API answers with an error."""
    with world_of(folder, name) as world:
        assert world.api is not None
        world.api.failing = failing
        async with world.desk.client() as client:
            await client.call_tool("amends_begin", {"run": "refused"})
            assert (await client.call_tool(*call)).is_error
        [request] = failing
        assert request in world.api.asked
        with amends.Runtime(world.desk.url) as rt:
            [one] = rt.report("refused").calls
            return str(one.state)


@pytest.mark.parametrize(
    "name, tool, args",
    [
        ("github", "update_issue", {**REPO, "issue_number": 7, "milestone": 3}),
        ("notion", "API-move-page", {"page_id": "q", "parent": {"type": "page_id", "page_id": "new"}}),
    ],
)
@on_a_loop
async def test_a_change_that_could_not_be_put_back_is_refused(tmp_path: Path, name: str, tool: str, args: Any) -> None:
    with world_of(tmp_path, name) as world:
        before = world.shown()
        async with world.desk.client() as client:
            said = await client.call_tool(tool, args)
        assert said.is_error
        assert "could not be put back" in text(said)
        assert world.shown() == before
