"""A settings file that another user wrote or can write is refused, because it names approvers and code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import BadConfig
from amends.host.settings import settle_settings
from tests.cli.command import assert_refused, here

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
NOBODY = 65534
TEXT = 'url = "memory:"\nprincipal = "mallory"\n[approvers]\nfinance = ["mallory"]\n'


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a nested folder the working directory, and return it."""
    folder = tmp_path / "above" / "below"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder  # type: ignore[return-value]


def _refused(path: Path) -> BadConfig:
    for made in (Runtime, AsyncRuntime):
        with pytest.raises(BadConfig) as bad:
            made("memory:")
        assert bad.value.origin == str(path)
        assert str(path) in str(bad.value)
        assert "--config" in bad.value.hint
    return bad.value


@needs_root
@pytest.mark.parametrize("name", ["amends.toml", "pyproject.toml"])
@pytest.mark.parametrize("above", [True, False])
def test_a_file_of_another_user_is_refused(below: Path, name: str, above: bool) -> None:
    path = (below.parent if above else below) / name
    text = TEXT if name == "amends.toml" else '[tool.amends]\nprincipal = "mallory"\n'
    path.write_text(text)
    assert settle_settings({})["principal"].value == "mallory"
    os.chown(path, NOBODY, -1)
    assert f"uid {NOBODY}" in str(_refused(path))
    os.chown(path, 0, -1)
    assert settle_settings({})["principal"].value == "mallory"


@needs_root
def test_a_foreign_pyproject_that_says_nothing_of_amends_is_nothing(below: Path) -> None:
    path = below.parent / "pyproject.toml"
    path.write_text("[project]\nname = 'x'\n")
    assert settle_settings({})["url"].value == f"sqlite:///{below.parent / 'amends.db'}"
    os.chown(path, NOBODY, -1)
    Runtime("memory:")
    # Nor does it name the ledger: its author may have put one beside it.
    assert settle_settings({})["url"].value == f"sqlite:///{below / 'amends.db'}"


@pytest.mark.parametrize("mode, above, refused", [(0o666, True, True), (0o664, True, True), (0o646, True, True),
                                                  (0o600, True, False), (0o644, True, False), (0o666, False, True),
                                                  (0o664, False, False)])  # fmt: skip
def test_a_file_that_others_can_write(below: Path, mode: int, above: bool, refused: bool) -> None:
    path = (below.parent if above else below) / "amends.toml"
    path.write_text(TEXT)
    path.chmod(mode)
    if refused:
        assert "chmod" in _refused(path).hint
    else:
        Runtime()


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o775, True), (0o1777, False), (0o755, False)])
def test_a_folder_in_which_others_can_put_another_file(below: Path, mode: int, refused: bool) -> None:
    path = below.parent / "amends.toml"
    path.write_text(TEXT)
    below.parent.chmod(mode)
    if refused:
        _refused(path)
    else:
        Runtime()


@needs_root
def test_a_link_to_a_foreign_file_and_a_foreign_link(below: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(TEXT)
    path = below.parent / "amends.toml"
    path.symlink_to(real)
    Runtime()
    os.chown(path, NOBODY, -1, follow_symlinks=False)
    _refused(path)
    os.chown(path, 0, -1, follow_symlinks=False)
    os.chown(real, NOBODY, -1)
    _refused(path)
    os.chown(real, 0, -1)
    hall = tmp_path / "hall"
    hall.mkdir()
    real.rename(hall / "real.toml")
    hall.chmod(0o777)
    path.unlink()
    path.symlink_to(hall / "real.toml")
    _refused(path)


@needs_root
def test_a_file_that_is_named_is_trusted(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = below.parent / "amends.toml"
    path.write_text(TEXT)
    os.chown(path, NOBODY, -1)
    path.chmod(0o666)
    monkeypatch.setenv("AMENDS_CONFIG", "../amends.toml")
    assert settle_settings({})["principal"].value == "mallory"
    monkeypatch.setenv("AMENDS_CONFIG", "")
    _refused(path)
    for words in (["--config", str(path), "config", "show"], ["config", "show", f"--config={path}"]):
        done = here(*words, cwd=below)
        assert (done.returncode, "mallory" in done.stdout) == (0, True), done.stderr
    assert_refused(here("config", "show", cwd=below), "amends.toml", "--config")


def test_a_named_file_that_is_not_there_is_said(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_CONFIG", "nothing.toml")
    with pytest.raises(BadConfig, match=r"nothing\.toml"):
        Runtime()


@needs_root
def test_root_is_trusted_by_everybody_and_nobody_else_is(tmp_path: Path) -> None:
    """Run as another user: a file of root is read, one of a third user is not."""
    import tempfile

    program = (
        "import os, sys, tomllib, pwd; sys.path.insert(0, sys.argv[2])\n"
        "from amends.host.settings import settle_settings\n"
        "from amends.errors import BadConfig\n"
        "os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "try: print(settle_settings({})['principal'].value)\n"
        "except BadConfig as error: print('refused')\n"
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        below = folder / "below"
        below.mkdir()
        path = folder / "amends.toml"
        path.write_text(TEXT)
        said = []
        for uid in (0, 1234, NOBODY):
            os.chown(path, uid, -1)
            done = subprocess.run(
                [sys.executable, "-c", program, str(below), str(Path(__file__).parents[2] / "src")],
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            said.append(done.stdout.strip() or done.stderr[-300:])
    assert said == ["mallory", "refused", "mallory"]
