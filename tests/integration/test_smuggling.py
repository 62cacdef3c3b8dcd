"""Requests that two readers may understand differently: what is not refused reaches the provider once, as the gateway understood it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.serving import count_settled_records
from tests.integration.wire import CHAT, Wire, asked

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

BODY = asked()
# A request that would be a second one, if what comes before it were read shorter than it is.
HIDDEN = b"GET /v1/proxy/hidden HTTP/1.1\r\nhost: a\r\nx-gateway-provider: mock\r\n\r\n"
FIELDS = b"content-type: application/json\r\nx-gateway-provider: mock\r\nauthorization: Bearer sk-provider\r\n"


def post(*fields: bytes, host: bytes = b"host: gateway.test\r\n", target: bytes = CHAT.encode()) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"POST " + target + b" HTTP/1.1\r\n" + host + FIELDS + lines + b"\r\n"


LENGTH = b"content-length: %d" % len(BODY)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKED = b"transfer-encoding: chunked"
REFUSED = {
    "two lengths that differ": post(LENGTH, b"content-length: 0") + BODY + HIDDEN,
    "a list of lengths that differ": post(b"content-length: 0, %d" % len(BODY)) + BODY + HIDDEN,
    "a length with a sign": post(b"content-length: +%d" % len(BODY)) + BODY + HIDDEN,
    "a negative length": post(b"content-length: -1") + HIDDEN,
    "a length in hexadecimal": post(b"content-length: 0x%x" % len(BODY)) + BODY + HIDDEN,
    "a length with a space in it": post(b"content-length: 1 0") + BODY + HIDDEN,
    "a length that overflows": post(b"content-length: 18446744073709551616") + BODY + HIDDEN,
    "a length with a fraction": post(b"content-length: 1.0") + BODY + HIDDEN,
    "a length that is empty": post(b"content-length:") + BODY + HIDDEN,
    "an unknown coding": post(b"transfer-encoding: gzip") + HIDDEN,
    "an unknown coding after chunked": post(b"transfer-encoding: chunked, identity") + CHUNKS + HIDDEN,
    "a coding that only looks like chunked": post(b"transfer-encoding: xchunked") + CHUNKS + HIDDEN,
    "a space before the colon": post(b"transfer-encoding : chunked") + CHUNKS + HIDDEN,
    "a length with a space before the colon": post(b"content-length : 0") + HIDDEN,
    "a vertical tab before chunked": post(b"transfer-encoding: \x0bchunked") + CHUNKS + HIDDEN,
    "a line that goes on": post(b"x-a: b", b" " + CHUNKED) + CHUNKS + HIDDEN,
    "a first line that goes on": post(b" " + CHUNKED, host=b"") + CHUNKS,
    "a bare carriage return": post(b"x-a: b\rcontent-length: 0") + HIDDEN,
    "a NUL in a value": post(b"x-a: b\x00c", LENGTH) + BODY + HIDDEN,
    "a NUL in a name": post(b"x\x00a: b", LENGTH) + BODY + HIDDEN,
    "a space in a name": post(b"x a: b", LENGTH) + BODY + HIDDEN,
    "a field without a colon": post(b"nonsense", LENGTH) + BODY + HIDDEN,
    "a name that is empty": post(b": b", LENGTH) + BODY + HIDDEN,
    "another version": post(LENGTH).replace(b"HTTP/1.1", b"HTTP/3.7", 1) + BODY + HIDDEN,
    "no version": b"POST " + CHAT.encode() + b"\r\n\r\n" + HIDDEN,
    "a space too many in the first line": post(LENGTH).replace(b" HTTP", b"  HTTP", 1) + BODY + HIDDEN,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN,
    "no host": post(LENGTH, host=b"") + BODY + HIDDEN,
    "an empty host": post(LENGTH, host=b"host:\r\n") + BODY + HIDDEN,
    "two hosts": post(LENGTH, host=b"host: a\r\nhost: b\r\n") + BODY + HIDDEN,
    "the same host twice": post(LENGTH, host=b"host: a\r\nhost: a\r\n") + BODY + HIDDEN,
    "a host with a path": post(LENGTH, host=b"host: a/b\r\n") + BODY + HIDDEN,
    "a host with a user": post(LENGTH, host=b"host: u@a\r\n") + BODY + HIDDEN,
    "a host with a space": post(LENGTH, host=b"host: a b\r\n") + BODY + HIDDEN,
    "a host with a port that is none": post(LENGTH, host=b"host: a:b\r\n") + BODY + HIDDEN,
    "the provider twice": post(LENGTH, b"x-gateway-provider: openai") + BODY + HIDDEN,
    "the provider under two names": post(LENGTH, b"x-portkey-provider: openai") + BODY + HIDDEN,
    "a key with underscores": post(LENGTH, b"x_gateway_api_key: a") + BODY + HIDDEN,
    "a config with an underscore": post(LENGTH, b"X-Gateway_Config: {}") + BODY + HIDDEN,
    "two credentials": post(LENGTH, b"authorization: Bearer other") + BODY + HIDDEN,
    "two kinds of content": post(LENGTH, b"content-type: text/plain") + BODY + HIDDEN,
    "a chunk's size with a sign": post(CHUNKED) + b"+" + CHUNKS + HIDDEN,
    "a chunk's size in another notation": post(CHUNKED) + b"0x" + CHUNKS + HIDDEN,
    "a chunk that is longer than its size": post(CHUNKED) + b"1\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "a chunk's size that overflows": post(CHUNKED) + b"1" + b"0" * 16 + b"\r\n" + BODY + HIDDEN,
    "a chunk's end without its carriage return": post(CHUNKED) + b"%x\r\n%s\n0\r\n\r\n" % (len(BODY), BODY) + HIDDEN,
}
# What may be taken: then exactly this body reaches the provider, once, and nothing after it that was not a request.
TAKEN = {
    "a length": post(LENGTH) + BODY,
    "the same length twice": post(LENGTH, LENGTH) + BODY,
    "chunks": post(CHUNKED) + CHUNKS,
    "chunked in capitals": post(b"Transfer-Encoding: CHUNKED") + CHUNKS,
    "chunked twice": post(CHUNKED, CHUNKED) + CHUNKS,
    "chunks beside a length that is too short": post(b"content-length: 4", CHUNKED) + CHUNKS,
    "chunks beside a length that is too long": post(b"content-length: 900", CHUNKED) + CHUNKS,
    "bare line feeds": post(LENGTH).replace(b"\r\n", b"\n") + BODY,
    "a chunk with an extension": post(CHUNKED) + CHUNKS.replace(b"\r\n", b';a="b"\r\n', 1),
    "chunks and a trailer": post(CHUNKED) + CHUNKS[:-2] + b"content-length: 1\r\nx-gateway-provider: openai\r\n\r\n",
    "blank lines before": b"\r\n\r\n" + post(LENGTH) + BODY,
    "another host in the first line": post(LENGTH, target=b"http://elsewhere.test" + CHAT.encode()) + BODY,
    "a length after a tab": post(b"content-length:\t%d" % len(BODY)) + BODY,
}


def answers(wire: Wire) -> list[int]:
    """The statuses of everything that comes back until the connection ends or is quiet."""
    statuses = []
    wire.socket.settimeout(0.4)
    try:
        while (answer := wire.answer()).status:
            statuses.append(answer.status)
    except (TimeoutError, ValueError):
        pass
    return statuses


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_reaches_nobody(served: Gateway, provider: Mock, name: str):
    with Wire(served.base_url) as wire:
        wire.send(REFUSED[name])
        statuses = answers(wire)
    # Where a request was refused but well framed, the one behind it is a request of its own.
    assert statuses[:1] in ([400], []), statuses
    assert set(statuses) <= {400, 200}
    count_settled_records(served)
    seen = [entry for entry in provider.ledger() if not entry.get("model", "").startswith("settled")]
    assert [entry["path"] for entry in seen if "hidden" not in entry["path"] and entry["body_bytes"] == len(BODY)] == []
    assert len([entry for entry in seen if "hidden" in entry["path"]]) == statuses.count(200)


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_arrives_once_and_as_it_was_understood(served: Gateway, provider: Mock, name: str):
    with Wire(served.base_url) as wire:
        wire.send(TAKEN[name])
        statuses = answers(wire)
    assert statuses == [200], statuses
    seen = provider.ledger()
    assert [(entry["path"], entry["body_bytes"]) for entry in seen] == [(CHAT, len(BODY))]
    fields = dict(seen[0]["headers"]) if isinstance(seen[0]["headers"], list) else seen[0]["headers"]
    assert fields["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in fields
    assert "elsewhere" not in fields["host"]
