"""``amends audit``: output and exit codes of verify, checkpoints and keys."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path

import pytest

from amends import Runtime, tool
from amends.signing import load_key
from tests.cli.command import assert_refused, here, run

URL = ("--url", "sqlite:///shop.db")


@tool
def reserve(item: str) -> str:
    return item


@reserve.compensate
def free(result: str) -> None:
    """Nothing is left of it."""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    rt = Runtime(f"sqlite:///{tmp_path / 'shop.db'}", tools=[reserve], checkpoint="off")
    for id in ("order-1", "order-2"):
        with rt.run(id):
            reserve("pen")
    rt.close()
    return tmp_path


def _forge(folder: Path, sql: str) -> None:
    raw = sqlite3.connect(folder / "shop.db")
    raw.execute(sql)
    raw.commit()
    raw.close()


def test_a_whole_ledger_is_whole_and_what_is_not_anchored_is_said(shop: Path) -> None:
    done = here("audit", "verify", *URL, cwd=shop)
    assert done.returncode == 0
    assert "whole" in done.stdout
    assert "could be removed unnoticed: amends audit checkpoint" in done.stderr
    written = here("audit", "checkpoint", *URL, cwd=shop)
    assert written.returncode == 0
    assert "it is not signed" in written.stderr
    assert "anchor" not in written.stderr, "a file has one beside it"
    said = here("audit", "verify", *URL, "--json", cwd=shop)
    facts = json.loads(said.stdout)
    assert (facts["ok"], facts["runs"], facts["checkpoints"], facts["unanchored"]) == (True, 2, 1, 0)
    assert said.stderr == ""


FOLDED = "where root = (select no from amends_run where id = 'order-2')"


@pytest.mark.parametrize(
    "event, forgery",
    [
        (1, "update amends_event set by_whom = 'me' where run_id = 'order-2' and n = 1"),
        (2, f"update amends_call set at = at + 1 {FOLDED}"),
        (3, f"update amends_call set settled_at = settled_at + 1 {FOLDED}"),
    ],
)
def test_what_was_changed_is_named_and_the_code_is_20(shop: Path, event: int, forgery: str) -> None:
    """An event that is a row, and both events that are folded into their call."""
    here("audit", "checkpoint", *URL, cwd=shop)
    _forge(shop, forgery)
    done = run("audit", "verify", *URL, cwd=shop)
    assert done.returncode == 20, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("order-2")]
    assert line.split()[:2] == ["order-2", str(event)]
    assert "edited" in line
    assert "keep a copy of the ledger" in done.stderr
    said = here("audit", "verify", *URL, "--json", cwd=shop)
    assert said.returncode == 20
    [problem] = json.loads(said.stdout)["problems"]
    assert (problem["run"], problem["event"], problem["how"]) == ("order-2", event, "edited")
    one = here("audit", "verify", "order-1", *URL, "--json", cwd=shop)
    assert (one.returncode, json.loads(one.stdout)["runs"]) == (0, 1), "nobody touched that one"
    assert here("audit", "verify", "order-2", *URL, cwd=shop).returncode == 20


def test_a_signature_of_somebody_else_and_an_anchor_from_elsewhere_are_held_against_it(shop: Path) -> None:
    made = json.loads(here("audit", "keygen", "-o", "audit.key", "--json", cwd=shop).stdout)
    assert made["file"] == "audit.key"
    written = run("audit", "checkpoint", *URL, "--json", cwd=shop, AMENDS_AUDIT_KEY="audit.key")
    newest = json.loads(written.stdout)
    assert newest["key"] == made["public"]
    (shop / "kept.json").write_text(json.dumps(newest), encoding="ascii")
    for key in (made["public"], "audit.key"):
        assert here("audit", "verify", "--key", key, "--anchor", "kept.json", *URL, cwd=shop).returncode == 0
    other = json.loads(here("audit", "keygen", "--json", cwd=shop).stdout)
    done = here("audit", "verify", "--key", other["public"], *URL, cwd=shop)
    assert done.returncode == 20
    assert "bad_signature" in done.stdout
    (shop / "kept.json").write_text(json.dumps(newest | {"n": 7}), encoding="ascii")
    done = here("audit", "verify", "--anchor", "kept.json", *URL, cwd=shop)
    assert done.returncode == 20
    assert "put_back" in done.stdout


def test_what_makes_no_sense_is_said_with_what_to_do(shop: Path) -> None:
    assert_refused(here("audit", "verify", "--anchor", "nowhere", *URL, cwd=shop), "there is no file", ".anchor file")
    (shop / "kept.json").write_text("[]", encoding="ascii")
    assert_refused(here("audit", "verify", "--anchor", "kept.json", *URL, cwd=shop), "holds no checkpoint")
    assert_refused(here("audit", "verify", "--key", "nonsense", *URL, cwd=shop), "neither a key nor a readable file")
    assert_refused(here("audit", "verify", "no such run", *URL, cwd=shop), "no such run")
    assert_refused(here("audit", "verify", "--url", "sqlite:///none.db", cwd=shop), "none.db")


def test_a_key_is_for_its_owners_eyes_and_is_never_written_over(tmp_path: Path) -> None:
    done = here("audit", "keygen", "--out", "audit.key", cwd=tmp_path)
    assert done.returncode == 0
    assert stat.S_IMODE((tmp_path / "audit.key").stat().st_mode) == 0o600
    assert load_key(str(tmp_path / "audit.key")).name == done.stdout.strip()
    assert f"--key {done.stdout.strip()}" in done.stderr
    before = (tmp_path / "audit.key").read_bytes()
    assert_refused(here("audit", "keygen", "-o", "audit.key", cwd=tmp_path), "already exists")
    assert (tmp_path / "audit.key").read_bytes() == before
    assert_refused(here("audit", "keygen", "-o", "no/such/folder", cwd=tmp_path), "cannot be written")


def test_a_key_may_be_printed_and_be_of_the_standard_library(tmp_path: Path) -> None:
    done = here("audit", "keygen", "--hmac", cwd=tmp_path)
    assert load_key(done.stdout.strip()).name in done.stderr
    done = here("audit", "keygen", "--hmac", "-o", "audit.key", cwd=tmp_path)
    assert "--key audit.key" in done.stderr, "who is to check needs the key itself"


def test_a_ledger_in_which_nothing_happened_has_no_checkpoint(tmp_path: Path) -> None:
    here("db", "migrate", *URL, cwd=tmp_path)
    done = here("audit", "checkpoint", *URL, "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "null")
    assert "nothing has happened" in done.stderr
    assert here("audit", "verify", *URL, cwd=tmp_path).returncode == 0
