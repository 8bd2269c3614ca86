"""The simulation of ledgers and tenants, and the page that ``make scale`` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale import shards
from bench.scale.__main__ import NAMES, PAGE, write


def test_the_simulation_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    small = {"tenants": 300, "calls": 5_000}
    assert shards.spreads(1, **small) == shards.spreads(1, **small)
    assert shards.spreads(1, **small) != shards.spreads(2, **small)


def test_no_ledger_carries_less_than_its_largest_tenant_and_every_tenant_is_placed_once() -> None:
    for one in shards.spreads(3, tenants=300, calls=5_000):
        assert one.busiest >= one.largest_tenant
        assert 1.0 <= one.capacity <= one.shards
        assert (one.shards > 1) or (one.tenants_hit, one.busiest) == (1.0, 1.0)


def test_a_table_never_spreads_worse_than_a_hash() -> None:
    found = {(one.exponent, one.shards, one.placed): one.busiest for one in shards.spreads(4, tenants=300, calls=5_000)}
    for (exponent, count, placed), busiest in found.items():
        if placed == "table" and count > 1:
            assert busiest <= found[exponent, count, "hash"]


def test_the_page_has_a_place_for_every_table_and_the_simulation_as_it_is_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"<!-- measured: {name} -->" not in text] == []
    assert "\n".join(shards.table()) in text


def test_a_table_without_a_place_in_the_page_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- measured: rates -->\nold\n<!-- end measured -->\nb\n", encoding="utf-8")
    write(page, {"rates": ["new"]})
    assert page.read_text(encoding="utf-8") == "a\n<!-- measured: rates -->\nnew\n<!-- end measured -->\nb\n"
    with pytest.raises(LookupError):
        write(page, {"bytes": ["new"]})
