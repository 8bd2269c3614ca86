"""Hidden arguments: keys, conflicts, replays and locks bind through the commitment; bodies get the values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from amends import Happened, Runtime, Secret, Unknown, current_call, tool
from amends.errors import (
    ApprovalVoid,
    BadArguments,
    BadConfig,
    BadDeclaration,
    Held,
    InDoubt,
    KeyConflict,
    NotStorable,
    RunConflict,
)
from amends.stores.memory import MemoryStore
from tests.world import die, runtime, twin_of

CARD = "4242-4242-4242-4242"
OTHER = "5555-5555-5555-4444"


def charging(seen: list[Any], **options: Any) -> Any:
    @tool(**({"redact": ("card",)} | options))
    def charge(order: str, card: Any) -> str:
        seen.append(card)
        assert current_call().args["card"] == card, "its own code sees what it was called with"
        return f"ch_{order}"

    @charge.compensate
    def refund(result: str) -> None:
        seen.append(f"refunded {result}")

    return charge


def test_the_body_gets_the_value_and_the_ledger_a_commitment() -> None:
    seen: list[Any] = []
    rt = runtime(charge := charging(seen))
    with rt.run("r"):
        charge(order="1", card=CARD)
    assert seen == [CARD]
    call = rt.report("r").calls[0]
    assert isinstance(call.args["card"], Secret)
    assert call.args["order"] == "1"
    assert str(call.args["card"]).startswith("•••")
    assert CARD not in repr(rt._host.store.__dict__)


def test_the_same_value_is_a_replay_and_another_one_another_call() -> None:
    seen: list[Any] = []
    rt = runtime(charge := charging(seen))
    with rt.run("r"):
        assert charge(order="1", card=CARD) == charge(order="1", card=CARD)
        charge(order="1", card=OTHER)
    assert seen == [CARD, OTHER]


@pytest.mark.parametrize("key", ["order", lambda call: call.args["order"]], ids=["named", "function"])
def test_another_hidden_value_under_one_key_is_a_conflict_that_shows_neither(key: Any) -> None:
    seen: list[Any] = []
    rt = runtime(charge := charging(seen, key=key))
    with rt.run("r") as run:
        charge(order="1", card=CARD)
        with pytest.raises(KeyConflict) as no:
            charge(order="1", card=OTHER)
        answer = run.answer("charge", {"order": "1", "card": OTHER})
    assert set(no.value.diff) == {"card"}
    for text in (str(no.value), no.value.for_model(), repr(no.value.to_dict()), answer.text):
        assert CARD not in text
        assert OTHER not in text
        assert "•••" in text
    assert seen == [CARD]


def test_a_key_made_of_the_value_tells_nothing_of_it() -> None:
    stores = [MemoryStore(), MemoryStore()]
    keys = []
    for store in stores:  # each has a key of its own, and so other commitments
        seen: list[Any] = []
        rt = twin_of(store, charge := charging(seen, key=lambda call: call.args["card"]))
        with rt.run("r"):
            charge(order="1", card=CARD)
            with pytest.raises(KeyConflict):
                charge(order="2", card=CARD)
        keys.append([(call.key, call.ident, call.digest) for call in store.calls.values()])
    assert not set(keys[0][0]) & set(keys[1][0])


def test_a_resumed_run_is_answered_from_the_record_by_whoever_has_the_value_and_the_key() -> None:
    seen: list[Any] = []
    store = MemoryStore()
    rt = twin_of(store, charge := charging(seen))
    run = rt.open("r", recover="wait")
    run.call(charge, order="1", card=CARD)
    die(run)
    again = twin_of(store, charge)
    with again.run("r"):
        assert charge(order="1", card=CARD) == "ch_1"
    assert seen == [CARD]


def test_places_inside_an_argument_names_at_any_depth_and_spellings_anywhere() -> None:
    @dataclass
    class Customer:
        name: str
        iban: str

    class Login(BaseModel):
        user: str
        Password: str

    @tool(kind="read", redact=("customer.iban",))
    def look(customer: Customer, login: Login, more: dict[str, Any], note: str) -> None: ...

    rt = runtime(look, redact=["password", "api_*", r"re:sk-[a-z0-9]{6,}"])
    more = {"API_KEY": ["a-first-key", 7_654_321], "deep": [{"x": ({"password": "hush-hush"},)}]}
    with rt.run("r"):
        look(Customer("Anna", "DE89 3704"), Login(user="anna", Password="pssst!"), more, "use sk-abcdef1 please")
    held = repr(rt._host.store.__dict__)
    for secret in ("DE89 3704", "pssst!", "a-first-key", "7654321", "hush-hush", "sk-abcdef1"):
        assert secret not in held
    args = rt.report("r").calls[0].args
    assert args["customer"]["name"] == "Anna"
    assert args["login"]["user"] == "anna"
    assert isinstance(args["customer"]["iban"], Secret)
    assert isinstance(args["note"], Secret)


def test_pydantics_own_secrets_are_hidden_values_too() -> None:
    seen: list[str] = []

    @tool(kind="read", redact="token")
    def look(token: SecretStr) -> None:
        seen.append(token.get_secret_value())

    rt = runtime(look)
    with rt.run("r"):
        look(SecretStr("a-long-token"))
    assert seen == ["a-long-token"]
    assert "a-long-token" not in repr(rt._host.store.__dict__)


def test_two_tools_that_lock_by_a_hidden_value_meet_and_the_lock_does_not_tell() -> None:
    def locking(name: str) -> Any:
        @tool(name=name, kind="pivot", redact="card", locks=lambda call: [f"card:{call.args['card']}"])
        def body(card: str) -> None: ...

        return body

    first, second = locking("first"), locking("second")
    rt = runtime(first, second)
    with rt.run("a"):
        first(card=CARD)
    run = rt.open("b")
    run.call(second, card=CARD)
    [lock] = rt.locks()
    assert lock.name.startswith("card:secret-")
    assert CARD not in lock.name
    other = rt.open("c", wait=0.0)
    with pytest.raises(Exception, match="card:secret-"):
        other.call(first, card=CARD)
    run.commit()
    other.commit()


def test_a_result_that_spells_it_is_masked_for_replays_and_whole_for_the_first_caller() -> None:
    @tool(redact="card")
    def charge(card: str) -> dict[str, str]:
        return {"note": f"charged {card} today", "id": "ch_1"}

    @charge.compensate
    def refund(result: dict[str, str]) -> None:
        assert result["id"] == "ch_1"

    rt = runtime(charge)
    with rt.run("r") as run:
        assert charge(card=CARD)["note"] == f"charged {CARD} today"
        again = charge(card=CARD)
        answer = run.answer("charge", {"card": CARD})
    assert again["id"] == "ch_1"
    assert CARD not in again["note"]
    assert CARD not in answer.text
    call = rt.report("r").calls[0]
    assert "redacted" in str(call.loss)


def test_an_error_that_spells_it_comes_out_as_itself_and_is_recorded_without_it() -> None:
    @tool(redact="card")
    def charge(card: str) -> None:
        raise ValueError(f"no such card: {card!r}")

    charge.compensate(lambda: None)
    rt = runtime(charge)
    with pytest.raises(ValueError, match=CARD):
        with rt.run("r"):
            charge(card=CARD)
    report = rt.report("r")
    assert "no such card" in str(report.calls[0].error)
    assert CARD not in report.to_json() + str(report) + repr(list(rt.events()))
    with rt.run("s") as run:
        answer = run.answer("charge", {"card": CARD})
    assert CARD not in answer.text
    assert "no such card: '•••" in answer.text


def test_short_values_are_masked_where_they_stand_alone() -> None:
    @tool(kind="read", redact=("cvv", "pin"))
    def look(cvv: str, pin: int) -> None:
        raise ValueError(f"cvv {cvv}, order 41237, pin={pin}")

    rt = runtime(look)
    with rt.run("r") as run:
        run.answer("look", {"cvv": "123", "pin": 9876})
    error = str(rt.report("r").calls[0].error)
    assert "41237" in error
    assert "123," not in error
    assert "9876" not in error


def test_an_error_of_ours_does_not_say_it_through_what_it_comes_from() -> None:
    import traceback

    @tool(kind="pivot", redact="card")
    def wire(card: str) -> None:
        raise TimeoutError(f"{card} timed out")

    rt = runtime(wire)
    run = rt.open("r")
    with pytest.raises(InDoubt) as doubt:
        run.call(wire, card=CARD)
    text = "".join(traceback.format_exception(doubt.value))
    assert "timed out" in text
    assert CARD not in text


def test_what_is_wrong_with_arguments_is_said_without_them() -> None:
    class Login(BaseModel):
        user: str
        password: int

    @tool(kind="read", redact="card")
    def look(card: int, login: Login, note: int) -> None: ...

    rt = runtime(look, redact=["password", "re:sk-[a-z0-9]+"])
    secrets = ("4242-none", "pa55word", "sk-abcdef")
    given = {"card": "4242-none", "login": {"user": "u", "password": "pa55word"}, "note": "sk-abcdef"}
    for args in (given, {**given, "login": "pa55word sk-abcdef"}, {**given, "login": ["pa55word"]}):
        with rt.run() as run:
            with pytest.raises(BadArguments) as bad:
                run.call(look, **args)
            answer = run.answer("look", args)
        for text in (str(bad.value), repr(bad.value.problems), answer.text):
            assert not [secret for secret in secrets if secret in text], text


def test_inputs_and_outputs_are_hidden_by_the_runtimes_patterns() -> None:
    rt = runtime(redact=["password"])
    given = {"user": "anna", "password": "hush-hush"}
    with rt.run("r", input=given) as run:
        assert run.input == given, "whoever gave it has it"
        run.output = {"password": "new-secret", "ok": True}
    info = rt.report("r").run
    assert info.input["user"] == "anna"
    assert isinstance(info.input["password"], Secret)
    assert info.output["ok"] is True
    assert "hush-hush" not in (held := repr(rt._host.store.__dict__))
    assert "new-secret" not in held
    with rt.run("r", input=given):
        pass
    with pytest.raises(RunConflict) as no:
        rt.open("r", input={**given, "password": "other-secret"})
    assert "other-secret" not in repr(no.value.to_dict()) + str(no.value)


# ---- without the value --------------------------------------------------------------------


@pytest.mark.parametrize("role", ["compensate", "probe", "guard"])
def test_a_twin_that_asks_for_what_is_hidden_is_refused_where_it_is_declared(role: str) -> None:
    @tool(redact=("card",))
    def charge(card: str) -> str:
        return "ch"

    if role != "compensate":
        charge.compensate(lambda result: None)

    def twin(card: str) -> Any: ...

    getattr(charge, role)(twin)
    with pytest.raises(BadDeclaration, match=r"takes card, which is redacted.*encrypt="):
        runtime(charge)
    open_ = tool(charge.fn, name="open", key="card")
    open_.compensate(lambda card: None)
    with pytest.raises(BadDeclaration, match="takes card"):
        runtime(open_, redact=["c?rd"])


@pytest.mark.parametrize("options", [{"kind": "retriable", "idempotent": True}, {"kind": "pivot", "at": "commit"}])
def test_what_starts_later_may_hide_nothing_that_is_not_kept(options: dict[str, Any]) -> None:
    def mail(token: str, note: str = "") -> None: ...

    with pytest.raises(BadDeclaration, match=r"accepted for later and redacts token.*encrypt="):
        runtime(tool(mail, redact="token", **options))
    later: Any = tool(mail, **options)
    rt = runtime(later, redact=["re:sk-[a-z]+"])
    with rt.run("r"):
        with pytest.raises(NotStorable, match=r"args\.note of mail is redacted"):
            later(token="t", note="sk-abcdef")
        later(token="t", note="nothing")


def test_an_idempotent_call_in_doubt_is_not_started_again_by_who_lacks_the_value() -> None:
    starts: list[str] = []

    @tool(redact="card", idempotent=True)
    def charge(order: str, card: str) -> str:
        starts.append(card)
        raise TimeoutError("lost")

    charge.compensate(lambda result: None)
    store = MemoryStore()
    rt = twin_of(store, charge)
    run = rt.open("r")
    with pytest.raises(InDoubt):
        run.call(charge, order="1", card=CARD)
    mine = len(starts)
    assert mine > 1, "here the value is at hand, and the destination deduplicates"
    die(run)
    [report] = twin_of(store, charge).recover()
    assert len(starts) == mine
    assert set(starts) == {CARD}
    assert report.state == "blocked"
    assert "rt.resolve" in str(report), "a person's matter, and the verb is named"


def test_a_compensation_that_asks_for_a_text_that_a_pattern_hid_is_passed_over_and_named() -> None:
    undone: list[str] = []

    @tool
    def reserve(note: str) -> None: ...

    @reserve.compensate
    def release(note: str) -> None:
        undone.append(note)

    rt = runtime(reserve, redact=["re:sk-[a-z]+"])
    with pytest.raises(Exception, match="blocked"):
        with rt.run("r"):
            reserve(note="first")
            reserve(note="with sk-abcdef inside")
            raise RuntimeError("it fails")
    assert undone == ["first"]
    report = rt.report("r")
    assert [call.state for call in report.calls] == ["compensated", "compensation_failed"]
    assert "asks for note, which is redacted" in str(report)
    rt.resolve(report.calls[1].id, Happened(None), by="anna", why="released by hand")
    assert rt.report("r").state == "rolled_back"


def test_a_compensation_for_everything_gets_everything_that_everybody_could_give_it() -> None:
    given: list[dict[str, Any]] = []

    @tool(redact="card")
    def charge(order: str, card: str) -> None: ...

    @charge.compensate
    def refund(**everything: Any) -> None:
        given.append(everything)

    rt = runtime(charge)
    with pytest.raises(RuntimeError):
        with rt.run("r"):
            charge(order="1", card=CARD)
            raise RuntimeError("no")
    assert given == [{"order": "1"}]


def test_a_probe_that_asks_for_a_text_that_a_pattern_hid_says_that_it_cannot_know() -> None:
    @tool(kind="pivot")
    def wire(note: str) -> None:
        raise TimeoutError("lost")

    @wire.probe
    def find(note: str) -> Any:
        raise AssertionError("nobody has what it asks for")

    rt = runtime(wire, redact=["re:sk-[a-z]+"], wait=0.2)
    run = rt.open("r")
    with pytest.raises(InDoubt) as doubt:
        run.call(wire, note="sk-abcdef")
    answer = rt.probe(doubt.value.call.id)
    assert answer == Unknown("it asks for note, which is redacted and not kept")


# ---- the key ------------------------------------------------------------------------------


def test_the_key_is_made_beside_the_ledger_for_its_owner_only(tmp_path: Path) -> None:
    seen: list[Any] = []
    charge = charging(seen)
    url = f"sqlite:///{tmp_path}/l.db"
    for _ in range(2):
        with Runtime(url, tools=[charge]) as rt, rt.run("r"):
            charge(order="1", card=CARD)
    assert seen == [CARD]
    file = tmp_path / "l.db.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("*.key*")) == ["l.db.key"]
    kept = file.read_bytes()
    assert kept.strip() not in (tmp_path / "l.db").read_bytes()
    file.chmod(0o644)
    with pytest.raises(BadConfig, match="can be read by users other"):
        Runtime(url, tools=[charge]).open("r")


@pytest.mark.parametrize("loss", ["gone", "another"])
def test_with_another_key_nothing_is_begun_since_nothing_would_be_recognised(tmp_path: Path, loss: str) -> None:
    seen: list[Any] = []
    charge = charging(seen)
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[charge]) as rt, rt.run("r"):
        charge(order="1", card=CARD)
    (tmp_path / "l.db.key").unlink()
    given = {} if loss == "gone" else {"secret_key": "x" * 40}
    with pytest.raises(BadConfig) as no:
        Runtime(url, tools=[charge], **given).open("s")  # type: ignore[arg-type]
    assert ("is missing" if loss == "gone" else "not the one") in str(no.value)
    assert not (tmp_path / "l.db.key").exists()
    with Runtime(url, create=False) as reader:
        assert reader.report("r").state == "committed", "reading hides nothing, and needs no key"


def test_a_server_needs_the_key_to_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMENDS_SECRET_KEY", raising=False)
    charge = charging([])
    with pytest.raises(BadConfig, match="there is no secret_key"):
        Runtime("postgresql://nobody@nowhere/x", tools=[charge])
    with pytest.raises(BadConfig, match="10 characters"):
        Runtime("postgresql://nobody@nowhere/x", tools=[charge], secret_key="x" * 10)
    monkeypatch.setenv("AMENDS_SECRET_KEY", "y" * 40)
    rt = Runtime("postgresql://nobody@nowhere/x", tools=[charge])
    assert "y" * 40 not in repr(dict(rt.settings))
    Runtime("postgresql://nobody@nowhere/x")  # hides nothing


@pytest.mark.parametrize("pattern", ["re:(", "re:", "", "re:x*", 7])
def test_a_pattern_that_makes_no_sense_is_refused(pattern: Any) -> None:
    with pytest.raises(BadConfig, match="redact"):
        runtime(redact=[pattern])


# ---- approvals ----------------------------------------------------------------------------


def test_an_approval_binds_the_value_that_nobody_sees() -> None:
    seen: list[str] = []

    @tool(kind="pivot", key="order", redact="card", needs_approval=True)
    def wire(order: str, card: str) -> str:
        seen.append(card)
        return "w"

    rt = runtime(wire)
    with pytest.raises(Held), rt.run("r", recover="wait"):
        wire(order="1", card=CARD)
    [asked] = rt.approvals("state:pending")
    assert isinstance(asked.call.args["card"], Secret)
    assert CARD not in repr(asked)
    rt.approve(asked.id, digest=asked.digest, by="anna")
    with pytest.raises(Held), rt.run("r", recover="wait"):
        with pytest.raises(ApprovalVoid) as void:
            wire(order="1", card=OTHER)
    assert (void.value.why, set(void.value.diff)) == ("changed", {"card"})
    assert OTHER not in str(void.value) + repr(void.value.to_dict())
    assert seen == []
    for again in rt.approvals("state:pending"):
        rt.approve(again.id, digest=again.digest, by="anna")
    with rt.run("r", recover="wait"):
        wire(order="1", card=OTHER)
    assert seen == [OTHER]


def test_what_was_approved_waits_for_the_caller_who_has_the_value() -> None:
    seen: list[str] = []

    @tool(redact="card", needs_approval=True)
    def charge(card: str) -> str:
        seen.append(card)
        return "ch"

    charge.compensate(lambda result: None)
    store = MemoryStore()
    rt = twin_of(store, charge)
    with pytest.raises(Held), rt.run("r", recover="wait"):
        with suppress(Held):  # the block goes on, and its commit waits
            charge(card=CARD)
    [asked] = rt.approvals("state:pending")
    rt.approve(asked.id, digest=asked.digest, by="anna")
    worker = twin_of(store, charge)
    for _ in range(3):
        worker.recover()
    assert seen == []
    with twin_of(store, charge).run("r", recover="wait"):
        assert charge(card=CARD) == "ch"
    assert seen == [CARD]
    assert worker.report("r").state == "committed"


def test_a_rule_that_raises_over_a_value_is_written_down_without_it() -> None:
    def rule(call: Any) -> bool:
        raise ValueError(f"cannot judge {call.args['card']}")

    @tool(kind="pivot", redact="card", needs_approval=rule)
    def wire(card: str) -> None: ...

    rt = runtime(wire)
    with pytest.raises(Held), rt.run("r", recover="wait"):
        wire(card=CARD)
    [asked] = rt.approvals()
    assert "cannot judge •••" in asked.rule
    assert CARD not in repr(rt._host.store.__dict__)


def test_a_hook_that_fails_is_logged_without_what_a_pattern_hides(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_: Any) -> None:
        raise ValueError("no answer from https://hooks.example/T0-0123456789")

    @tool(kind="pivot", needs_approval=True)
    def wire() -> None: ...

    rt = runtime(wire, on_approval_needed=hook, redact=[r"re:T0-\d+"])
    with pytest.raises(Held), rt.run("r"):
        wire()
    assert "on_approval_needed failed" in caplog.text
    assert "no answer from https://hooks.example/•••" in caplog.text
    assert not any("T0-0123456789" in f"{record.msg}{record.args}{record.exc_info}" for record in caplog.records)
