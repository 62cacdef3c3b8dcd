"""Secrets like no others, and the search for them in whatever a gateway writes, shows or says."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.wire import Response

FRAGMENT_BYTES = 8
CANARIES: dict[str, str] = {}


def canary(name: str) -> str:
    """A secret like no other, the same whenever it is asked for by this name."""
    return CANARIES.setdefault(name, base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()[:26].lower())


def basic_auth(name: str) -> str:
    return "Basic " + base64.b64encode(f"user:{canary(name)}".encode()).decode()


def encoded_fragments(secret: str) -> Iterator[bytes]:
    """Each piece of a secret that is long enough to be worth something, in each way in which it may be written."""
    raw = secret.encode()
    for start in range(len(raw) - FRAGMENT_BYTES + 1):
        piece = raw[start : start + FRAGMENT_BYTES]
        yield piece
        yield piece.upper()
        yield piece.hex().encode()
        yield piece.hex().upper().encode()
        yield b"".join(b"%%%02x" % byte for byte in piece)
        yield b"".join(b"%%%02X" % byte for byte in piece)
        yield b"".join(b"\\u%04x" % byte for byte in piece)
        # What comes before shifts the digits; those that it shares are left out.
        for shift, shared in ((0, 0), (1, 2), (2, 3)):
            digits = base64.b64encode(b"x" * shift + piece)[shared : (shift + FRAGMENT_BYTES) * 8 // 6]
            yield digits
            yield digits.translate(bytes.maketrans(b"+/", b"-_"))


def find_secrets(sinks: Mapping[str, bytes], secrets: Mapping[str, str]) -> set[tuple[str, str]]:
    """In which sink which secret is, by name."""
    owners = {piece: name for name, secret in secrets.items() for piece in encoded_fragments(secret)}
    lengths = {len(piece) for piece in owners}
    return {
        (sink, owners[piece])
        for sink, text in sinks.items()
        for length in lengths
        for start in range(len(text) - length + 1)
        if (piece := text[start : start + length]) in owners
    }


def gateway_output(answer: Response) -> bytes:
    """Every header field of an answer, and the body where it is the gateway's own: the provider repeats what it got."""
    fields = "\n".join(f"{name}: {value}" for name, value in answer.headers).encode()
    return fields + (answer.body if answer.status != 200 else b"")
