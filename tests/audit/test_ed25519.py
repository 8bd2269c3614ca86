"""Our own verification of Ed25519 says what RFC 8032 and ``cryptography`` say."""

from __future__ import annotations

import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from amends.audit.standalone.ed25519 import BASE, NOTHING, L, add, is_signed, read_point, times, write_point

# RFC 8032, section 7.1: tests 1, 2, 3, SHA(abc); public key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        (
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
            "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
        ),
        (
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
            "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"
        ),
    ),
]


@pytest.mark.parametrize("public, message, signature", VECTORS)
def test_the_vectors_of_the_rfc_are_right_and_nothing_else_is(public: str, message: str, signature: str) -> None:
    key, said, signed = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert is_signed(key, said, signed)
    assert not is_signed(key, said + b"x", signed)
    for place in (0, 31, 32, 63):
        other = bytearray(signed)
        other[place] ^= 1
        assert not is_signed(key, said, bytes(other))
    beyond = int.from_bytes(signed[32:], "little") + L
    assert not is_signed(key, said, signed[:32] + beyond.to_bytes(32, "little")), "the same number, said otherwise"


def test_it_says_what_cryptography_says() -> None:
    luck = random.Random(8032)
    for _ in range(20):
        secret = Ed25519PrivateKey.from_private_bytes(luck.randbytes(32))
        public, message = secret.public_key().public_bytes_raw(), luck.randbytes(luck.randrange(200))
        signed = bytearray(secret.sign(message))
        assert is_signed(public, message, bytes(signed))
        signed[luck.randrange(64)] ^= 1 << luck.randrange(8)
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(bytes(signed), message)
        except InvalidSignature:
            said = False
        else:
            said = True
        assert is_signed(public, message, bytes(signed)) == said


@pytest.mark.parametrize("public", [b"", b"\xff" * 32, bytes(31), b"\x02" + bytes(31), b"\x01" + bytes(30) + b"\x80"])
def test_what_is_no_key_signs_nothing(public: bytes) -> None:
    assert not is_signed(public, b"", bytes(64))


def test_the_points_are_a_group_of_the_right_size() -> None:
    assert write_point(times(L, BASE)) == write_point(NOTHING)
    three = add(add(BASE, BASE), BASE)
    assert write_point(three) == write_point(times(3, BASE))
    again = read_point(write_point(three))
    assert again is not None
    assert write_point(again) == write_point(three)
