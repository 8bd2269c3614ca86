"""The pytest plugin: fixtures that check the tools of your program against your own sandbox.

pytest loads this module in every project that has amends installed, so it imports nothing of amends until a test asks
for one of its fixtures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from amends.testing import CheckedTool, Kit

APP: Final = "amends_app"
SANDBOX: Final = "amends_sandbox"
TIMEOUT: Final = "amends_timeout"
SPREAD: Final = ("load", "worksteal")
"""The ways of pytest-xdist that let two workers use the sandbox at the same time."""
HOW: Final = "amends_dist"
"""Under this name a worker is told how tests are distributed."""
_KIT: Final = pytest.StashKey["Kit"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the settings file."""
    parser.addini(APP, "amends: the runtime whose tools are checked, MODULE:NAME or FILE.py:NAME")
    parser.addini(SANDBOX, "amends: what has snapshot, reset and examples; default: the module of amends_app")
    parser.addini(TIMEOUT, "amends: how many seconds the checks of one tool may take; default: 120")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``amends_tool`` once for each tool."""
    if "amends_tool" not in metafunc.fixturenames:
        return
    names = _kit(metafunc.config).tools()
    in_one = [pytest.mark.xdist_group("amends")] if metafunc.config.pluginmanager.hasplugin("xdist") else []
    metafunc.parametrize("amends_tool", [pytest.param(name, marks=in_one, id=name) for name in names], indirect=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist how tests are distributed; it is not told otherwise."""
    node.workerinput[HOW] = node.config.getoption("dist")


@pytest.fixture(scope="session")
def amends_kit(request: pytest.FixtureRequest) -> Kit:
    """Return the kit for the program of ``amends_app``: ``amends_kit.check("charge").raise_if_broken()``."""
    return _kit(request.config)


@pytest.fixture
def amends_tool(request: pytest.FixtureRequest, amends_kit: Kit) -> CheckedTool:
    """Return what was found about one tool: ``amends_tool.raise_if_broken()``. The test runs once for each tool."""
    checked = amends_kit.check(request.param)
    if checked.state == "not checked":
        pytest.skip("; ".join(f"{one.name}: {one.what}" for one in checked.checks))
    return checked


def _kit(config: pytest.Config) -> Kit:
    """Return the one kit of this session; raise ``UsageError`` of pytest, with the hint, if there can be none."""
    from amends.errors import UsageError
    from amends.testing import Kit

    known = config.stash.get(_KIT, None)
    if known is not None:
        return known
    app, sandbox, timeout = (str(config.getini(name) or "") for name in (APP, SANDBOX, TIMEOUT))
    if not app:
        raise pytest.UsageError(f"amends: no runtime is named; set {APP} = app:rt in the settings file of pytest")
    worker = getattr(config, "workerinput", {})
    if worker.get(HOW) in SPREAD and worker.get("workercount", 1) > 1:
        raise pytest.UsageError(
            "amends: two processes of pytest-xdist would change one sandbox at the same time; use --dist loadgroup"
        )
    try:
        options = {"timeout_s": float(timeout)} if timeout else {}
        kit = Kit(app, sandbox=sandbox or None, folder=Path(config.rootpath), **options)
        kit.tools()
    except UsageError as error:
        raise pytest.UsageError(f"amends: {error}" + (f" (hint: {error.hint})" if error.hint else "")) from error
    except ValueError:
        raise pytest.UsageError(f"amends: {TIMEOUT} = {timeout} is not a number of seconds") from None
    config.stash[_KIT] = kit
    return kit
