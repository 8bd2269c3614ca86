import json
from pathlib import Path

import pytest

from amends import Runtime
from tests.cli.command import assert_refused, here, run
from tests.cli.conftest import Play

URL = ("--url", "sqlite:///shop.db")


def test_runs_are_listed_newest_first_as_a_table_or_as_lines_of_json(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2")
    table = run("runs", "list", *URL, cwd=shop)
    assert (table.returncode, table.stderr) == (0, "")
    assert [line.split()[:2] for line in table.stdout.splitlines()] == [
        ["run", "state"],
        ["order-2", "committed"],
        ["order-1", "committed"],
    ]
    lines = run("runs", "list", *URL, "--json", cwd=shop).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["order-2", "order-1"]


def test_a_filter_and_a_limit_choose_among_the_runs(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2", "other-3")
    found = run("runs", "list", "run:order-* status:committed", *URL, "--json", "--limit", "1", cwd=shop)
    assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == ["order-2"]
    assert "--limit" in found.stderr
    none = run("runs", "list", "status:blocked", *URL, "--json", cwd=shop)
    assert (none.returncode, none.stdout) == (0, "")


def test_a_run_is_shown_by_its_id_or_by_the_beginning_of_it(shop: Path, play: Play) -> None:
    play("pay", "order-1", "other-2")
    whole = run("runs", "show", "order-1", *URL, cwd=shop)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "✓ succeeded" in whole.stdout
    assert "= committed" in whole.stdout
    assert run("runs", "show", "ord", *URL, cwd=shop).stdout == whole.stdout
    shown = json.loads(run("runs", "show", "oth", *URL, "--json", cwd=shop).stdout)
    assert (shown["run"]["id"], shown["calls"][0]["tool"]) == ("other-2", "pay")
    assert_refused(run("runs", "show", "o", *URL, cwd=shop), "order-1", "other-2")


def test_doubts_are_listed_with_what_was_asked_for(shop: Path, play: Play) -> None:
    play("blind", "order-1", dies="order-1")
    assert run("recover", "app:rt", cwd=shop).returncode == 3
    (line,) = run("doubts", "list", *URL, "--json", cwd=shop).stdout.splitlines()
    doubt = json.loads(line)
    assert (doubt["run"], doubt["tool"], doubt["sent"]) == ("order-1", "pay_blindly", {"order": "order-1"})
    assert doubt["call"] in run("doubts", "list", *URL, cwd=shop).stdout


def test_settings_are_shown_with_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "amends.toml").write_text('lease = 12\nurl = "sqlite:///here.db"\n', encoding="utf-8")
    (tmp_path / "below").mkdir()
    shown = run("config", "show", "--origin", "--json", cwd=tmp_path / "below", AMENDS_WAIT="3")
    found = {one["name"]: one for one in map(json.loads, shown.stdout.splitlines())}
    assert found["url"]["value"] == f"sqlite:///{tmp_path / 'here.db'}"
    assert (found["lease"]["value"], found["lease"]["origin"]) == (12.0, str(tmp_path / "amends.toml"))
    assert (found["wait"]["value"], found["wait"]["origin"]) == (3.0, "AMENDS_WAIT")
    assert found["order"]["origin"] == "default"
    assert "origin" not in run("config", "show", cwd=tmp_path).stdout
    assert list(tmp_path.glob("*.db")) == []


def test_the_ledger_is_found_through_the_option_the_environment_and_the_file(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    assert "order-1" in run("runs", "list", cwd=shop, AMENDS_URL="sqlite:///shop.db").stdout
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")
    assert "order-1" in run("runs", "list", cwd=shop).stdout


def test_another_tenants_runs_are_not_shown(tmp_path: Path) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'shop.db'}", tenant="acme") as rt, rt.run("order-1"):
        pass
    assert run("runs", "list", *URL, cwd=tmp_path).stdout == ""
    assert "order-1" in run("runs", "list", *URL, "--tenant", "acme", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "args, words",
    [
        (("runs", "list"), ("no ledger at", "--url")),
        (("runs", "show", "order-1"), ("no ledger at",)),
        (("doubts", "list"), ("no ledger at",)),
        (("runs", "list", "--url", "shop.db"), ("shop.db", "sqlite:///shop.db")),
        (("runs", "list", "--url", "oracle://x"), ("oracle",)),
        (("doubts", "list", "--url", "sqlite:///no/such/folder.db"), ("no ledger at",)),
        (("config", "show", "--url", "nonsense"), ("nonsense",)),
        (("runs", "list", "--limit", "0"), ("limit",)),
        (("runs", "list", "--limit", "many"), ("limit",)),
        (("runs",), ("command",)),
        (("runs", "delete"), ("delete",)),
        (("runs", "show"), ("RUN",)),
        (("locks", "extra"), ("extra",)),
        (("config", "show", "--colour"), ("--colour",)),
        (("nonsense",), ("nonsense",)),
    ],
)
def test_wrong_use_is_an_error_with_a_hint_and_makes_no_ledger(
    tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = here(*args, cwd=tmp_path)
    assert_refused(done, *words)
    assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("filter", ["nonsense", "colour:red", "status:happy"])
def test_a_filter_that_is_not_understood_names_what_there_is(shop: Path, play: Play, filter: str) -> None:
    play("pay", "order-1")
    assert_refused(here("runs", "list", filter, *URL, cwd=shop), "hint: ")


@pytest.mark.parametrize("setting", ["AMENDS_LEASE", "AMENDS_ORDER", "AMENDS_CREATE"])
def test_a_setting_that_makes_no_sense_is_named(tmp_path: Path, setting: str) -> None:
    assert_refused(run("config", "show", cwd=tmp_path, **{setting: "purple"}), "purple", setting)


def test_a_file_that_is_no_ledger_and_a_broken_toml_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("dear diary, " * 1000, encoding="utf-8")
    assert_refused(run("runs", "list", "--url", "sqlite:///notes.db", cwd=tmp_path), "notes.db")
    (tmp_path / "amends.toml").write_text("url = ", encoding="utf-8")
    assert_refused(run("runs", "list", cwd=tmp_path), "amends.toml")
