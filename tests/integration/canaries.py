"""Secret canaries: unique secrets, and a search for them in everything that a gateway writes, returns or logs."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.raw_http import Response

FRAGMENT_BYTES = 8
CANARIES: dict[str, str] = {}


def canary(name: str) -> str:
    """Returns a unique secret; the same name always gives the same secret."""
    return CANARIES.setdefault(name, base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()[:26].lower())


def basic_auth(name: str) -> str:
    return "Basic " + base64.b64encode(f"user:{canary(name)}".encode()).decode()


def encoded_fragments(secret: str) -> Iterator[bytes]:
    """Yields every fragment of a secret that is long enough to matter, in every encoding in which it may be written."""
    raw = secret.encode()
    for start in range(len(raw) - FRAGMENT_BYTES + 1):
        chunk = raw[start : start + FRAGMENT_BYTES]
        yield chunk
        yield chunk.upper()
        yield chunk.hex().encode()
        yield chunk.hex().upper().encode()
        yield b"".join(b"%%%02x" % byte for byte in chunk)
        yield b"".join(b"%%%02X" % byte for byte in chunk)
        yield b"".join(b"\\u%04x" % byte for byte in chunk)
        # Preceding bytes shift the base64 digits; digits that encode them in part are cut off.
        for shift, shared in ((0, 0), (1, 2), (2, 3)):
            digits = base64.b64encode(b"x" * shift + chunk)[shared : (shift + FRAGMENT_BYTES) * 8 // 6]
            yield digits
            yield digits.translate(bytes.maketrans(b"+/", b"-_"))


def find_secrets(sinks: Mapping[str, bytes], secrets: Mapping[str, str]) -> set[tuple[str, str]]:
    """Returns the pairs of sink and secret name where the sink contains the secret."""
    owners = {chunk: name for name, secret in secrets.items() for chunk in encoded_fragments(secret)}
    lengths = {len(chunk) for chunk in owners}
    return {
        (sink, owners[chunk])
        for sink, text in sinks.items()
        for length in lengths
        for start in range(len(text) - length + 1)
        if (chunk := text[start : start + length]) in owners
    }


def gateway_output(response: Response) -> bytes:
    """Returns the header fields of a response, plus the body if the gateway wrote it. The provider's own body echoes
    its request.
    """
    fields = "\n".join(f"{name}: {value}" for name, value in response.headers).encode()
    return fields + (response.body if response.status != 200 else b"")
