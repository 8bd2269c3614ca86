"""What the tests of notices share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notices.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as here:
        yield here
