"""Keys: what is one, what signs, what only checks, and what is said of what is none."""

from __future__ import annotations

import builtins
import stat
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.errors import BadConfig
from amends.signing import ED25519, PUBLIC, check_key, embedded_key, load_key, new_key

HASH = "ab" * 32
SECRET = "hmac:" + "x" * 40


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
def test_what_a_key_signed_it_knows_again_and_nothing_else(kind: Any) -> None:
    made = new_key(kind)
    key, other = load_key(made.secret), load_key(new_key(kind).secret)
    signature = key.sign(HASH)
    assert key.name == made.public
    assert key.has_signed(HASH, signature)
    assert not key.has_signed("cd" * 32, signature)
    assert not other.has_signed(HASH, signature)
    assert not key.has_signed(HASH, "")
    assert not key.has_signed(HASH, "no base64 é")
    flipped = signature[:10] + ("A" if signature[10] != "A" else "B") + signature[11:]
    assert not key.has_signed(HASH, flipped)
    assert not key.has_signed(HASH, f"{signature}\n"), "a signature is spelled in one way"
    assert not key.has_signed(HASH, signature.rstrip("="))


def test_the_public_half_checks_and_cannot_sign() -> None:
    made = new_key("ed25519")
    public = load_key(made.public)
    assert public.signs is None
    assert public.has_signed(HASH, load_key(made.secret).sign(HASH))
    assert embedded_key(made.public) is not None
    assert embedded_key(load_key(SECRET).name) is None
    assert embedded_key("ed25519-pub:nonsense") is None
    assert embedded_key("") is None


def test_a_key_may_be_spelled_in_both_ways_of_base64() -> None:
    raw = bytes(range(224, 256))
    names = {load_key(f"{ED25519}:{text.decode()}").name for text in (b64encode(raw), urlsafe_b64encode(raw))}
    assert len(names) == 1
    assert names.pop().startswith(f"{PUBLIC}:")


def test_a_key_may_stand_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "audit.key"
    made = new_key("ed25519")
    file.write_text(f"# words\n\n{made.secret}\n", encoding="ascii")
    file.chmod(stat.S_IRUSR | stat.S_IRGRP)
    with pytest.raises(BadConfig, match="can be read by other users") as error:
        load_key(str(file))
    assert f"chmod 600 {file}" in str(error.value.hint)
    file.chmod(0o600)
    assert load_key(str(file)).name == made.public
    file.write_text(made.public, encoding="ascii")
    file.chmod(0o644)
    assert load_key(str(file)).name == made.public, "everybody may read a public key"


@pytest.mark.parametrize(
    "text, words",
    [
        ("ed25519:abc", "32 bytes as base64"),
        ("ed25519-pub:", "32 bytes as base64"),
        ("hmac:short", "at least 32 characters"),
        ("no such file", "neither a key nor a readable file"),
        ("x\0y", "neither a key nor a readable file"),
    ],
)
def test_what_is_no_key_is_said_with_what_to_do(text: str, words: str) -> None:
    with pytest.raises(BadConfig, match=words) as error:
        load_key(text)
    assert error.value.setting == "audit_key"
    assert error.value.hint
    assert "short" not in str(error.value), "a key is never shown"


def test_a_file_with_two_keys_or_none_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "audit.key"
    for text in ("", "# only words\n", f"{SECRET}\n{SECRET}\n", "\n".join(["line"] * 3)):
        file.write_text(text, encoding="ascii")
        file.chmod(0o600)
        with pytest.raises(BadConfig, match="does not hold exactly one key"):
            load_key(str(file))


def test_a_runtime_is_not_built_with_a_key_that_can_sign_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="signs nothing"):
        Runtime("memory:", audit_key=new_key("ed25519").public)
    with pytest.raises(BadConfig, match="at least 32"):
        Runtime("memory:", audit_key="hmac:short")
    check_key(str(tmp_path / "not looked at yet"))


def test_a_key_is_not_among_what_is_shown() -> None:
    rt = Runtime("memory:", audit_key=SECRET)
    assert rt.settings["audit_key"].value == "(set)"
    assert SECRET not in repr(rt.settings)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return whole(name, *args, **kwargs)

    made = new_key("ed25519")
    signature = load_key(made.secret).sign(HASH)
    monkeypatch.setattr("amends.signing.import_module", lambda name: without(name))
    with pytest.raises(BadConfig, match="needs the package cryptography") as error:
        new_key("ed25519")
    assert "amends[crypto]" in str(error.value.hint)
    assert "--hmac" in str(error.value.hint)
    assert new_key("hmac").public.startswith("hmac-id:")
    public = load_key(made.public)
    assert public.has_signed(HASH, signature), "to check it is not needed"
    assert not public.has_signed("cd" * 32, signature)
