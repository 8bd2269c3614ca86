"""What is no bundle, or a bad one, is refused in words, within bounds, and nothing is loaded."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from amends.audit.standalone import verify
from amends.errors import BadBundle, LedgerTampered
from tests.audit.trips import changed, packed, parts_of, runtime, travel, with_manifest


@pytest.fixture(scope="module")
def bundle() -> bytes:
    with runtime("memory:") as rt:
        return rt.export(*travel(rt))


def refused(data: bytes, *, says: str | None = None, error: type[Exception] = BadBundle) -> None:
    with runtime("memory:") as rt:
        with pytest.raises(error, match=says):
            rt.load(data)
        assert list(rt.events()) == []


def test_what_is_no_zip_is_no_bundle(bundle: bytes) -> None:
    for data in (b"", b"PK", b"hello", bundle[:-30], bundle[: len(bundle) // 2], bundle[50:]):
        refused(data)


def test_a_zip_of_something_else_is_no_bundle(bundle: bytes) -> None:
    parts = parts_of(bundle)
    refused(packed({**parts, "more.txt": b"x"}), says="exactly the files")
    refused(packed({name: data for name, data in parts.items() if name != "calls.jsonl"}), says="exactly the files")
    refused(packed({**parts, "../../evil.py": b"x"}), says="exactly the files")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in parts.items():
            made.writestr(name, data)
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("runs.jsonl", b"{}")
    refused(out.getvalue(), says="exactly the files")
    refused(with_manifest(bundle, format="something"), says="not a bundle of amends")
    refused(with_manifest(bundle, version=2), says="version 2")


def test_a_part_that_was_changed_by_hand_is_told(bundle: bytes) -> None:
    parts = parts_of(bundle)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in (parts | {"calls.jsonl": parts["calls.jsonl"] + b"\n"}).items():
            made.writestr(name, data)
    refused(out.getvalue(), says="calls.jsonl is not what the manifest says")


def test_a_bomb_is_refused_before_it_is_unpacked(bundle: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    monkeypatch.setattr(verify, "UNPACKED_MAX", limit)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in (parts_of(bundle) | {"events.jsonl": b" " * (40 * limit)}).items():
            made.writestr(name, data)
    bomb = out.getvalue()
    assert len(bomb) < limit
    tracemalloc.start()
    try:
        refused(bomb, says="larger than")
        assert tracemalloc.get_traced_memory()[1] < 20 * limit
    finally:
        tracemalloc.stop()


def test_a_bomb_that_lies_about_its_size_is_not_unpacked_either(bundle: bytes) -> None:
    out = io.BytesIO()
    size = 20 << 20
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in (parts_of(bundle) | {"events.jsonl": b" " * size}).items():
            made.writestr(name, data)
    lie = out.getvalue().replace(size.to_bytes(4, "little"), (10).to_bytes(4, "little"))
    tracemalloc.start()
    try:
        refused(lie)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b'{"at": NaN}',
        b"1",
        b"null",
        b'{"uid": 1, "uid": 2}',
        b"9" * 5000,
        b"\xff",
    ],
)
def test_lines_that_are_no_rows_are_refused(bundle: bytes, line: bytes) -> None:
    parts = parts_of(bundle)
    refused(packed({**parts, "runs.jsonl": parts["runs.jsonl"] + line + b"\n"}))


@pytest.mark.parametrize(
    "part, name, value",
    [
        ("runs", "history", "1"),
        ("runs", "history", True),
        ("runs", "opener", None),
        ("calls", "result", 5),
        ("calls", "learned", 5),
        ("calls", "first_at", "now"),
        ("runs", "surprise", 1),
        ("approvals", "tells", 1.5),
    ],
)
def test_rows_of_other_types_are_refused(bundle: bytes, part: str, name: str, value: Any) -> None:
    refused(changed(bundle, part, lambda rows: rows[0].update({name: value})))


def test_rows_that_name_other_places_runs_or_tenants_are_refused(bundle: bytes) -> None:
    def first(part: str, **values: Any) -> bytes:
        return changed(bundle, part, lambda rows: rows[0].update(values))

    def each(part: str, **values: Any) -> bytes:
        return changed(bundle, part, lambda rows: [row.update(values) for row in rows])

    either: Any = (BadBundle, LedgerTampered)
    refused(first("calls", seq=9_999), error=either)
    refused(first("calls", settled_seq=9_999), error=either)
    refused(first("calls", seq=0), error=either)
    refused(first("calls", run="run_x"), error=either)
    refused(first("calls", tenant="evil"), error=either)
    refused(first("runs", parent="run_x"), error=either)
    refused(each("runs", origin=""), error=either)
    refused(each("events", n=5), error=either)
    refused(first("approvals", used_seq=9_999), error=either)


@pytest.mark.parametrize(
    "part, name, value",
    [
        ("runs", "causes", "nonsense"),
        ("runs", "budgets", "{"),
        ("runs", "closed_at", 1e300),
        ("runs", "deadline_at", "later"),
        ("calls", "learned", "["),
        ("calls", "evidence", "["),
        ("calls", "cost", "nonsense"),
        ("calls", "settled_at", 1e17),
        ("calls", "probes", 1 << 70),
        ("approvals", "decided_at", 1e17),
    ],
)
def test_what_could_not_be_shown_is_not_loaded(bundle: bytes, part: str, name: str, value: Any) -> None:
    """Else one bad record would make every listing of the ledger fail."""
    refused(changed(bundle, part, lambda rows: rows[0].update({name: value})), error=(BadBundle, LedgerTampered))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity"])
def test_numbers_without_end_are_refused(bundle: bytes, number: str, tmp_path: Path) -> None:
    parts = parts_of(bundle)
    parts["events.jsonl"] = parts["events.jsonl"].replace(b'"at": ', f'"at": {number}, "was": '.encode(), 1)
    refused(packed(parts))
    (tmp_path / "b").write_bytes(packed(parts))
    assert verify.main([str(tmp_path / "b")]) == 2


def test_rows_that_a_newer_amends_may_leave_out_have_their_defaults(bundle: bytes) -> None:
    with runtime("memory:") as rt:
        rt.load(changed(bundle, "calls", lambda rows: [row.pop("probes") for row in rows]))
        assert len(list(rt.calls())) > 5


def test_no_byte_of_it_can_be_turned_so_that_something_else_is_loaded(bundle: bytes) -> None:
    """Of a zip some bytes mean nothing; whatever is loaded says what was exported."""
    luck, seen = random.Random(5), 0
    with runtime("memory:") as rt:
        rt.load(bundle)
        expected = [
            (event.run_id, event.what, event.at, event.facts) for event in rt.events() if "load:" not in event.run_id
        ]
    for _ in range(100):
        data = bytearray(bundle)
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        with runtime("memory:") as rt:
            try:
                rt.load(bytes(data))
            except (BadBundle, LedgerTampered):
                seen += 1
                continue
            told = [
                (event.run_id, event.what, event.at, event.facts)
                for event in rt.events()
                if "load:" not in event.run_id
            ]
            assert told == expected
    assert seen > 75


def test_the_program_says_so_too(bundle: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "b.zip"
    for data in (b"nothing", bundle[:100], packed({**parts_of(bundle), "runs.jsonl": b"[]\n"})):
        file.write_bytes(data)
        assert verify.main([str(file)]) == 2
        assert "cannot be read" in capsys.readouterr().err
    manifest = json.loads(parts_of(bundle)["manifest.json"])
    assert set(manifest["files"]) == set(verify.FILES) - {"manifest.json"}
