"""Signed texts: for one purpose, for a while, by several secrets at once; and where the secrets come from."""

from __future__ import annotations

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import BadConfig, UsageError
from amends.secrets import BadSignature, Secrets, check_bind, is_loopback, secrets_of

OLD, NEW = "o" * 32, "n" * 32


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def why_not(known: Secrets, purpose: str, text: Any) -> str:
    with pytest.raises(BadSignature) as caught:
        known.read(purpose, text)
    return caught.value.why


def test_what_was_signed_is_read_for_the_same_purpose_only() -> None:
    known = Secrets(NEW)
    text = known.sign("session", {"token": "ünïcode", "n": 1})
    assert known.read("session", text) == {"token": "ünïcode", "n": 1}
    for other in ("csrf", "session ", "", "link"):
        assert why_not(known, other, text) == "forged"


def test_the_first_secret_signs_and_all_of_them_verify() -> None:
    before, during, after = Secrets(OLD), Secrets(f"{NEW} {OLD}"), Secrets([NEW])
    old, new = before.sign("session", {"n": 1}), during.sign("session", {"n": 2})
    assert during.read("session", old) == {"n": 1}
    assert after.read("session", new) == {"n": 2}
    assert why_not(after, "session", old) == "forged"
    assert why_not(before, "session", new) == "forged"
    assert Secrets(f"{OLD}\n{NEW}\n").read("session", new) == {"n": 2}


@pytest.mark.parametrize("spoil", [
    lambda text: "", lambda text: ".", lambda text: text[:-1], lambda text: text + "A", lambda text: text + "=",
    lambda text: "A" + text, lambda text: text.replace(".", ""), lambda text: text + ".x", lambda text: None,
    lambda text: text.encode(), lambda text: "é" + text, lambda text: text * 400, lambda text: text.split(".")[0] + ".",
])  # fmt: skip
def test_a_changed_text_is_refused(spoil: Any) -> None:
    known = Secrets(NEW)
    assert why_not(known, "link", spoil(known.sign("link", {"name": "ada"}))) == "forged"


def test_a_text_ends() -> None:
    clock = Clock()
    known = Secrets(NEW, clock=clock)
    text, lasting = known.sign("link", {"n": 1}, lives_s=300), known.sign("claim", {"n": 1})
    clock.now += 299.9
    assert known.read("link", text) == {"n": 1}
    clock.now += 0.1
    assert why_not(known, "link", text) == "expired"
    assert known.read("claim", lasting) == {"n": 1}
    with pytest.raises(UsageError):
        known.sign("link", {"$until": 9e9})


@pytest.mark.parametrize("wrong", ["", "short", [], [NEW, "short"], [7]])
def test_a_weak_secret_is_refused_and_not_shown(wrong: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        Secrets(wrong)
    assert NEW not in f"{caught.value} {caught.value.to_dict()}"
    assert NEW not in repr(Secrets(NEW))


# ---- Where they come from


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("AMENDS_SECRET", "AMENDS_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def is_same(one: Secrets, other: Secrets) -> bool:
    return other.read("p", one.sign("p", {"n": 1})) == {"n": 1}


def test_a_secret_comes_from_the_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Runtime("memory:", secret=f"{NEW} {OLD}")
    assert is_same(secrets_of(given, host="0.0.0.0"), Secrets(NEW))
    monkeypatch.setenv("AMENDS_SECRET", OLD)
    assert is_same(secrets_of(Runtime("memory:")), Secrets(OLD))
    monkeypatch.delenv("AMENDS_SECRET")
    (home / "amends.toml").write_text(f'secret = "{NEW}"\n', encoding="utf-8")
    assert is_same(secrets_of(AsyncRuntime("memory:")), Secrets(NEW))
    assert not (home / "state").exists()
    shown = f"{given.settings} {given.settings['secret'].value!s} {given.settings['secret']!r}"
    assert NEW not in shown
    assert OLD not in shown
    with pytest.raises(BadConfig) as caught:
        secrets_of(Runtime("memory:", secret="short-but-secret"))
    assert "short-but-secret" not in f"{caught.value} {caught.value.to_dict()}"


def test_on_loopback_a_file_is_made_that_only_its_owner_reads(home: Path) -> None:
    rt = Runtime("memory:")
    first = secrets_of(rt, host="127.0.0.1")
    file = home / "state" / "amends" / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert is_same(first, secrets_of(rt, host="::1"))
    assert [one.name for one in file.parent.iterdir()] == ["secret"]
    assert is_same(first, secrets_of(rt, host="0.0.0.0")), "a file that is there counts everywhere"


def test_elsewhere_nothing_is_made_up(home: Path) -> None:
    for rt in (Runtime("memory:"), Runtime("memory:", secret_file=str(home / "none"))):
        with pytest.raises(BadConfig) as caught:
            secrets_of(rt, host="0.0.0.0")
        assert caught.value.setting == "secret"
    assert list(home.iterdir()) == []


def test_a_file_of_the_settings_may_have_several(home: Path) -> None:
    (home / "conf").mkdir()
    file = home / "conf" / "keys"
    file.write_text(f"{NEW}\n{OLD}\n", encoding="ascii")
    file.chmod(0o600)
    (home / "amends.toml").write_text('secret_file = "conf/keys"\n', encoding="utf-8")
    known = secrets_of(Runtime("memory:"), host="0.0.0.0")
    assert is_same(known, Secrets(NEW))
    assert known.read("p", Secrets(OLD).sign("p", {"n": 1})) == {"n": 1}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o660])
