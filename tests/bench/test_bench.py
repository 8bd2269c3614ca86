"""``make bench`` measures and says what it found, whatever it found. Nothing here judges a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from bench import against, environments, parts
from bench.__main__ import main
from bench.bars import (
    AGAINST_FLOOR,
    CONSOLE,
    CPU,
    CPU_ASYNC,
    ENGINES,
    GATEWAY,
    GROWN,
    IMPORT,
    PAGE,
    REPLAYED,
    SERVE,
    SIZE,
    STORES,
    VERIFIED,
    WAIT,
    WAL,
    Row,
)  # fmt: skip
from bench.chart import chart
from bench.fill import CALLS_PER_RUN, PATTERN_RUNS, fill
from bench.measure import FLOOR, OURS, Figures, against_floor
from bench.sides.bare import Bare
from bench.sides.ours import pay
from bench.sides.timing import args_of, many, plain, timed

pytestmark = pytest.mark.rest  # about the bench, not about amends

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = ["work", "store", "ratio", "bar", "holds"]
BENCH_S_MAX = 300
DESIGN = {
    "fresh call, sync": (2.0, 1.3, 1.3, 1.6),
    "fresh call, async": (2.5, 2.3, 1.4, 2.0),
    "calls per second, 64 tasks against 64 naive loops": (1.8, 6.0, 3.0, 1.2),
    "calls per second, 64 threads against 64 naive loops": (0.9, 2.5, 2.0, 1.2),
    "answer from the record, against one indexed read": (4.0, 4.0, 1.2, 1.2),
    "4 calls, the last fails, 3 compensated, against the same commits": (2.0, 1.3, 1.4, 1.7),
    "the same call in a ledger of {calls} calls, against an empty one": (1.15, 1.15, 1.15, 1.3),
    "a page of the run list at {calls} calls, against one of 1,000": (1.5, 1.5, 1.5, 1.5),
    "the slowest page of the console at {calls} calls, against one of 1,000": (1.5, 1.5, 1.5, 1.5),
}
ALONE = (
    (CPU, (30.0, "at most", "µs")),
    (CPU_ASYNC, (30.0, "at most", "µs")),
    (IMPORT, (90.0, "at most", "ms")),
    (SIZE, (500.0, "at most", "bytes")),
    (WAL, (1300.0, "at most", "bytes")),
    (VERIFIED, (60_000.0, "at least", "events/s")),
    (REPLAYED, (40_000.0, "at least", "calls/s")),
)


def bench(out: Path, *options: str, **environ: str) -> tuple[list[dict[str, Any]], str]:
    """The rows and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--out", str(out), *options],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, encoding="utf-8", timeout=BENCH_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ET.fromstring((out / "bench.svg").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    return rows, done.stdout


@pytest.mark.slow
def test_a_quick_run_measures_every_row_of_sqlite(tmp_path: Path) -> None:
    """Every row on one setting of SQLite, and one row on the other: they differ in what a commit waits for."""
    only = "(memory|any|sqlite-normal)$|^fresh .*sqlite-full$"
    options = ("--stores", "sqlite", "--only", only, "--calls", "20", "--repeats", "1", "--large", "400")
    rows, printed = bench(tmp_path, "--quick", *options)
    for row in rows:
        assert list(row)[: len(KEYS)] == KEYS
        assert isinstance(row["ratio"], float), row
        assert isinstance(row["bar"], float)
        assert isinstance(row["holds"], bool)
        assert row["work"] in printed
    against = {row["work"] for row in rows if row["store"] == "sqlite-normal"}
    assert {WAIT.title, *(work.title for work in AGAINST_FLOOR)} < against
    assert {CPU.title, CPU_ASYNC.title} < {row["work"] for row in rows if row["store"] == "memory"}
    assert any(row["work"].startswith("a run of 500 calls, replayed") for row in rows)
    assert any("a ledger of 400 calls" in work for work in against)
    assert any("the run list at 400 calls" in work for work in against)
    assert SIZE.title in against
    (served,) = (row for row in rows if row["work"] == SERVE.title)
    assert (served["bar"], served["sense"]) == (0.4, "at least")
    assert served["pairs"] >= 256  # each client made one at least, and the ledger has them
    assert served["p99_ms"] > 0
    assert any(row["work"] == "an audit of 10,000 events" and row["calibration_us"] > 0 for row in rows)
    assert [row["work"] for row in rows if row["store"] == "sqlite-full"] == [AGAINST_FLOOR[0].title]
    assert {row["store"] for row in rows} == {"sqlite-normal", "sqlite-full", "memory", "any"}


