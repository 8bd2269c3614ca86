import json
import re
from pathlib import Path

import pytest

from amends import Runtime
from tests.cli.command import assert_refused, run
from tests.cli.terminal import at_terminal

FILES = {".amends-demo.json", "ledger.db", "payments.jsonl", "stock.jsonl", "shipping.jsonl", "mail.jsonl", "shop.py"}


def entries(folder: Path, book: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / f"{book}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_demo_as_data(tmp_path: Path) -> None:
    done = run("demo", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((report["run"]["id"], report["run"]["state"]) for report in reports)[:2] == [
        ("order-1", "committed"),
        ("order-2", "rolled_back"),
    ]
    assert len(reports) == 5
    assert "An order that works" in done.stderr


def test_five_orders_end_as_the_shops_own_files_say(tmp_path: Path) -> None:
    done = run(
        "demo", cwd=tmp_path, HOME=str(tmp_path / "home"), AMENDS_URL="sqlite:///elsewhere.db", AMENDS_CREATE="0"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    folder = tmp_path / "amends-demo"
    assert {path.name for path in folder.iterdir()} >= FILES
    assert {path.name for path in tmp_path.iterdir()} == {"amends-demo"}

    payments = entries(folder, "payments")
    charged = [entry["order"] for entry in payments if "charge" in entry]
    assert charged == ["order-1", "order-2", "order-3", "order-4", "order-5"]
    assert [entry["refund"] for entry in payments if "refund" in entry] == ["ch_2"]
    assert sum(int(str(entry["change"])) for entry in entries(folder, "stock")) == -1
    assert [entry["order"] for entry in entries(folder, "shipping")] == ["order-1", "order-3", "order-4", "order-5"]
    assert [entry["order"] for entry in entries(folder, "mail")] == ["order-1"]
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        states = {report.id: report.state for report in rt.runs()}
    assert states == dict.fromkeys(["order-1", "order-3", "order-4", "order-5"], "committed") | {
        "order-2": "rolled_back"
    }


def test_it_is_told_from_the_ledger_in_the_words_a_model_sees_and_says_what_to_type(tmp_path: Path) -> None:
    told = run("demo", cwd=tmp_path).stdout
    flat = " ".join(told.split())
    assert (
        "Not run: ship cannot be undone, so it comes last, and charge has not been done. "
        "Call charge first, then ship again with the same arguments." in flat
    )
    assert "bank: 4 charges kept, 1 refunded, 0 double" in told
    assert "killed by SIGKILL" in told
    assert "probe: Happened ch_3" in told
    for line in re.findall(r"python -m amends (.*)", told):
        shown = run(*line.split(), cwd=tmp_path)
        assert (shown.returncode, "order-3" in shown.stdout) == (0, True), shown.stderr
    assert "… held" in told
    assert "the shop is open" not in told, "nobody could press Ctrl-C"
    assert "\x1b" not in told


def test_it_is_played_at_a_terminal_in_colour(tmp_path: Path) -> None:
    seen = at_terminal("demo", "--no-serve", cwd=tmp_path, width=80)
    assert (seen.code, "\x1b[" in seen.raw) == (0, True)
    assert all(len(line) <= 80 for line in seen.lines), seen.text
    assert "┊" not in seen.text, "it is made for this width"


def test_a_fresh_one_begins_anew_and_a_kept_one_goes_on_counting(tmp_path: Path) -> None:
    assert run("demo", cwd=tmp_path).returncode == 0
    assert "bank: 4 charges kept" in run("demo", cwd=tmp_path).stdout
    kept = run("demo", "--keep", cwd=tmp_path)
    assert (kept.returncode, "run order-10" in kept.stdout) == (0, True), kept.stderr
    assert "bank: 8 charges kept, 2 refunded, 0 double" in kept.stdout


def test_it_never_deletes_what_it_did_not_make(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ledger.db").write_text("precious", encoding="utf-8")
    assert_refused(run("demo", "--dir", "mine", cwd=tmp_path), "not made by amends demo")
    assert_refused(run("demo", "--dir", "mine", "--keep", cwd=tmp_path), "not made by amends demo")
    assert (mine / "ledger.db").read_text(encoding="utf-8") == "precious"
    assert [path.name for path in mine.iterdir()] == ["ledger.db"]

    assert run("demo", cwd=tmp_path).returncode == 0
    (tmp_path / "amends-demo" / "notes.txt").write_text("mine", encoding="utf-8")
    assert run("demo", cwd=tmp_path).returncode == 0
    assert (tmp_path / "amends-demo" / "notes.txt").exists()
    (tmp_path / "amends-demo" / "shop.py").write_text("changed = True\n", encoding="utf-8")
    assert_refused(run("demo", cwd=tmp_path), "was changed")


@pytest.mark.parametrize("args", [("--dir", "/proc/no/such"), ("--dir",), ("--bogus",), ("extra",)])
def test_wrong_use_of_the_demo_is_an_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert_refused(run("demo", *args, cwd=tmp_path))


def test_it_fails_when_the_shops_files_and_the_ledger_disagree(tmp_path: Path) -> None:
    assert run("demo", cwd=tmp_path).returncode == 0
    payments = tmp_path / "amends-demo" / "payments.jsonl"
    lines = payments.read_text(encoding="utf-8").splitlines(keepends=True)
    payments.write_text("".join([*lines, lines[0]]), encoding="utf-8")  # the bank took order-1's money twice
    done = run("demo", "--keep", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 double" in done.stdout
    assert "payments.jsonl has 2 of order-1, the ledger 1 charge" in done.stderr
