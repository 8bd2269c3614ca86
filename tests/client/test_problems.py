"""Errors over HTTP: each class of the runtime comes back as itself, whole enough to be shown, copied and told a model."""

import pickle

import pytest

from amends import errors
from amends.client.problems import KNOWN, ServiceError, answer_error, error_of
from amends.errors import CAUSES_MAX, Busy, Error, KeyConflict, RunBlocked, ToolFailed, how_many
from amends.serve.problems import Problem, problem_of


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_error_comes_back_as_itself(name: str) -> None:
    problem = {"code": name, "detail": "it was refused", "hint": "do it otherwise", "status": 409, "run_id": "r1"}
    made = error_of(problem)
    assert type(made) is getattr(errors, name)
    assert (str(made), made.hint, made.run_id) == ("it was refused", "do it otherwise", "r1")
    copied = pickle.loads(pickle.dumps(made))
    assert (type(copied), str(copied), copied.to_dict()) == (type(made), str(made), made.to_dict())
    made.to_dict()


def test_the_facts_of_a_document_are_attributes() -> None:
    busy = error_of(problem_of(Busy("somebody has it", owner="web-1", retry_after=3.2, run_id="r")))
    assert isinstance(busy, Busy)
    assert (busy.run_id, busy.retry_after, str(busy)) == ("r", 4, "somebody has it")
    Problem.model_validate(problem_of(busy))


def test_the_document_of_a_run_with_many_causes_has_as_many_as_are_recorded_and_says_how_many_more_there_are() -> None:
    causes = [f"book ({n}) may have happened: look" for n in range(300)]
    document = problem_of(RunBlocked("run r is blocked: book", run_id="r", causes=causes))
    assert document["causes"] == [*causes[:CAUSES_MAX], "and 280 more: rt.report('r') lists them all"]
    assert document["hint"].endswith("; and 295 more: rt.report('r') lists them all")
    made = error_of(document)
    assert isinstance(made, RunBlocked)
    assert (how_many(made.causes), made.hint) == (300, document["hint"])
    few = problem_of(RunBlocked("run r is blocked: book", run_id="r", causes=causes[:CAUSES_MAX]))
    assert few["causes"] == causes[:CAUSES_MAX]


def test_an_error_that_only_the_service_has_is_a_service_error() -> None:
    made = error_of({"code": "TooMany", "detail": "later", "hint": "wait", "status": 429, "retry_after": 2})
    assert isinstance(made, ServiceError)
    assert (made.status, made.name, made.code, made.hint) == (429, "TooMany", "too_many", "wait")
    assert made.for_model()
    assert pickle.loads(pickle.dumps(made)).status == 429
    bare = error_of({"code": "Whatever"}, status=418)
    assert (isinstance(bare, Error), bare.hint != "") == (True, True)


def test_the_error_of_an_answer_is_the_one_that_the_runtime_had() -> None:
    assert answer_error(None, None) is None
    said = KeyConflict("other arguments", tool="charge", call=None, given={"a": 1}, diff={}).to_dict()
    found = answer_error(said, None)
    assert isinstance(found, KeyConflict)
    assert (found.tool, found.given, str(found)) == ("charge", {"a": 1}, "other arguments")
    raised = answer_error({"type": "shop.OutOfStock", "message": "none left"}, None)
    assert isinstance(raised, ToolFailed)
    assert (raised.type_name, "none left" in raised.for_model()) == ("shop.OutOfStock", True)
