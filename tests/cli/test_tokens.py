"""Tokens at the command line: printed once and alone, listed without a secret, revoked by id or by the token itself."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.errors import Unauthorized
from tests.cli.command import assert_refused, here

URL = ("--url", "sqlite:///ledger.db")
WHY = ("--why", "the build", "--by", "ann")


@pytest.fixture
def office(tmp_path: Path) -> Path:
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}"):
        return tmp_path


def said(office: Path, *words: str) -> list[dict[str, Any]]:
    done = here(*words, *URL, "--json", cwd=office)
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_valid(office: Path, text: str) -> bool:
    with Runtime(f"sqlite:///{office / 'ledger.db'}", token_cache=0) as rt:
        try:
            rt.check_token(text)
        except Unauthorized:
            return False
    return True


def test_a_token_is_printed_alone_and_nowhere_else(office: Path) -> None:
    done = here("tokens", "create", "ci", "--scope", "viewer", *WHY, *URL, cwd=office)
    assert done.returncode == 0, done
    [text] = done.stdout.splitlines()
    assert is_valid(office, text)
    secret = text.split("_")[2]
    assert "not shown again" in done.stderr
    assert secret not in done.stderr
    for shown in (here("tokens", "list", *URL, cwd=office), here("tokens", "list", *URL, "--json", cwd=office)):
        assert "ci" in shown.stdout
        assert secret not in shown.stdout + shown.stderr
    ended = here("tokens", "revoke", text, "--why", "it leaked", *URL, cwd=office)
    assert (ended.returncode, "revoked" in ended.stdout) == (0, True), ended
    assert secret not in ended.stdout + ended.stderr
    assert not is_valid(office, text)
    assert secret not in here("audit", "events", *URL, cwd=office).stdout


def test_the_object_of_a_new_token_has_all_of_it(office: Path) -> None:
    agent = ("--scope", "agent", "--agent", "clerk", "--for", "ada", "--tenant", "acme", "--expires", "12h")
    [made] = said(office, "tokens", "create", "bot", *agent, *WHY)
    assert made["token"].startswith("amt_")
    assert (made["principal"], made["agent"], made["tenant"], made["scopes"]) == ("ada", "clerk", "acme", ["agent"])
    assert (made["state"], made["by"], made["why"]) == ("valid", "ann", "the build")
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=11.9) < left <= timedelta(hours=12)
    [listed] = said(office, "tokens", "list")
    assert listed == {name: value for name, value in made.items() if name != "token"}
    [wide] = said(office, "tokens", "create", "root", "--scope", "operator", *WHY)
    assert wide["tenant"] is None
    table = here("tokens", "list", *URL, cwd=office).stdout
    assert re.search("agent clerk, tenant acme", re.sub(r"\s+", " ", table))
    assert "every tenant" in table


def test_a_token_is_found_by_the_beginning_of_its_id(office: Path) -> None:
    made = [said(office, "tokens", "create", f"t{n}", "--scope", "worker", *WHY)[0] for n in range(2)]
    assert_refused(here("tokens", "revoke", "tok_", "--why", "x", *URL, cwd=office), "more than one token")
    assert_refused(here("tokens", "revoke", "nothing", "--why", "x", *URL, cwd=office), "no token")
    [ended] = said(office, "tokens", "revoke", made[0]["id"], "--why", "x")
    assert (ended["id"], ended["state"]) == (made[0]["id"], "revoked")
    assert said(office, "tokens", "revoke", made[0]["id"], "--why", "again") == [ended]
    assert [one["id"] for one in said(office, "tokens", "list")] == [made[1]["id"]]
    wrong = here("tokens", "revoke", made[1]["token"] + "x", "--why", "x", *URL, cwd=office)
    assert_refused(wrong, "no token")
    assert made[1]["token"] not in wrong.stderr


@pytest.mark.parametrize(
    "words, told",
    [
        (("--scope", "root"), "not a scope"),
        (("--scope", "aprover"), "did you mean 'approver'"),
        (("--scope", "agent"), "agent's name"),
        (("--scope", "agent", "--scope", "approver", "--agent", "x"), "no other scope"),
        (("--scope", "viewer", "--agent", "x"), "scope agent"),
        (("--scope", "viewer", "--expires", "2020-01-01"), "future"),
        (("--scope", "viewer", "--expires", "soon"), "expires is"),
    ],
)
def test_a_wrong_token_is_refused_and_nothing_is_written(office: Path, words: tuple[str, ...], told: str) -> None:
    assert_refused(here("tokens", "create", "ci", *words, *WHY, *URL, cwd=office), told)
    assert said(office, "tokens", "list") == []


def test_a_token_of_another_tenant_than_the_settings_is_refused(office: Path) -> None:
    (office / "amends.toml").write_text('url = "sqlite:///ledger.db"\ntenant = "acme"\n', encoding="utf-8")
    (office / "app.py").write_text("from amends import Runtime\nrt = Runtime()\n", encoding="utf-8")
    create = ("tokens", "create", "ci", "--scope", "operator", *WHY, "--app", "app:rt")
    assert_refused(here(*create, "--tenant", "umbrella", cwd=office), "acme")
    done = here(*create, "--json", cwd=office)
    assert json.loads(done.stdout)["tenant"] == "acme"


def test_logins_are_listed_when_asked_for(office: Path) -> None:
    with Runtime(f"sqlite:///{office / 'ledger.db'}") as rt:
        login = rt.create_token("ada", scopes="approver", by="oidc", why="logged in", kind="login")
    assert said(office, "tokens", "list") == []
    [listed] = said(office, "tokens", "list", "--logins")
    assert (listed["id"], listed["kind"]) == (login.id, "login")
    said(office, "tokens", "revoke", login.id[:12], "--why", "a lost laptop")
    assert said(office, "tokens", "list", "--logins") == []


def test_the_secrets_of_the_service_are_in_no_listing(office: Path) -> None:
    secrets = ("first-" + "s" * 32, "second-" + "t" * 32)
    table = '[login]\nissuer = "https://id.example.com"\nclient_id = "amends"\neveryone = "viewer"\n'
    table += 'redirect_url = "https://a.example.com/login/callback"\n'
    text = f'url = "sqlite:///ledger.db"\nsecret = "{secrets[0]}"\nlogin_secret = "{secrets[1]}"\n{table}'
    (office / "amends.toml").write_text(text, encoding="utf-8")
    for words in (("config", "show", "--origin"), ("config", "show", "--json"), ("doctor",), ("doctor", "--json")):
        done = here(*words, cwd=office)
        assert "(set)" in done.stdout or words[0] == "doctor", done
        for secret in secrets:
            assert secret not in done.stdout + done.stderr
    shown = {
        one["name"]: one["value"]
        for one in map(json.loads, here("config", "show", "--json", cwd=office).stdout.splitlines())
    }
    assert (shown["secret"], shown["login_secret"], shown["login"]["client_id"]) == ("(set)", "(set)", "amends")
    (office / "amends.toml").write_text(text.replace(f'"{secrets[1]}"', f'["{secrets[1]}"]'), encoding="utf-8")
    wrong = here("config", "show", cwd=office)
    assert_refused(wrong, "login_secret")
    assert secrets[1] not in wrong.stderr
