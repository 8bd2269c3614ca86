"""Verify Ed25519 signatures in plain Python: the standard library has no other way. It cannot sign.

Verification handles no secrets, so it need not run in constant time.
The curve is that of RFC 8032: -x² + y² = 1 + d x² y² over the integers modulo p.
"""

from __future__ import annotations

from hashlib import sha512

P = 2**255 - 19
"""The prime of the field."""
L = 2**252 + 27742317777372353535851937790883648493
"""The order of the base point."""
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int]
"""Projective coordinates: (X, Y, Z) is the point (X/Z, Y/Z)."""
NOTHING: Point = (0, 1, 1)
"""The neutral element of addition."""


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether this is a signature of ``message`` by the secret key that belongs to ``public``."""
    if len(public) != 32 or len(signature) != 64:
        return False
    key, first, second = read_point(public), signature[:32], int.from_bytes(signature[32:], "little")
    if key is None or second >= L:
        return False
    asked = int.from_bytes(sha512(first + public + message).digest(), "little") % L
    # A signature satisfies second·BASE = R + asked·key. So compute R: it must be the first half of the signature.
    minus_key = (-key[0] % P, key[1], key[2])
    return write_point(add(times(second, BASE), times(asked, minus_key))) == first


def add(one: Point, other: Point) -> Point:
    """Add two points of the curve; one formula is complete, since d is not a square."""
    (x1, y1, z1), (x2, y2, z2) = one, other
    z = z1 * z2 % P
    square, xs, ys = z * z % P, x1 * x2 % P, y1 * y2 % P
    both = D * xs * ys % P
    less, more = square - both, square + both
    crossed = (x1 + y1) * (x2 + y2) - xs - ys
    return z * less * crossed % P, z * more * (ys + xs) % P, less * more % P


def times(count: int, point: Point) -> Point:
    """Multiply a point by an integer."""
    total = NOTHING
    while count:
        if count & 1:
            total = add(total, point)
        point, count = add(point, point), count >> 1
    return total


def read_point(data: bytes) -> Point | None:
    """Decode a point from 32 bytes: its y, and in the last bit whether its x is odd; None if there is no such point."""
    number = int.from_bytes(data, "little")
    is_odd, y = number >> 255, number & ((1 << 255) - 1)
    if y >= P:
        return None
    x = _x_for(y)
    if x is None or (x == 0 and is_odd):
        return None
    return (x if x & 1 == is_odd else P - x), y, 1


def write_point(point: Point) -> bytes:
    """Encode a point as 32 bytes."""
    x, y, z = point
    below = pow(z, -1, P)
    x, y = x * below % P, y * below % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _x_for(y: int) -> int | None:
    """Return an x for this y: the square root of (y² - 1) / (d y² + 1), or None if there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    return None if (x * x - square) % P else x


def _base() -> Point:
    y = 4 * pow(5, -1, P) % P
    x = _x_for(y)
    assert x is not None, "the base point is on the curve"
    return (x if x % 2 == 0 else P - x), y, 1


BASE: Point = _base()