def test_what_cannot_be_measured_is_a_row_that_says_why(tmp_path: Path) -> None:
    unset = {"AMENDS_BENCH_POSTGRES_URL": "", "AMENDS_TEST_SERVERS": "off"}
    rows, printed = bench(tmp_path, "--quick", "--stores", "postgres", "--only", "^fresh .*postgres", **unset)
    assert [(row["ratio"], row["holds"]) for row in rows] == [(None, False)]
    assert "no PostgreSQL server" in rows[0]["error"]
    assert rows[0]["error"] in printed


@pytest.mark.slow
def test_a_call_through_the_gateway_is_measured_against_the_bare_server(tmp_path: Path) -> None:
    rows, printed = bench(tmp_path, "--quick", "--stores", "sqlite", "--only", "^gateway .*(echo|write_file)$")
    assert [row["store"] for row in rows] == ["echo", "write_file"]
    for row in rows:
        assert (row["work"], row["bar"]) == (GATEWAY.title, 1.5)
        if row["ratio"] is None:  # no npm here
            assert row["error"] in printed
            continue
        assert row["us"] > row["floor_us"] > 0
        assert all(us > 0 for us in row["cpu_us"].values())


def test_the_bars_are_those_of_the_design() -> None:
    bars = {work.title: tuple(work.bars[store] for store in STORES) for work in (*AGAINST_FLOOR, GROWN, PAGE, CONSOLE)}
    assert bars == DESIGN
    assert ENGINES.bars == {"temporal": 1.3, "restate": 1.3}
    assert set(GATEWAY.bars) == {"echo", "works", "create_entities", "write_file"}
    assert set(GATEWAY.bars.values()) == {1.5}
    for work, said in ALONE:
        assert [(bar, work.sense, work.unit) for bar in work.bars.values()] == [said]


@pytest.mark.parametrize(
    "name, floor_us, bar",
    [("fresh_async", 599.0, 1.6), ("fresh_async", 600.0, 2.3), ("many", 999.0, 2.5), ("many", 1000.0, 8.0)],
)
def test_two_bars_depend_on_how_fast_the_disk_is(name: str, floor_us: float, bar: float) -> None:
    """A flush of less than 0.3 ms is two of them in a call of the floor; fewer than 1,000 calls/s are 1 ms each."""
    (work,) = (work for work in AGAINST_FLOOR if work.name == name)
    figures = Figures({FLOOR: [floor_us / 1e6], OURS: [1.0]})
    (row,) = against_floor(work, "sqlite-full", figures)
    assert row.bar == bar


def test_only_bare_statements_and_sagas_by_hand_may_be_a_little_faster() -> None:
    figures = Figures({FLOOR: [1.0], OURS: [1.2], "exactly-once": [1.0], "agent-saga": [1.1]})
    works = {work.name: work for work in AGAINST_FLOOR}
    for work, store, peer, bar, holds in (
        ("fresh", "sqlite-normal", "agent-saga", 1.0, False),
        ("saga", "postgres", "agent-saga", 1.0, False),
        ("fresh", "postgres", "exactly-once", 1.0, False),
    ):
        _, behind = against_floor(works[work], store, figures)
        assert (behind.more["peer"], behind.bar, behind.holds) == (peer, bar, holds)
    alone = Figures({name: figures.per_call[name] for name in (FLOOR, OURS, "exactly-once")})
    for work, store in (("fresh", "sqlite-normal"), ("saga", "postgres")):
        _, behind = against_floor(works[work], store, alone)
        assert (behind.ratio, behind.bar, behind.holds) == (1.2, 1.3, True)


@pytest.mark.parametrize(
    "sense, ratio, holds",
    [("at most", 1.5, True), ("at most", 1.51, False), ("at least", 1.5, True), ("at least", 1.49, False)],
)
def test_a_bar_is_met_or_not(sense: Any, ratio: float, holds: bool) -> None:
    assert Row("w", "s", ratio, 1.5, sense).holds is holds


def test_a_ratio_is_the_median_of_the_repeats_and_the_best_peer_is_named() -> None:
    figures = Figures({FLOOR: [1.0, 2.0, 1.0], OURS: [2.0, 4.0, 9.0], "slow": [5.0, 5.0, 5.0], "fast": [1.5, 3.0, 1.5]})
    (work,) = (work for work in AGAINST_FLOOR if work.name == "fresh")
    own, behind = against_floor(work, "sqlite-normal", figures)
    assert (own.ratio, own.holds, own.more["peer"], own.more["peer_ratio"]) == (2.0, True, "fast", 1.5)
    assert (behind.ratio, behind.bar, behind.holds) == (4 / 3, 1.0, False)


def test_rates_are_compared_the_other_way_round() -> None:
    figures = Figures({FLOOR: [8.0], OURS: [1.0], "slow": [4.0], "fast": [2.0]})
    (work,) = (work for work in AGAINST_FLOOR if work.name == "many")
    own, behind = against_floor(work, "sqlite-full", figures)
    assert (own.ratio, own.holds, own.more["peer"], own.more["peer_ratio"]) == (8.0, True, "fast", 4.0)
    assert (behind.ratio, behind.holds) == (0.5, True)


