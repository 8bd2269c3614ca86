"""Permits at the command line, and a doctor who tells of halts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Runtime, tool
from tests.cli.command import assert_refused, here

DONE: list[str] = []
PROGRAM = """
from tests.cli.test_permits import mail, wire
from amends import AsyncRuntime, Rule, Runtime
URL = "sqlite:///ledger.db"
rt = Runtime(URL, tools=[wire, mail], approvers={"treasurer": ["ada"]})
art = AsyncRuntime(URL, tools=[wire, mail])
"""


@tool(needs_approval=True)
def wire(to: str, cents: int = 5) -> str:
    DONE.append(f"{to} {cents}")
    return "wired"


@wire.compensate
def unwire(to: str) -> None: ...


@tool(kind="retriable", idempotent=True)
def mail(to: str) -> None: ...


@pytest.fixture
def office(tmp_path: Path) -> Path:
    DONE.clear()
    (tmp_path / "office.py").write_text(PROGRAM, encoding="utf-8")
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[wire, mail]) as rt, rt.run("first"):
        mail("ann")
    return tmp_path


URL = ("--url", "sqlite:///ledger.db")
APP = ("--app", "office:rt")


def said(office: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = here(*words, "--json", cwd=office)
    assert done.returncode == code, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def wired(office: Path, run_id: str, *args: Any) -> bool:
    """Return whether the call started at once."""
    with Runtime(f"sqlite:///{office / 'ledger.db'}", tools=[wire, mail], wait_approval=0) as rt:
        try:
            with rt.run(run_id):
                wire(*args)
        except Held:
            return False
    return True


@pytest.mark.parametrize("app", ["office:rt", "office:art"])
def test_a_permit_for_exact_arguments_is_given_listed_and_used(office: Path, app: str) -> None:
    [given] = said(office, "permits", "give", "wire", "--args", '{"to": "bank"}', "--app", app, "--by", "ann")
    assert (given["tool"], given["uses"], given["by"], given["state"]) == ("wire", 1, "ann", "standing")
    assert (given["id"][:4], given["rule"], given["why"]) == ("prm_", None, "")
    [listed] = said(office, "permits", "list", *URL)
    assert listed == given
    assert said(office, "permits", "list", "--tool", "mail", *URL) == []
    assert not wired(office, "other", "thief")
    assert wired(office, "rent", "bank")
    assert not wired(office, "again", "bank")
    assert said(office, "permits", "list", *URL) == []
    assert "no permit in" in here("permits", "list", *URL, cwd=office).stderr
    [used] = said(office, "permits", "revoke", given["id"], "--why", "late", *URL)
    assert used["state"] == "used"


def test_a_permit_by_a_rule_needs_no_program(office: Path) -> None:
    give = ("permits", "give", "wire", "--rule", '{"args": {"cents": "<=100"}}', "--uses", "2", "--expires", "2h")
    [given] = said(office, *give, "--by", "ann", "--why", "small ones", *URL)
    assert (given["uses"], given["rule"], given["digest"]) == (2, {"args": {"cents": "<=100"}}, None)
    assert wired(office, "one", "bank", 100)
    assert not wired(office, "two", "bank", 101)
    table = here("permits", "list", *URL, cwd=office).stdout
    assert "small ones" in table
    assert "<=100" in table
    [ended] = said(office, "permits", "revoke", given["id"][:8], "--why", "no", "--by", "ben", *URL)
    assert (ended["id"], ended["state"], ended["uses"]) == (given["id"], "revoked", 1)
    assert not wired(office, "three", "bank", 100)


def test_the_first_characters_of_an_id_must_name_one_permit(office: Path) -> None:
    for _ in range(2):
        said(office, "permits", "give", "wire", "--rule", "{}", "--by", "ann", *URL)
    assert_refused(here("permits", "revoke", "prm_", "--why", "x", *URL, cwd=office), "more than one permit")
    assert_refused(here("permits", "revoke", "nothing", "--why", "x", *URL, cwd=office), "no permit")
    assert (
        "hint: amends permits list lists them" in here("permits", "revoke", "x", "--why", "x", *URL, cwd=office).stderr
    )
    typo = here("permits", "give", "wire", "--rule", "cents<5", "--why", "x", *URL, cwd=office)
    assert """hint: write --rule '{"args": {"cents": "<=5"}}'""" in typo.stderr
    assert_refused(here("permits", "revoke", "", "--why", "x", *URL, cwd=office), "no permit")
    assert len(said(office, "permits", "list", "--limit", "1", *URL)) == 1


@pytest.mark.parametrize(
    "words, told",
    [
        ((), "--args"),
        (("--args", "{}", "--rule", "{}"), "--args"),
        (("--args", "[1]"), "JSON object"),
        (("--args", "to=bank"), "not JSON"),
        (("--args", '{"nobody": 1}'), "cannot be called"),
        (("--rule", '{"args": {"cent": "<5"}}'), "cent"),
        (("--rule", '{"arg": {"cents": "<5"}}'), "arg"),
        (("--rule", '{"hours": "late"}'), "late"),
        (("--rule", '{"expires": 60}'), "expires="),
        (("--rule", '{"decision": "refuse"}'), "conditions"),
        (("--rule", "{}", "--uses", "0"), "uses"),
        (("--rule", "{}", "--expires", "soon"), "expires is"),
        (("--rule", "{}", "--expires", "0s"), "future"),
        (("--rule", "{}", "--expires", "2001-01-01"), "future"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(office: Path, words: tuple[str, ...], told: str) -> None:
    assert_refused(here("permits", "give", "wire", *words, *APP, "--by", "ann", cwd=office), told)
    assert said(office, "permits", "list", *URL) == []


def test_exact_arguments_need_the_tools_of_a_program(office: Path) -> None:
    assert_refused(here("permits", "give", "wire", "--args", '{"to": "x"}', *URL, cwd=office), "needs your tools")


def test_a_tool_that_nobody_knows_is_asked_about(office: Path) -> None:
    done = here("permits", "give", "wirr", "--rule", "{}", *URL, cwd=office)
    assert (done.returncode, "is it right?" in done.stderr) == (0, True)
    assert "is it right?" not in here("permits", "give", "mail", "--rule", "{}", *URL, cwd=office).stderr
    assert "is it right?" not in here("permits", "give", "wire", "--rule", "{}", *APP, cwd=office).stderr


def test_a_permit_belongs_to_its_tenant_and_carries_roles(office: Path) -> None:
    give = ("permits", "give", "wire", "--rule", "{}", *APP)
    [theirs] = said(office, *give, "--tenant", "acme", "--by", "ann", "--role", "boss")
    [ours] = said(office, *give, "--by", "ada")
    assert (theirs["roles"], ours["roles"]) == (["boss"], ["treasurer"])
    assert [one["id"] for one in said(office, "permits", "list", *URL)] == [ours["id"]]
    assert [one["id"] for one in said(office, "permits", "list", "--tenant", "acme", *URL)] == [theirs["id"]]
    assert_refused(here("permits", "revoke", theirs["id"], "--why", "x", *URL, cwd=office), "no permit")
    said(office, "permits", "revoke", theirs["id"], "--why", "x", "--tenant", "acme", *URL)


# ---- doctor ---------------------------------------------------------------------------------


def test_a_doctor_tells_of_the_halts_that_stand(office: Path) -> None:
    def halts() -> list[tuple[str, str, str]]:
        found = said(office, "doctor", *URL)
        return [(one["state"], one["words"], one["hint"]) for one in found if one["check"] == "halts"]

    assert halts() == [("ok", "nothing is halted", "")]
    here("halt", "--tool", "wire", "--why", "fire", "--by", "ann", *URL, cwd=office)
    here("halt", "--tenant", "acme", "--agent", "the clerk", "--why", "flood", "--by", "ben", *URL, cwd=office)
    [first, second] = halts()
    assert first[0] == second[0] == "warning"
    assert first[1].startswith("tool wire, by ann at ")
    assert first[1].endswith(": fire")
    assert "amends unhalt --tool wire --why" in first[2]
    assert 'amends unhalt --tenant acme --agent "the clerk" --why' in second[2]
    here("unhalt", "--tool", "wire", "--why", "out", *URL, cwd=office)
    assert len(halts()) == 1


def test_halts_are_made_in_the_ledger_of_a_program(office: Path) -> None:
    for app in ("office:rt", "office:art"):
        [made] = said(office, "halt", "--tool", "wire", "--why", "fire", "--by", "ann", "--app", app)
        assert [one["id"] for one in said(office, "halts", "--app", app)] == [made["id"]]
        assert [one["id"] for one in said(office, "unhalt", "--tool", "wire", "--why", "out", "--app", app)] == [
            made["id"]
        ]
