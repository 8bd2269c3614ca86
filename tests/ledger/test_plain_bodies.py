"""The bodies of the two events of a plain call, of which shared parts are kept, are those that every event has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amends.encoding.chain import body_of, proof
from amends.encoding.ids import call_id
from amends.ledger.plain import (
    AdmitPlain,
    PlainRun,
    PlainTool,
    SettlePlain,
    Started,
    admission_facts,
    settlement_facts,
)

NAMES = st.text(max_size=12)
"""Also with NUL, quotes and characters that are not ASCII; a lone surrogate never reaches a run."""
DIGESTS = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(min_value=0, max_value=(1 << 63) - 1)


@given(st.data())
def test_the_bodies_of_an_admission_and_a_success_are_those_of_the_general_function(data: st.DataObject) -> None:
    draw = data.draw
    run = PlainRun(draw(NAMES), draw(NAMES), draw(NAMES), "", "", draw(NAMES), draw(st.integers(1, 99)))
    tools = [
        PlainTool(draw(NAMES), draw(NAMES), draw(st.sampled_from(["compensatable", "read"])), declared, 1)
        for declared in (0, 1)
    ]
    for _ in range(3):
        tool, number = draw(st.sampled_from(tools)), draw(NUMBERS)
        op = AdmitPlain(
            run, tool, number, draw(DIGESTS), draw(DIGESTS), draw(DIGESTS), draw(NAMES), draw(st.sampled_from(["", "ref-1"])),
            proof=draw(st.sampled_from(["", proof("sealed"), "short"])),
        )  # fmt: skip
        whose = run.root, run.root, run.run_id, run.tenant, call_id(number), "call"
        facts = admission_facts(op, op.row_key)
        assert run.admission_body(op) == body_of(*whose, "(new)", "started", run.owner, run.epoch, facts)
        settle = SettlePlain(
            Started(op, 2, 1.0), draw(NAMES), proof=draw(st.sampled_from(["", proof("sealed"), "short"]))
        )
        facts = settlement_facts(settle.result, settle.proof)
        assert run.success_body(settle) == body_of(*whose, "started", "succeeded", run.owner, run.epoch, facts)
