"""Starts, retries and failures."""

from __future__ import annotations

import time

import pytest

from amends import InDoubt, NoEffect, Retry, RolledBack, RunBlocked, tool
from amends.errors import RunEnded
from tests.world import FAST, World, runtime, states


class Down(Exception):
    pass


class Rude(Exception):
    pass


def test_a_tools_own_error_comes_out_as_itself_and_is_no_run_failure() -> None:
    world = World()
    pay = world.compensatable("pay")
    error = Rude("no")
    world.script["pay"] = [error]
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(Rude) as caught:
            pay()
        assert caught.value is error
    assert rt.report("r").state == "committed"
    assert states(rt, "r") == {"pay": "failed"}
    (call,) = rt.calls()
    assert call.error is not None
    assert call.error.endswith("Rude: no")


def test_a_call_is_retried_up_to_its_attempts() -> None:
    world = World()
    pay = world.compensatable("pay", retry=FAST)
    world.script["pay"] = [Down(), Down()]
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "pay:1"
    (call,) = rt.calls()
    assert (call.attempt, call.generation) == (3, 1)


def test_an_error_that_its_retry_does_not_name_is_not_retried_where_there_is_a_probe_either() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay", retry=Retry(attempts=3, on=Down, delay=0.001)))
    world.script["pay"] = [Rude("1"), Rude("2")]
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(Rude) as first:
        pay()
    assert str(first.value) == "1"
    assert states(rt, "r") == {"pay": "failed"}


def test_an_error_that_its_retry_names_is_retried_once_the_probe_says_absent() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay", retry=Retry(attempts=3, on=Down, delay=0.001)))
    world.script["pay"] = [Down("1"), Down("2")]
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "pay:1"


def test_an_int_is_the_number_of_starts() -> None:
    world = World()
    pay = world.compensatable("pay", retry=Retry(attempts=2, delay=0.001))
    world.script["pay"] = [Down("1"), Down("2"), Down("3")]
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(Down) as last:
        pay()
    assert str(last.value) == "2"
    assert len(world.script["pay"]) == 1


def test_retries_are_only_for_the_errors_that_are_named() -> None:
    world = World()
    pay = world.compensatable("pay", retry=Retry(attempts=3, on=Down, delay=0.001))
    world.script["pay"] = [Down(), Rude(), Down()]
    with runtime(pay).run("r"), pytest.raises(Rude):
        pay()
    assert len(world.script["pay"]) == 1


def test_retries_back_off() -> None:
    world = World()
    pay = world.compensatable("pay", retry=Retry(attempts=3, delay=0.02, factor=2.0, jitter=0.0))
    world.script["pay"] = [Down(), Down()]
    began = time.monotonic()
    with runtime(pay).run("r"):
        pay()
    assert time.monotonic() - began >= 0.06


def test_every_attempt_of_a_generation_has_the_same_provider_key() -> None:
    from amends import current_call

    keys: list[str] = []
    attempts: list[int] = []

    @tool(retry=FAST)
    def pay() -> None:
        keys.append(current_call().key)
        attempts.append(current_call().attempt)
        if len(keys) < 3:
            raise Down

    pay.compensate(lambda: None)
    with runtime(pay).run("r"):
        pay()
    assert len(set(keys)) == 1
    assert attempts == [1, 2, 3]


def test_a_timeout_of_a_tool_that_is_not_idempotent_is_never_retried() -> None:
    world = World()
    pay = world.compensatable("pay", retry=FAST)
    world.script["pay"] = [TimeoutError("lost")]
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt) as doubt:
            pay()
        assert doubt.value.why == "timeout"
        assert isinstance(doubt.value.__cause__, TimeoutError)
        with pytest.raises(InDoubt):
            pay()
    assert world.log == []
    assert states(rt, "r") == {"pay": "in_doubt"}


def test_no_effect_is_a_certain_failure_even_for_a_probed_tool() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    world.script["pay"] = [NoEffect("declined")]
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(NoEffect):
        pay()
    assert states(rt, "r") == {"pay": "failed"}


