"""S5: approved, then changed, reordered, repeated, too late, elsewhere, by oneself: one campaign, 120 mails."""

from __future__ import annotations

from pathlib import Path

import pytest

from amends import Held, Rule, Runtime, tool
from amends.errors import ApprovalVoid, RunEnded, UsageError
from amends.ledger.approvals import why_not_startable
from amends.ledger.operations import ReadApproval, ReadCall
from tests.scenarios.stores import STORES, fresh


class Crm:
    """What was sent."""

    def __init__(self) -> None:
        self.mails = 0
        self.campaigns = 0


def build(url: str, crm: Crm, **options: object) -> Runtime:
    @tool(kind="pivot", key="template")
    def send_campaign(audience: dict[str, str], template: str, n: int) -> str:
        crm.campaigns += 1
        crm.mails += n
        return f"{template} to {n}"

    rules = [Rule("send_campaign", expires=float(options.pop("expires", 3600.0)), why="people get mail")]  # type: ignore[arg-type]
    return Runtime(url, tools=[send_campaign], rules=rules, principal="agent-7", **options)  # type: ignore[arg-type]


AUDIENCE = {"list": "all", "lang": "de"}
ASKED = {"audience": AUDIENCE, "template": "spring", "n": 120}


def _hold(rt: Runtime, run_id: str = "spring") -> Held:
    with pytest.raises(Held) as held, rt.run(run_id) as run:
        assert run.answer("send_campaign", ASKED).status == "held"
        raise run.answer("send_campaign", ASKED).error  # type: ignore[misc]
    return held.value


@pytest.mark.parametrize("kind", STORES)
def test_one_campaign_of_120_mails(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    crm = Crm()
    rt = build(fresh(kind, tmp_path, request), crm)
    first = _hold(rt).approval
    with pytest.raises(ApprovalVoid) as self:
        rt.approve(first.id, digest=first.digest, by="Agent-7")
    assert self.value.why == "self"
    rt.approve(first.id, digest=first.digest, by="anna")

    # The resumed agent asks for a hundred times as many: that is another request, and the yes is gone.
    with pytest.raises(Held), rt.run("spring") as run:
        changed = run.answer("send_campaign", {**ASKED, "n": 12_000})
        assert isinstance(changed.error, ApprovalVoid)
        assert changed.error.why == "changed"
        raise Held("left to a person", call=changed.call, reason="approval")
    assert crm.campaigns == 0
    [second] = rt.approvals()
    rt.reject(second.id, by="anna", reason="120, not 12 000")

    # Asked for as it was, it is asked about again; in another order of keys it is the same.
    with pytest.raises(Held), rt.run("spring") as run:
        raise run.answer("send_campaign", ASKED).error  # type: ignore[misc]
    [third] = rt.approvals()
    rt.approve(third.id, digest=third.digest, by="anna")
    reordered = {"n": 120, "template": "spring", "audience": {"lang": "de", "list": "all"}}
    with rt.run("spring") as run:
        assert run.answer("send_campaign", reordered).status == "done"
        assert run.answer("send_campaign", ASKED).status == "replayed"
    assert (crm.campaigns, crm.mails) == (1, 120)
    with pytest.raises(ApprovalVoid) as used:
        rt.approve(third.id, digest=third.digest, by="anna")
    assert used.value.why == "used"
    with rt.run("spring") as run:
        assert run.answer("send_campaign", ASKED).status == "replayed"
    assert (crm.campaigns, crm.mails) == (1, 120)
    rt.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_yes_is_for_one_run_of_one_tenant(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    crm = Crm()
    rt = build(fresh(kind, tmp_path, request), crm)
    here, there = rt.scoped(tenant="here"), rt.scoped(tenant="there")
    mine = _hold(here).approval
    with pytest.raises(UsageError, match=r"^there is no approval 'apr_\w+' in this ledger"):
        there.approve(mine.id, digest=mine.digest, by="anna")
    here.approve(mine.id, digest=mine.digest, by="anna")
    assert _hold(here, "summer").approval.id != mine.id, "another run asks for itself"
    assert _hold(there).approval.id != mine.id
    another = _hold(here, "autumn").approval
    with pytest.raises(ApprovalVoid) as changed:
        here.approve(another.id, digest=mine.digest, by="anna")
    assert changed.value.why == "changed"
    # A yes that was moved by hand to another call, past all of this, is still not its own.
    found = rt._host.store.perform(ReadApproval(mine.id))
    call = rt._host.store.perform(ReadCall(another.call.id))
    assert found is not None
    assert call is not None
    assert why_not_startable(found.approval, call, None, found.now) == "other_run"
    assert crm.campaigns == 0
    rt.close()


@pytest.mark.parametrize("kind", STORES)
def test_what_ran_out_starts_nothing(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    crm = Crm()
    rt = build(fresh(kind, tmp_path, request), crm, expires=2.0)  # time enough to say yes on a busy machine
    mine = _hold(rt).approval
    rt.approve(mine.id, digest=mine.digest, by="anna")
    while rt.approval(mine.id).state != "expired":
        pass
    with pytest.raises((Held, RunEnded)), rt.run("spring") as run:
        late = run.answer("send_campaign", ASKED)
        assert isinstance(late.error, ApprovalVoid)
        assert late.error.why == "expired"
        raise Held("left to a person", call=late.call, reason="approval")
    assert crm.campaigns == 0
    rt.close()
