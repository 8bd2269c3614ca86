"""A pattern is compiled by its first use, and does what a compiled one does."""

from __future__ import annotations

import re
from unittest import mock

from amends.encoding.patterns import pattern


def test_it_is_compiled_by_the_first_use_and_once() -> None:
    with mock.patch("re.compile", wraps=re.compile) as compiled:
        word = pattern(r"(\w+)\s", re.IGNORECASE)
        assert word.pattern == r"(\w+)\s"
        assert not compiled.called
        assert word.match("one two")[1] == "one"  # type: ignore[index]
        assert word.fullmatch("one two") is None
        assert word.sub("", "one two") == "two"
        assert word.findall("one two three") == ["one", "two"]
        assert word.flags & re.IGNORECASE
    compiled.assert_called_with(r"(\w+)\s", re.IGNORECASE)


def test_it_shows_what_it_is() -> None:
    assert repr(pattern("a|b")) == "pattern('a|b')"