def test_a_filled_ledger_is_a_true_one(tmp_path: Path) -> None:
    place = str(tmp_path / "large.db")
    fill("sqlite-full", place, 400)
    with Runtime(f"sqlite:///{place}", create=False) as rt:
        runs = list(rt.runs())
        assert len(runs) == 400 / CALLS_PER_RUN + PATTERN_RUNS
        assert len({run.id for run in runs}) == len(runs)
        assert len({call.id for call in rt.calls()}) == 400 + PATTERN_RUNS * CALLS_PER_RUN
        report = rt.report(runs[-1].id)
        assert [call.state for call in report.calls] == ["succeeded"] * CALLS_PER_RUN
        events = list(rt.events())
        assert [event.at for event in events] == sorted(event.at for event in events)
        of_run = [event.seq for event in rt.events(runs[0].id)]
        assert of_run == list(range(1, len(of_run) + 1))
        found = rt.verify()
        assert found.ok, str(found)
        assert found.events == len(events)
        first = rt.checkpoint()
        assert first is not None
        assert (first.n, first.heads) == (2, PATTERN_RUNS), "the copies are covered by a checkpoint of their own"


def test_an_audit_finds_a_changed_copy(tmp_path: Path) -> None:
    place = str(tmp_path / "large.db")
    fill("sqlite-full", place, 400)
    with contextlib.closing(sqlite3.connect(place)) as con, con:
        con.execute("""update amends_call set result = '{"ok":false}' where no = (select min(no) from amends_call)""")
    with Runtime(f"sqlite:///{place}", create=False) as rt:
        assert not rt.verify().ok


@pytest.mark.parametrize("store", ["postgres", "mariadb"])
def test_a_filled_ledger_on_a_server_is_a_true_one(store: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue("postgres_url" if store == "postgres" else "mysql_url")
    fill(store, url, 200)
    with Runtime(url, create=False, tools=[pay]) as rt:
        assert len(list(rt.runs())) == 200 / CALLS_PER_RUN + PATTERN_RUNS
        found = rt.verify()
        assert found.ok, str(found)
        with rt.run("after"):
            pay(**args_of("one"))
        assert rt.verify().ok


def test_two_checkouts_are_measured_in_turn() -> None:
    command = [sys.executable, "-m", "bench.against", str(against.ROOT), "--stores", "memory", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--calls", "20"], cwd=against.ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"memory +\d+ µs there, +\d+ µs here, ratio \d+\.\d\d\n", done.stdout)


def test_the_parts_of_a_call_are_measured_next_to_its_floor() -> None:
    command = [sys.executable, "-m", "bench", "--parts", "--stores", "sqlite-normal", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BENCH_S_MAX, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if "SQLite NORMAL" in line]
    assert [row[0].removeprefix("| ") for row in rows] == list(parts.TITLES.values())
    for row in rows:
        measured = [cell for cell in row[3:] if "(" in cell]
        assert len(measured) >= 2, row
        assert float(row[2]) > 0, row


def test_parts_of_a_store_that_has_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "--stores", "mariadb"])
    assert "sqlite-normal" in capsys.readouterr().err


@pytest.mark.parametrize("work", ["fresh", "saga", "many_async"])
def test_recorded_statements_do_the_same_to_a_copy_of_the_ledger(work: str, tmp_path: Path) -> None:
    bare = Bare(str(tmp_path / "bare.db"), "NORMAL")
    got = bare.works()[work](64, 1.0)
    figures = asyncio.run(got) if asyncio.iscoroutine(got) else got  # raises if the copy is another one afterwards
    assert figures["count"] >= 60
    assert figures["seconds"] > 0
    assert sqlite3.connect.__name__ == "connect", "nothing is recorded any more"


def test_sixty_four_callers_are_counted_until_the_time_is_over() -> None:
    figures = many(lambda: plain(lambda: None), 64 * 3, 30.0)
    assert figures["count"] == 64 * 3
    assert figures["seconds"] < 30.0


def test_whoever_is_slow_makes_fewer_calls() -> None:
    now = iter(range(100))
    assert timed(lambda _: None, 50, 7.0, clock=lambda: float(next(now)))["count"] == 7


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "BUILD", tmp_path)
    nowhere = environments.Peer("nobody", "nobody", (str(tmp_path / "nowhere"),), ())
    said = environments.installed((nowhere,))["nobody"]
    assert not environments.is_interpreter(said)
    assert re.match("could not be installed: .+", said)


def test_a_row_without_a_figure_is_drawn_too() -> None:
    drawn = chart([Row("a < b", "postgres", None, 2.0, error="no server"), Row("c", "postgres", 0.0, 2.0)])
    ET.fromstring(drawn)
    assert "not measured" in drawn
