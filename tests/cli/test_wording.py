"""What errors and reports say in Python, the command line says in commands that can be typed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from amends import errors
from amends.cli.wording import COMMANDS, in_commands, worded
from tests.cli.command import here, run
from tests.cli.test_stuck_runs import stuck

__all__ = ["stuck"]
VERB = re.compile(r"\brt\.(\w+)\(")
SOURCE = Path(errors.__file__).parent
PROGRAMS = {
    "open", "run", "once", "reach", "add", "start", "scoped", "schemas", "fork", "permit", "replaying",
    "halt", "bypass", "edit", "redeem", "preview", "gc",
}  # fmt: skip
"""Verbs that only a program says: it has a body to run, or data to read."""


@pytest.mark.parametrize(
    "text, told",
    [
        (
            "pay (c1) may have happened: look, then rt.resolve('c1', Happened(...) | Absent() | Unknown(), by=..., why=...)",
            "pay (c1) may have happened: look, then amends doubts resolve c1 happened|absent|unknown --why ...",
        ),
        ("rt.resolve('c1', Happened(None) | Absent(), by=...)", "amends doubts resolve c1 happened|absent --why ..."),
        (
            "decide with rt.resolve(call.id, ...)",
            "decide with amends doubts resolve CALL happened|absent|unknown --why ...",
        ),
        ("accept what stays: accept=['c1', 'c2']", "accept what stays: --accept c1 --accept c2"),
        (errors.UsageError.default_hint, "correct the command, as the message says; nothing was started"),
        ("rt.retry('c1', result=..., by=..., why=...)", "amends calls retry c1 --result ... --why ..."),
        ("rt.retry('c1', by=..., why=...) once", "amends calls retry c1 --why ... once"),
        ('rt.finish("it\'s", by=...)', "amends runs finish 'it'\"'\"'s' --why ..."),
        ("rt.abandon('a (b), c', by=...)", "amends runs abandon 'a (b), c' --why ..."),
        ("rt.abandon('r; rm -rf x')", "amends runs abandon 'r; rm -rf x' --why ..."),
        ("rt.rollback('r', plan=plan, by=...)", "amends rollback r --apply HASH --why ..."),
        ("see rt.report(run_id), rt.events(run_id)", "see amends runs show RUN, amends audit events --run RUN"),
        ("rt.approvals() lists them", "amends approvals list lists them"),
        ("with rt.report or rt.call: it", "with amends runs show RUN or amends calls show CALL: it"),
        ("await rt.withdraw('apr_1', by=..., why=...)", "amends approvals withdraw apr_1 --why ..."),
        ("amends db restored --why=..., or rt.reconcile_restore(by=..., why=...)", "amends db restored --why ..."),
        ("rt.open('r') or start.finish('r') or rt.finish('r", "rt.open('r') or start.finish('r') or rt.finish('r"),
        ("rt.reach({'pay': fn})", "rt.reach({'pay': fn})"),
        ("no verb", "no verb"),
        ("", ""),
    ],
)
def test_a_verb_is_a_command(text: str, told: str) -> None:
    assert in_commands(text) == told


def test_a_long_or_broken_text_ends() -> None:
    assert in_commands("rt.finish(" * 5_000).startswith("rt.finish(")
    assert in_commands("rt.runs() " * 200).startswith("amends runs list")


def test_every_verb_that_our_texts_name_is_known() -> None:
    """A verb in a hint or a cause is a command, or one that only a program can say."""
    files = [*SOURCE.glob("engine/*.py"), *SOURCE.glob("people/*.py"), *SOURCE.glob("host/*.py"), SOURCE / "errors.py"]
    said = {
        verb
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if '"' in line and not line.lstrip().startswith(('"""', "#"))
        for verb in VERB.findall(line)
    }
    assert {"resolve", "retry", "finish", "abandon"} <= said
    assert said - COMMANDS.keys() - PROGRAMS == {"worker"} - COMMANDS.keys()


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_command_exists(verb: str, tmp_path: Path) -> None:
    words = shlex.split(COMMANDS[verb].format(CALL="x", RUN="x", APPROVAL="x", ANSWER="happened", RESULT="", PLAN=""))
    path = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word) and word != "x"][:2]
    helped = here(*path, "--help", cwd=tmp_path)
    if helped.returncode:  # the second word was an argument
        helped = here(path[0], "--help", cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    assert len(path) == 1 or f"amends {' '.join(path)}" in helped.stdout
    for option in [word for word in words if word.startswith("--")]:
        assert option in helped.stdout, (verb, option)


def test_causes_are_in_commands_wherever_they_are_shown(stuck: Path) -> None:
    for args in (
        ("runs", "show", "closed-1"),
        ("runs", "show", "closed-1", "--json"),
        ("runs", "list", "--json"),
        ("runs", "watch", "closed-1"),
        ("inbox",),
        ("inbox", "--json"),
        ("worker", "app.py:rt", "--once"),
    ):
        done = run(*args, cwd=stuck, COLUMNS="2000")
        shown = done.stdout + done.stderr
        assert "rt." not in shown.replace("app.py:rt", ""), (args, shown)
        if args[0] not in ("worker", "inbox"):
            assert "amends calls retry call_" in shown, (args, shown)
    told = json.loads(run("runs", "show", "closed-1", "--json", cwd=stuck).stdout)
    (cause,) = told["run"]["causes"]
    command = re.search(r"amends calls retry call_\w+", cause)
    assert command is not None
    (stuck / "open").touch()
    done = run(*command[0].split()[1:], "--why", "the bank is open", cwd=stuck)
    assert "rolled back" in done.stdout, done.stderr  # what it says is what helps


def test_events_are_shown_as_they_were_recorded(stuck: Path) -> None:
    shown = run("audit", "events", "--run", "closed-1", cwd=stuck).stdout
    assert "rt.retry(" in shown


def test_errors_name_commands(stuck: Path) -> None:
    done = run("runs", "show", "nope", cwd=stuck)
    assert "rt." not in done.stderr
    done = run("runs", "finish", "closed-1", "--why", "x", "--yes", cwd=stuck)
    assert done.returncode != 0
    assert "rt." not in done.stderr.replace("app.py:rt", "")
    done = run("runs", "finish", "closed-1", "--why", "x", "--yes", "--json", cwd=stuck)
    assert "rt." not in done.stderr.replace("app.py:rt", "")


def test_what_a_person_wrote_stays() -> None:
    facts = {"why": "rt.finish('r')", "run": {"why": "rt.finish('r')", "causes": ["rt.finish('r')"]}}
    assert worded(facts) == {
        "why": "rt.finish('r')",
        "run": {"why": "rt.finish('r')", "causes": ["amends runs finish r --why ..."]},
    }
