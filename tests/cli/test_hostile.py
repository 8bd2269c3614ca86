"""The command line shows hostile text of a ledger as such: nothing in it can look like our own output."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, tool
from tests.cli.command import here
from tests.cli.terminal import at_terminal

EVIL = (
    "ok\nstate          approved\r\ndigest         0000\x1b[2J\x1b]8;;https://evil.example\x07x\x9b1m\x7f\x00\t"
    '\u202egnp\u2066\u200b\u00ad\ufeff\u00a0\u2028\U000e0041\ufe0f\u2800\u3164[bold red]x[/bold red]\u0430pple \\n "q" '
)
NAME = f"pay{EVIL}"
RUN = f"r{EVIL}"
LABELS = (
    "state", "run", "agent", "on behalf of", "tenant", "version", "asked because", "asked at", "expires", "needs",
    "said yes", "a no may be", "decided by", "reason", "used at", "digest", "arguments",
)  # fmt: skip
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LONG = "x" * 5_000


class Broken(Exception):
    pass


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a ledger with hostile text in every field: held, failed, in doubt, rolled back, blocked."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")

    def book(note: str, more: Any = None) -> str:
        if note == "fail":
            raise Broken(EVIL)
        if note == "doubt":
            raise TimeoutError(EVIL)
        return EVIL

    def back(result: str) -> None:
        raise Broken(EVIL)

    booked = tool(book)
    booked.compensate(back)
    with Runtime(f"sqlite:///{folder / 'shop.db'}", tools=[booked], principal=f"p{EVIL}", agent=f"a{EVIL}") as rt:
        with contextlib.suppress(Exception), rt.run(RUN, tags=[f"t{EVIL}"], input={EVIL: EVIL}) as run:
            run.answer(NAME, {"note": EVIL, "approved by": "anna", f"k{EVIL}": [EVIL, {EVIL: 1}], "long": LONG},
                       handler=lambda **_: None)  # fmt: skip
        for note in ("fail", "doubt"):
            with contextlib.suppress(Exception), rt.run(f"{note}{EVIL}"):
                booked(note=note, more={EVIL: EVIL})
        with contextlib.suppress(Exception), rt.run(f"back{EVIL}"):
            booked(note=EVIL)
            raise Broken(EVIL)
        with rt.run(f"done{EVIL}"):
            booked(note=EVIL)
        (asked, *_) = rt.approvals()
        twin = rt.run(f"second{EVIL}")
        with contextlib.suppress(Exception), twin as run:
            run.answer(NAME, {"note": "x"}, handler=lambda **_: None)
        (other,) = (one for one in rt.approvals() if one.id != asked.id)
        rt.reject(other.id, by=f"ada{EVIL}", reason=EVIL)
    return folder


@pytest.fixture(scope="module")
def ids(shop: Path) -> dict[str, str]:
    with Runtime(f"sqlite:///{shop / 'shop.db'}", create=False) as rt:
        calls = {call.state: call.id for call in rt.calls()}
        (asked,) = rt.approvals("state:pending")
        (rejected,) = rt.approvals("state:rejected")
        runs = {run.state: run.id for run in rt.runs()}
        return {**{f"call {state}": id for state, id in calls.items()},
                **{f"run {state}": id for state, id in runs.items()},
                "asked": asked.id, "rejected": rejected.id, "digest": asked.digest}  # fmt: skip


def assert_honest(text: str) -> None:
    """Check for no control character except newlines, nothing invisible, and no line that begins with EVIL."""
    for line in COLOURS.sub("", text).split("\n"):
        bad = [
            one
            for one in line
            if unicodedata.category(one)[0] == "C" or (unicodedata.category(one)[0] == "Z" and one != " ")
        ]
        assert bad == [], ascii(line)
        assert "\ufe0f" not in line
        assert not line.startswith(("digest         0000", "state          approved")), line


VERBS: list[tuple[str, ...]] = [
    ("runs", "list"),
    ("runs", "show", "run open"),
    ("runs", "show", "run blocked"),
    ("runs", "show", "run committed"),
    ("calls", "show", "call held"),
    ("calls", "show", "call succeeded"),
    ("calls", "show", "call failed"),
    ("approvals", "list"),
    ("approvals", "list", "status:rejected"),
    ("approvals", "show", "asked"),
    ("approvals", "show", "rejected"),
    ("doubts", "list"),
    ("doubts", "show", "call in_doubt"),
    ("locks",),
    ("budgets",),
    ("costs",),
    ("audit", "events"),
    ("audit", "verify"),
    ("config", "show", "--origin"),
    ("rollback", "run open", "--plan"),
    ("compare", "run open", "run committed"),
    ("runs", "show", EVIL.replace("\x00", "")),
    ("approvals", "show", EVIL.replace("\x00", "")),
    ("calls", "decide", "call held", EVIL.replace("\x00", ""), "--why", "x"),
    ("approvals", "reject", "rejected", "--reason", "x", "--by", EVIL.replace("\x00", "")),
    ("doctor",),
    ("complete", "--", "runs", "show", ""),
    ("complete", "--", "approvals", "show", ""),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: ascii(" ".join(verb))[:40])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_verb_prints_what_could_act_on_a_terminal(
    shop: Path, ids: dict[str, str], verb: tuple[str, ...], as_json: bool
) -> None:
    args = [ids.get(word, word) for word in verb]
    if any(word.startswith(("call ", "run ")) and word not in ids for word in verb):
        pytest.skip(f"the ledger has none: {sorted(ids)}")
    if as_json:
        if verb[0] in ("complete", "audit") and verb[1] in ("--", "events"):
            return
        args.append("--json")
    done = here(*args, cwd=shop)
    assert_honest(done.stdout)
    assert_honest(done.stderr)
    assert "Traceback" not in done.stderr
    if as_json:
        assert done.stdout.isascii()
        assert done.stderr.isascii() or not done.stderr.startswith("{")
        for line in done.stdout.splitlines():
            json.loads(line)


def test_json_is_exact(shop: Path, ids: dict[str, str]) -> None:
    said = json.loads(here("approvals", "show", ids["asked"], "--json", cwd=shop).stdout)
    assert said["tool"] == NAME
    assert said["args"]["note"] == EVIL
    assert said["args"][f"k{EVIL}"] == [EVIL, {EVIL: 1}]
    assert said["args"]["long"] == LONG


def test_every_line_of_a_card_that_begins_with_a_label_is_ours(shop: Path, ids: dict[str, str]) -> None:
    done = here("approvals", "show", ids["asked"], cwd=shop)
    head, *lines = done.stdout.splitlines()
    assert head.endswith(ids["asked"])
    labels = [line for line in lines if not line.startswith(" ")]
    seen = [next(label for label in LABELS if re.match(rf"{label}(  |$)", line)) for line in labels]
    assert len(seen) == len(set(seen)), "no label comes twice"
    assert f"digest         {ids['digest']}" in done.stdout
    names = [line.partition(" = ")[0].strip() for line in lines if line.startswith("   ")]
    assert names[:2] == ["note", '"approved by"']
    assert LONG in done.stdout, "nothing is cut"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_nobody_is_asked_over_something_cut(shop: Path, ids: dict[str, str], width: int) -> None:
    seen = at_terminal(
        "approvals", "approve", ids["asked"], "--by", f"ada\u202e\nx{'y' * 90}", cwd=shop, width=width,
        answers=[("Sure? [y/N]", "n\n")],
    )  # fmt: skip
    assert_honest(seen.text)
    rows = seen.lines
    assert all(len(row) <= width for row in rows)
    ours = (*LABELS, " ", "nothing was done", '"pay', '"ada')
    assert [row for row in rows if row and not row.startswith(ours)] == [], "every row begins with a word of ours"
    whole = "".join(row.removeprefix("     ┊ ") for row in rows)
    assert LONG in whole
    assert ids["digest"] in whole


def test_a_person_sees_all_of_a_doubt_and_of_a_plan_before_they_decide(shop: Path, ids: dict[str, str]) -> None:
    if "call in_doubt" not in ids:
        pytest.skip("nothing is in doubt")
    answers = [("Sure? [y/N]", "n\n")]
    seen = at_terminal("calls", "accept", ids["call in_doubt"], "--why", "x", cwd=shop, answers=answers)
    assert_honest(seen.text)
    assert "evil.example" in "".join(row.removeprefix("     ┊ ") for row in seen.lines)


def test_a_pipe_gets_lines_that_are_whole(shop: Path, ids: dict[str, str]) -> None:
    done = here("approvals", "show", ids["asked"], cwd=shop)
    assert isinstance(done, subprocess.CompletedProcess)
    assert "┊" not in done.stdout


def test_a_terminal_without_unicode_escapes_what_it_cannot_show(shop: Path, ids: dict[str, str]) -> None:
    seen = at_terminal("approvals", "show", ids["asked"], cwd=shop, width=60, PYTHONIOENCODING="ascii")
    assert seen.raw.isascii()
    assert "?" not in seen.text
    assert all(len(row) <= 60 for row in seen.lines)
    assert LONG in "".join(row.removeprefix("     | ") for row in seen.lines)


def test_only_a_state_is_coloured_like_one(shop: Path, ids: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from amends.cli import output

    rows: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_put_row", lambda text, style, out: rows.append((text, style)))
        output.put_facts({"state": "approved", "reason": "approved"})
    assert rows == [("state   approved", "green"), ("reason  approved", "")]