def test_doubt_can_be_widened() -> None:
    world = World()
    pay = world.compensatable("pay", doubt=Rude)
    world.script["pay"] = [(Rude(),)]
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"), pytest.raises(InDoubt):
        pay()
    assert states(rt, "r") == {"pay": "in_doubt"}


def test_on_failure_rollback_dooms_the_run_even_if_somebody_catches_it() -> None:
    world = World()
    reserve, pay = world.compensatable("reserve"), world.compensatable("pay", on_failure="rollback")
    world.script["pay"] = [Rude()]
    rt = runtime(reserve, pay)
    with pytest.raises(RolledBack) as back, rt.run("r"):
        reserve()
        with pytest.raises(Rude):
            pay()
        with pytest.raises(RunEnded):
            reserve(x="2")
    assert world.log == ["reserve:1", "undo reserve:1"]
    assert back.value.report.state == "rolled_back"


def test_a_lost_read_is_failed_never_in_doubt() -> None:
    world = World()
    look = world.read()
    world.script["look"] = [TimeoutError(), KeyError()]
    rt = runtime(look)
    with rt.run("r"):
        with pytest.raises(TimeoutError):
            look()
        with pytest.raises(KeyError):
            look()
        look()
    assert [call.state for call in rt.report("r").calls] == ["failed", "failed", "succeeded"]


def _named(module: str, name: str, base: type[Exception] = Exception, **attributes: object) -> Exception:
    error = type(name, (base,), {"__module__": module})("x")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def _answered(status: int) -> Exception:
    response = type("Response", (), {"status_code": status})()
    return _named("httpx", "HTTPStatusError", response=response)


TRANSPORT = type("TransportError", (Exception,), {"__module__": "httpx"})
REQUESTS = type("ConnectionError", (OSError,), {"__module__": "requests.exceptions"})


@pytest.mark.parametrize(
    "error, state",
    [
        (_named("httpx", "ReadTimeout", TRANSPORT), "in_doubt"),
        (_named("httpx", "RemoteProtocolError", TRANSPORT), "in_doubt"),
        (_named("httpx", "ConnectError", TRANSPORT), "failed"),
        (_named("httpx", "ConnectTimeout", TRANSPORT), "failed"),
        (_answered(500), "in_doubt"),
        (_answered(503), "in_doubt"),
        (_answered(408), "in_doubt"),
        (_answered(404), "failed"),
        (_answered(422), "failed"),
        (_named("requests.exceptions", "ReadTimeout", REQUESTS), "in_doubt"),
        (_named("requests.exceptions", "ConnectTimeout", REQUESTS), "failed"),
        (_named("urllib3.exceptions", "ProtocolError"), "in_doubt"),
        (_named("aiohttp.client_exceptions", "ClientConnectorError"), "failed"),
        (_named("aiohttp.client_exceptions", "ServerDisconnectedError", ConnectionError), "in_doubt"),
        (_named("aiohttp.client_exceptions", "ClientResponseError", status=502), "in_doubt"),
        (_named("aiohttp.client_exceptions", "ClientResponseError", status=404), "failed"),
        (_named("stripe", "APIConnectionError"), "in_doubt"),
        (TimeoutError(), "in_doubt"),
        (ConnectionResetError(), "in_doubt"),
        (BrokenPipeError(), "in_doubt"),
        (ConnectionRefusedError(), "failed"),
        (EOFError(), "in_doubt"),
        (_named("urllib.error", "URLError", OSError), "in_doubt"),
        (
            _named("urllib.error", "HTTPError", type("URLError", (OSError,), {"__module__": "urllib.error"}), code=404),
            "failed",
        ),
        (
            _named("urllib.error", "HTTPError", type("URLError", (OSError,), {"__module__": "urllib.error"}), code=500),
            "in_doubt",
        ),
        (_named("ssl", "SSLError", OSError), "in_doubt"),
        (_named("http.client", "BadStatusLine"), "in_doubt"),
        (ValueError(), "failed"),
        (OSError("disk"), "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__module__}.{type(value).__qualname__}",
)
def test_what_a_clients_error_says_about_the_effect(error: Exception, state: str) -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [error]
    rt = runtime(pay)
    with pytest.raises((type(error), RunBlocked)), rt.run("r", recover="wait"):
        pay()
    assert states(rt, "r") == {"pay": state}
