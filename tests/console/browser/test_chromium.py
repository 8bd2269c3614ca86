"""Where there is no browser, its tests are skipped visibly; in CI they fail."""

import pytest

from tests.console.browser.chromium import browser_program
from tests.servers.found import Unavailable


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("AMENDS_TEST_SERVERS", "off", "AMENDS_TEST_SERVERS=off"),
        ("AMENDS_TEST_BROWSER", "no-such-browser", "no-such-browser"),
        ("PATH", "", "make servers"),
    ],
)
def test_a_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable) as refused:
        browser_program()
    assert words in str(refused.value)