def test_a_file_that_others_may_read_is_refused(home: Path, mode: int) -> None:
    file = home / "keys"
    file.write_text(NEW, encoding="ascii")
    file.chmod(mode)
    with pytest.raises(BadConfig) as caught:
        secrets_of(Runtime("memory:", secret_file="keys"))
    assert NEW not in f"{caught.value} {caught.value.to_dict()}"


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"x" * 20_000])
def test_a_file_without_a_secret_is_refused(home: Path, content: bytes) -> None:
    file = home / "keys"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(BadConfig):
        secrets_of(Runtime("memory:", secret_file="keys"))
    assert file.read_bytes() == content


def test_a_folder_is_no_file(home: Path) -> None:
    with pytest.raises(BadConfig):
        secrets_of(Runtime("memory:", secret_file=str(home)))
    (home / "file").write_text("", encoding="ascii")
    with pytest.raises(BadConfig):
        secrets_of(Runtime("memory:", secret_file=str(home / "file" / "below")))


def test_servers_that_start_together_share_one_secret(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: secrets_of(Runtime("memory:")), range(8)))
    assert all(is_same(one, found[0]) for one in found)


# ---- A public bind


@pytest.mark.parametrize(
    "host, expected",
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True), ("LocalHost", True),
     ("/run/amends.sock", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False),
     ("example.com", False), ("localhost.example.com", False), ("127.0.0.1.example.com", False),
     ("::ffff:10.0.0.1", False), ("0", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


LOGIN = {
    "issuer": "https://id.example.com",
    "client_id": "amends",
    "redirect_url": "https://a.example.com/login/callback",
    "everyone": "viewer",
}


def test_a_public_bind_without_a_token_or_a_login_is_refused() -> None:
    async def play() -> None:
        async with AsyncRuntime("memory:") as rt:
            await check_bind(rt, "127.0.0.1")
            await check_bind(rt, "0.0.0.0", has_access=True)
            login = await rt.create_token("ada", scopes="viewer", by="ada", why="x", kind="login")
            for host in ("0.0.0.0", "::", "example.com"):
                with pytest.raises(BadConfig) as caught:
                    await check_bind(rt, host)
                assert "amends tokens create" in caught.value.hint
            made = await rt.create_token("ci", scopes="viewer", by="ada", why="x")
            await check_bind(rt, "0.0.0.0")
            await rt.revoke_token(made.id, by="ada", why="x")
            with pytest.raises(BadConfig):
                await check_bind(rt, "0.0.0.0")
            assert login.kind == "login"
        async with AsyncRuntime("memory:", login=LOGIN) as rt:
            await check_bind(rt, "0.0.0.0")

    asyncio.run(play())
