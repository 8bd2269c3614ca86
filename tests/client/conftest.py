from collections.abc import Iterator

import pytest

from tests.client.shop import Both, served
from tests.serve.shop import World


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[str, World]]:
    """One server for all tests of a file: each uses ids of its own."""
    with served() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(request.param)
    yield made
    made.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An id for a run that no other test uses."""
    return request.node.name
