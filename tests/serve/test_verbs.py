"""Whatever a program can do with a runtime, a client can do over HTTP, or it is said why not."""

from amends.serve.routes import ROUTES
from tests.serve.verbs import ELSEWHERE, NOT_SERVED, has, rows, typescript

LEFT = {"register", "take", "leave", "workers", "openapi", "health", "ready", "metrics", "long_work", "renew"}
"""Addresses that are no verb of a program: for workers, for machines, and for a client that is alive."""


def test_every_verb_of_a_program_has_an_address_or_a_reason() -> None:
    unsaid = [row.verb for row in rows() if not (row.address or row.why)]
    assert unsaid == [], "give it a route, or say in tests/serve/verbs.py why clients do not have it"


def test_nothing_is_said_about_verbs_that_do_not_exist() -> None:
    known = {row.verb for row in rows()}
    assert (set(ELSEWHERE) | set(NOT_SERVED)) - known == set()
    assert set(ELSEWHERE) & set(NOT_SERVED) == set()


def test_both_clients_have_what_the_table_says() -> None:
    said = [(row.verb, one, True) for row in rows() for one in row.python.split(", ") if one]
    said += [(row.verb, one, False) for row in rows() for one in row.typescript.split(", ") if one]
    assert [(verb, one) for verb, one, in_python in said if not has(one, in_python=in_python)] == []
    assert "nonsense" not in typescript("client")


def test_every_address_is_a_verb_of_a_program_or_of_the_service_itself() -> None:
    used = {row.address for row in rows()}
    alone = {
        route.name for route in ROUTES if f"{route.method} {route.path}" not in used and route.tags != ("browsers",)
    }
    assert alone == LEFT, "a route does what one verb of the runtime does"
