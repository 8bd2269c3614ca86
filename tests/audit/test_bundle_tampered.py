"""A bundle that was changed is refused, by us and by the program in it; one that was not never is."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import states
from amends.audit.bundles import program, unpack
from amends.audit.standalone import rules, verify
from amends.encoding import chain, secret
from amends.errors import LedgerTampered
from amends.ledger import rows
from amends.signing import new_key
from tests.audit.trips import book, changed, parts_of, runtime, travel, with_manifest

Rows = list[dict[str, Any]]
Change = Callable[[Rows], object]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with runtime(f"sqlite:///{tmp_path_factory.mktemp('origin')}/l.db") as rt:
        return rt.export(*travel(rt))


@pytest.fixture
def verified(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The program in a bundle, run as anybody would: without anything of ours to import."""

    def run(bundle: bytes, *words: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "bundle"
        file.write_bytes(bundle)
        return subprocess.run(
            [sys.executable, "-I", "-S", str(file), *words], capture_output=True, text=True, timeout=60, check=False
        )

    return run


def how(bundle: bytes) -> list[tuple[str, str, int]]:
    return [(one.how, one.run_id, one.n) for one in verify.check(verify.read(bundle))]


def of(events: Rows, run: str, n: int) -> dict[str, Any]:
    roots = {event["root"] for event in events if event["run_id"] == run}
    return next(event for event in events if event["root"] in roots and event["n"] == n)


def rehash(events: Rows) -> None:
    """Write the chain of every tree anew, as somebody would who knows how it is made."""
    prev: dict[str, str] = {}
    for event in events:
        before = prev.get(event["root"], chain.GENESIS)
        said = [event[name] for name in rules.SAID]
        event["hash"] = prev[event["root"]] = chain.link(before, event["n"], event["at"], chain.body_of(*said))


def test_the_program_needs_nothing_and_says_that_all_is_whole(
    bundle: bytes, verified: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = verified(bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run committed of ledger" in done.stdout
    assert done.stdout.endswith("whole\n")
    tree = _parsed(program())
    names = [name for node in tree.body for name in _names(node)]
    assert len(names) == len(set(names)), "put together from several modules, none hides a name of another"
    assert "amends." not in "".join(line for line in program().splitlines() if line.startswith(("import", "from")))


def _parsed(source: str) -> ast.Module:
    """Parse it; once more after an error of CPython 3.11 itself.

    There ``ast.parse`` counts its depth in one place for the whole interpreter: when a garbage collection in the middle
    of it parses something, too, the count is wrong and it raises a ``SystemError``, whatever the source.
    """
    try:
        return ast.parse(source, feature_version=(3, 9))
    except SystemError as error:
        if "recursion depth mismatch" not in str(error):
            raise
    return ast.parse(source, feature_version=(3, 9))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


EVENTS: dict[str, tuple[Change, tuple[str, str, int]]] = {
    "edited": (lambda rows: of(rows, "committed", 3).update(by_whom="mallory"), ("edited", "committed", 3)),
    "facts edited": (lambda rows: of(rows, "committed", 2).update(facts="{}"), ("edited", "committed", 2)),
    "moved in time": (lambda rows: of(rows, "held", 2).update(at=1.0), ("edited", "held", 2)),
    "moved by less than a microsecond": (
        lambda rows: of(rows, "held", 2).update(at=of(rows, "held", 2)["at"] + 2e-7),
        ("edited", "held", 2),
    ),
    "deleted": (lambda rows: rows.remove(of(rows, "rolled back", 4)), ("deleted", "rolled back", 4)),
    "inserted": (lambda rows: rows.insert(0, dict(of(rows, "rolled back", 4))), ("inserted", "rolled back", 4)),
    "cut": (lambda rows: rows.remove(of(rows, "in doubt", 6)), ("cut", "in doubt", 6)),
}


@pytest.mark.parametrize("name", EVENTS)
def test_what_was_done_to_an_event_is_told(
    name: str, bundle: bytes, verified: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    change, expected = EVENTS[name]
    bad = changed(bundle, "events", change)
    assert how(bad)[0] == expected
    done = verified(bad)
    assert done.returncode == 20
    assert expected[0] in done.stdout
    with runtime("memory:") as rt:
        with pytest.raises(LedgerTampered) as told:
            rt.load(bad)
        assert told.value.run_id == expected[1]
        assert list(rt.events()) == []


def test_two_events_that_changed_places_are_told(bundle: bytes) -> None:
    def swap(rows: Rows) -> None:
        one, other = of(rows, "committed", 3), of(rows, "committed", 4)
        for name in rules.SAID:
            one[name], other[name] = other[name], one[name]

    assert how(changed(bundle, "events", swap))[0][0] == "edited"


def _set(part: str, which: str, **values: Any) -> tuple[str, Change]:
    def change(rows: Rows) -> None:
        row = next(row for row in rows if which in (row["id"], row["state"]))
        row.update(values)

    return part, change


ROWS: dict[str, tuple[tuple[str, Change], str]] = {
    "state of a call": (_set("calls", "in_doubt", state="failed"), "row_changed"),
    "state of a run": (_set("runs", "rolled back", state="committed"), "row_changed"),
    "arguments": (_set("calls", "succeeded", args='{"what": "boat"}'), "payload_changed"),
    "result": (_set("calls", "succeeded", result='"nothing"'), "payload_changed"),
    "result gone": (_set("calls", "succeeded", result=None), "payload_changed"),
    "error": (_set("calls", "failed", error='["ValueError", "other"]'), "payload_changed"),
    "input": (_set("runs", "committed", input='"x"'), "payload_changed"),
    "output": (_set("runs", "committed", output='"x"'), "payload_changed"),
    "tool": (_set("calls", "succeeded", tool="other"), "row_changed"),
    "who it was for": (_set("runs", "committed", principal="mallory"), "row_changed"),
    "who asked": (_set("approvals", "pending", needed=0), "row_changed"),
    "state of a request": (_set("approvals", "pending", state="approved"), "row_changed"),
    "an input that there was not": (_set("runs", "rolled back", input='"x"'), "payload_changed"),
    "an output that there was not": (_set("runs", "rolled back", output='"x"'), "payload_changed"),
    "a result that there was not": (_set("calls", "failed", result='"x"'), "payload_changed"),
    "a call that is gone": (("calls", lambda rows: rows.pop()), "row_missing"),
    "a request that is gone": (("approvals", lambda rows: rows.clear()), "row_missing"),
    "a call from nowhere": (("calls", lambda rows: rows.append(rows[0] | {"id": "call_x"})), "row_forged"),
    "a run from nowhere": (
        ("runs", lambda rows: rows.append(rows[0] | {"uid": "run_x", "id": "x"})),
        "row_forged",
    ),
    "a tree from nowhere": (
        ("runs", lambda rows: rows.append(rows[0] | {"uid": "run_x", "root": "run_x", "id": "x"})),
        "row_forged",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_was_done_to_a_row_is_told(name: str, bundle: bytes) -> None:
    (part, change), expected = ROWS[name]
    bad = changed(bundle, part, change)
    assert expected in [one for one, _, _ in how(bad)]
    with runtime("memory:") as rt, pytest.raises(LedgerTampered):
        rt.load(bad)


def test_a_move_that_there_is_not_is_told_although_the_chain_was_written_anew(bundle: bytes) -> None:
    def forge(rows: Rows) -> None:
        event = next(event for event in rows if event["to_state"] == "failed")
        event["to_state"] = "compensated"
        rehash(rows)

    assert {one for one, _, _ in how(changed(bundle, "events", forge))} & {"inserted", "cut"}


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
def test_a_checkpoint_vouches_for_what_it_names(
    kind: Any, tmp_path: Path, verified: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    key, other = new_key(kind), new_key(kind)
    told = key.public if kind == "ed25519" else key.secret
    with runtime(f"sqlite:///{tmp_path}/l.db", audit_key=key.secret, checkpoint="off") as rt:
        with rt.run("first"):
            book("x")
        rt.checkpoint()
        with rt.run("second"):
            book("y")
        newest = rt.checkpoint()
        assert newest is not None
        made, uncovered = rt.export("second"), None
        with rt.run("third"):
            book("z")
        uncovered = rt.export("first", "third")
    done = verified(made, "--key", told)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"checkpoints: 1, signed by {newest.key}" in done.stdout
    assert "no checkpoint covers" not in done.stdout
    assert verified(made, "--key", other.public if kind == "ed25519" else other.secret).returncode == 20
    assert verified(made, "--key", "nonsense").returncode == 2
    assert verified(uncovered).returncode == 0
    done = verified(uncovered, "--key", told)
    assert (done.returncode, "run third, event -: bad_signature" in done.stdout) == (20, True)
    unsigned = changed(made, "checkpoints", lambda rows: rows[0].update(signature=rows[0]["signature"][::-1]))
    assert verified(unsigned, "--key", told).returncode == 20
    assert how(changed(made, "checkpoints", lambda rows: rows[0].update(prev="0" * 64)))[0][0] == "edited"

    def anew(rows: Rows) -> None:
        rows[2]["by_whom"] = "mallory"
        rehash(rows)

    forged = changed(made, "events", anew)
    head = json.loads(parts_of(forged)["events.jsonl"].splitlines()[-1])["hash"]
    tree = json.loads(parts_of(made)["manifest.json"])["trees"][0] | {"head": head}
    assert ("rewritten", "second", tree["events"]) in how(with_manifest(forged, trees=[tree]))


def test_the_tables_of_the_program_are_ours() -> None:
    assert (rules.CALL_MOVES, rules.RUN_MOVES) == (states.CALL_MOVES, states.RUN_MOVES)
    assert (rules.GENESIS, rules.NEW) == (chain.GENESIS, states.NEW)
    assert (rules.GONE, rules.SEALED) == (rows.GONE, secret.SEALED)
    assert (*rows.EVENT_COLUMNS[1:-2],) == rules.SAID


def test_every_change_of_any_row_is_caught_or_changes_nothing_that_is_proved(bundle: bytes) -> None:
    """At random: one value of one row of what the chain speaks of."""
    luck = random.Random(12)
    parts = {
        "events": [*rules.SAID, "at", "n", "hash"],
        "calls": ["state", "args", "result", *rules.BOUND["call"].split()],
        "runs": ["state", "input", *rules.BOUND["run"].split()],
        "approvals": ["state", "digest", *rules.BOUND["approval"].split()],
    }
    for _ in range(200):
        part = luck.choice(list(parts))
        name = luck.choice(parts[part])

        def change(rows: Rows, name: str = name) -> None:
            row = luck.choice(rows)
            was = row[name]
            row[name] = _other(luck, was)

        bad = changed(bundle, part, change)
        if bad == changed(bundle, part, lambda rows: None):
            continue
        try:
            found = verify.check(verify.read(bad))
        except (ValueError, KeyError, TypeError, AttributeError, verify.Unreadable):
            continue  # told as unreadable
        assert found, (part, name)


def _other(luck: random.Random, was: Any) -> Any:
    if isinstance(was, str):
        place = luck.randrange(len(was) + 1)
        return was[:place] + luck.choice("xyz") + was[place + luck.randrange(2) :]
    if was is None:
        return "x"
    return was + luck.choice([1, -1, 7])


def test_what_is_whole_is_read_again_and_again(bundle: bytes) -> None:
    assert json.dumps([tree.root.id for tree in unpack(bundle)]) == json.dumps(
        [tree.root.id for tree in unpack(changed(bundle, "events", lambda rows: None))]
    )
