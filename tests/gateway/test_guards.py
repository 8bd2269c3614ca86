"""What somebody else has changed since is left as it is, and a compensation that the server refuses is not called done."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import amends
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, entity, pypi_server, text, unavailable
from tests.gateway.test_gateway import until_done

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def left_standing(desk: Desk, run: str) -> list[str]:
    """Return the tools whose calls were left as they are; the run must say so."""
    with amends.Runtime(desk.url) as rt:
        report = rt.report(run)
        assert report.state != "rolled_back", report.state
        return sorted(call.tool for call in report.calls if call.state == "compensation_failed")


async def rolled_back(client: Any) -> str:
    return text(await client.call_tool("amends_rollback", {}))


PARTLY = "could not be taken back completely"


@on_a_loop
async def test_a_file_that_somebody_else_changed_since_is_not_overwritten(desk: Desk) -> None:
    for name in ("written.txt", "edited.txt", "mine.txt"):
        (desk.data / name).write_text("old\n")
    desk.files()
    edits = [{"oldText": "old", "newText": "new"}]
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "files"})
        for name in ("written.txt", "made.txt", "mine.txt"):
            await client.call_tool("write_file", {"path": str(desk.data / name), "content": "new\n"})
        await client.call_tool("edit_file", {"path": str(desk.data / "edited.txt"), "edits": edits})
        for name in ("written.txt", "made.txt", "edited.txt"):
            with (desk.data / name).open("a") as file:
                file.write("a line of somebody else\n")
        assert PARTLY in await rolled_back(client)
    theirs = "new\na line of somebody else\n"
    assert desk.tree() == {"written.txt": theirs, "made.txt": theirs, "edited.txt": theirs, "mine.txt": "old\n"}
    assert left_standing(desk, "files") == ["files.edit_file", "files.write_file", "files.write_file"]


@on_a_loop
async def test_a_folder_into_which_somebody_else_put_something_stays(desk: Desk) -> None:
    desk.files()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "folder"})
        for name in ("theirs", "mine"):
            await client.call_tool("create_directory", {"path": str(desk.data / name)})
        (desk.data / "theirs" / "note.txt").write_text("keep me")
        assert PARTLY in await rolled_back(client)
    assert desk.tree() == {"theirs/note.txt": "keep me"}
    assert not (desk.data / "mine").exists()


@on_a_loop
async def test_a_name_that_was_taken_since_is_not_overwritten_by_moving_back(desk: Desk) -> None:
    (desk.data / "a.txt").write_text("first")
    desk.files()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "moved"})
        moved = {"source": str(desk.data / "a.txt"), "destination": str(desk.data / "b.txt")}
        await client.call_tool("move_file", moved)
        (desk.data / "a.txt").write_text("second")
        await rolled_back(client)
    assert desk.tree() == {"a.txt": "second", "b.txt": "first"}
    assert left_standing(desk, "moved") == ["files.move_file"]


@on_a_loop
async def test_bytes_mode_and_links_are_as_before(desk: Desk) -> None:
    odd = "\ufefffirst\r\nsecond\nthird\u2028 \U0001f600".encode()
    (desk.data / "odd.txt").write_bytes(odd)
    (desk.data / "script.sh").write_text("#!/bin/sh\n")
    (desk.data / "script.sh").chmod(0o750)
    (desk.data / "link.txt").symlink_to(desk.data / "target.txt")
    (desk.data / "target.txt").write_text("target")
    outside = desk.folder / "outside.txt"
    outside.write_text("outside")
    (desk.data / "out.txt").symlink_to(outside)
    desk.files()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {})
        for name in ("odd.txt", "script.sh", "link.txt"):
            said = await client.call_tool("write_file", {"path": str(desk.data / name), "content": "changed"})
            assert not said.is_error, text(said)
        refused = await client.call_tool("write_file", {"path": str(desk.data / "out.txt"), "content": "changed"})
        assert refused.is_error
        edits = [{"oldText": "changed", "newText": "edited"}]
        assert not (await client.call_tool("edit_file", {"path": str(desk.data / "odd.txt"), "edits": edits})).is_error
        assert "4 of 4 calls undone" in await rolled_back(client)
    assert (desk.data / "odd.txt").read_bytes() == odd
    assert (desk.data / "script.sh").read_text() == "#!/bin/sh\n"
    assert (desk.data / "script.sh").stat().st_mode & 0o777 == 0o750
    assert (desk.data / "link.txt").is_symlink()
    assert (desk.data / "target.txt").read_text() == "target"
    assert outside.read_text() == "outside"


@on_a_loop
async def test_a_second_run_waits_until_the_first_one_has_given_the_file_back(desk: Desk) -> None:
    (desk.data / "a.txt").write_text("old")
    desk.files()
    path = str(desk.data / "a.txt")
    one: Any = {"amends/run": "one"}
    two: Any = {"amends/run": "two"}
    async with desk.client() as client:
        assert not (await client.call_tool("write_file", {"path": path, "content": "one"}, meta=one)).is_error
        second = asyncio.ensure_future(client.call_tool("write_file", {"path": path, "content": "two"}, meta=two))
        told = text(await client.call_tool("amends_rollback", {}, meta=one))
        assert "1 of 1 calls undone" in told
        assert not (await second).is_error
        assert (desk.data / "a.txt").read_text() == "two"
        assert "1 of 1 calls undone" in text(await client.call_tool("amends_rollback", {}, meta=two))
    assert (desk.data / "a.txt").read_text() == "old"


@on_a_loop
async def test_a_file_that_is_too_large_to_be_kept_is_not_changed(desk: Desk) -> None:
    large = "x" * 6_000_000
    (desk.data / "large.txt").write_text(large)
    desk.files()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "large"})
        said = await client.call_tool("write_file", {"path": str(desk.data / "large.txt"), "content": "small"})
        assert said.is_error
        assert "may have happened" not in text(said), text(said)
    assert (desk.data / "large.txt").read_text() == large


@on_a_loop
async def test_an_edit_in_doubt_is_not_mistaken_for_what_somebody_else_wrote(desk: Desk) -> None:
    (desk.data / "a.txt").write_text("old\n")
    desk.files(plan=("edit_file", "gateway", "before"))
    args = {"path": str(desk.data / "a.txt"), "edits": [{"oldText": "old", "newText": "new"}]}
    with suppress(Exception):
        async with desk.client() as client:
            await client.call_tool("amends_begin", {"run": "doubt"})
            await client.call_tool("edit_file", args)
    (desk.data / "a.txt").write_text("written by somebody else\n")
    async with desk.client() as client:
        with anyio.move_on_after(3):  # it waits for whoever can decide
            told = await client.call_tool("edit_file", args)
            assert told.is_error, text(told)
    assert (desk.data / "a.txt").read_text() == "written by somebody else\n"
    with amends.Runtime(desk.url) as rt:
        assert [call.state for call in rt.report("doubt").calls] == ["in_doubt"]


@on_a_loop
async def test_an_entity_to_which_somebody_else_added_something_stays(desk: Desk) -> None:
    desk.memory()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "entities"})
        for name in "ab":
            await client.call_tool("create_entities", entity(name))
        path = desk.folder / "memory.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0]["observations"].append("somebody else saw it, too")
        path.write_text("\n".join(map(json.dumps, lines)))
        assert PARTLY in await rolled_back(client)
    assert desk.entities() == ["a"]


@on_a_loop
async def test_an_entity_that_was_there_before_a_call_in_doubt_is_not_deleted(desk: Desk) -> None:
    desk.memory(plan=("create_entities", "gateway", "after"))
    (desk.folder / "memory.jsonl").write_text(json.dumps({"type": "entity", **entity("a")["entities"][0]}) + "\n")
    both = {"entities": [*entity("a")["entities"], *entity("b")["entities"]]}
    with suppress(Exception):
        async with desk.client() as client:
            await client.call_tool("amends_begin", {"run": "doubt"})
            await client.call_tool("create_entities", both)
    assert desk.entities() == ["a", "b"]
    async with desk.client() as client:
        assert not (await until_done(client, "create_entities", both)).is_error
        assert "1 of 1 calls undone" in await rolled_back(client)
    assert desk.entities() == ["a"]


@on_a_loop
async def test_a_relation_that_somebody_else_deleted_does_not_come_back(desk: Desk) -> None:
    desk.memory()
    path = desk.folder / "memory.jsonl"
    relations = [{"from": "a", "to": "b", "relationType": one} for one in ("knows", "likes")]
    path.write_text("\n".join(json.dumps({"type": "relation", **one}) for one in relations))
    async with desk.client() as client:
        await client.call_tool("amends_begin", {})
        await client.call_tool("delete_relations", {"relations": relations[:1]})
        path.write_text("")
        assert "1 of 1 calls undone" in await rolled_back(client)
    assert [json.loads(line)["relationType"] for line in path.read_text().splitlines()] == ["knows"]


def sqlite_desk(desk: Desk) -> Path:
    path = desk.folder / "data.db"
    desk.add("sqlite", [*pypi_server("mcp-server-sqlite"), "--db-path", str(path)], catalogue="sqlite")
    return path


@on_a_loop
async def test_a_table_with_rows_is_not_dropped(desk: Desk) -> None:
    path = sqlite_desk(desk)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "table"})
        await client.call_tool("create_table", {"query": "CREATE TABLE things (name TEXT)"})
        with sqlite3.connect(path) as db:
            db.execute("INSERT INTO things VALUES ('lamp')")
        db.close()
        await rolled_back(client)
    assert left_standing(desk, "table") == ["sqlite.create_table"]
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM things").fetchall() == [("lamp",)]


@on_a_loop
async def test_a_table_that_was_there_is_not_dropped_whatever_its_case(desk: Desk) -> None:
    path = sqlite_desk(desk)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE Things (name TEXT)")
    db.close()
    async with desk.client() as client:
        await client.call_tool("amends_begin", {})
        said = await client.call_tool("create_table", {"query": "CREATE TABLE IF NOT EXISTS things (name TEXT)"})
        assert not said.is_error, text(said)
        await rolled_back(client)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("Things",)]


@on_a_loop
async def test_a_failure_in_an_ordinary_answer_is_a_failure(desk: Desk) -> None:
    sqlite_desk(desk)
    async with desk.client() as client:
        await client.call_tool("amends_begin", {"run": "failed"})
        await client.call_tool("create_table", {"query": "CREATE TABLE things (name TEXT)"})
        said = await client.call_tool("create_table", {"query": "CREATE TABLE things (name TEXT)"})
        assert not said.is_error  # the same call: a replay
        said = await client.call_tool("create_table", {"query": "CREATE TABLE things (other TEXT)"})
        assert said.is_error, text(said)


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    program = shutil.which("redis-server")
    if program is None:
        unavailable("no Redis: redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with suppress(OSError):
                said(port, "PING")
                break
            time.sleep(0.05)
        yield port, process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=10)


def said(port: int, *words: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall((" ".join(words) + "\r\nQUIT\r\n").encode())
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode().removesuffix("+OK\r\n")


def redis_desk(desk: Desk, port: int) -> None:
    command = [*pypi_server("redis-mcp-server"), "--url", f"redis://127.0.0.1:{port}/0"]
    desk.add("redis", command, env={"PATH": os.environ["PATH"]}, catalogue="redis")


@on_a_loop
async def test_a_compensation_that_the_server_could_not_do_is_not_called_done(desk: Desk) -> None:
    with redis_server(desk.folder) as (port, process):
        redis_desk(desk, port)
        async with desk.client() as client:
            await client.call_tool("amends_begin", {"run": "down"})
            assert not (await client.call_tool("sadd", {"name": "s", "value": "x"})).is_error
            process.kill()
            process.wait(timeout=10)
            told = await rolled_back(client)
            assert "1 of 1" not in told, told
    with amends.Runtime(desk.url) as rt:
        assert rt.report("down").state != "rolled_back"


@on_a_loop
async def test_a_member_of_a_set_that_was_new_is_removed_whatever_it_is_called(desk: Desk) -> None:
    with redis_server(desk.folder) as (port, _):
        redis_desk(desk, port)
        async with desk.client() as client:
            await client.call_tool("amends_begin", {})
            for value in ("x", "empty", "is"):  # words of what the server says of a set that is not there
                assert not (await client.call_tool("sadd", {"name": value, "value": value})).is_error
            assert "3 of 3 calls undone" in await rolled_back(client)
        assert said(port, "DBSIZE").strip() == ":0"


@on_a_loop
async def test_a_key_that_somebody_else_set_since_is_left_as_it_is(desk: Desk) -> None:
    with redis_server(desk.folder) as (port, _):
        redis_desk(desk, port)
        async with desk.client() as client:
            await client.call_tool("amends_begin", {"run": "keys"})
            for key in ("a", "b"):
                await client.call_tool("set", {"key": key, "value": "mine"})
            said(port, "SET", "a", "theirs")
            assert PARTLY in await rolled_back(client)
        assert said(port, "GET", "a").strip().endswith("theirs")
        assert said(port, "GET", "b").strip() == "$-1"
    assert left_standing(desk, "keys") == ["redis.set"]
