"""Request smuggling. A request that two parsers may read differently is either rejected or reaches the provider once,
as the gateway parsed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import CHAT_PATH, RawConnection, chat_body
from tests.integration.serving import count_settled_records

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

CHAT_REQUEST_BODY = chat_body()
# Becomes a second request if the one before it is read as shorter than it is.
SMUGGLED_REQUEST = b"GET /v1/proxy/hidden HTTP/1.1\r\nhost: a\r\nx-gateway-provider: mock\r\n\r\n"
COMMON_FIELDS = b"content-type: application/json\r\nx-gateway-provider: mock\r\nauthorization: Bearer sk-provider\r\n"


def encode_post(*fields: bytes, host: bytes = b"host: gateway.test\r\n", target: bytes = CHAT_PATH.encode()) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"POST " + target + b" HTTP/1.1\r\n" + host + COMMON_FIELDS + lines + b"\r\n"


CONTENT_LENGTH_FIELD = b"content-length: %d" % len(CHAT_REQUEST_BODY)
CHUNKED_BODY = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT_REQUEST_BODY), CHAT_REQUEST_BODY)
CHUNKED_FIELD = b"transfer-encoding: chunked"
REJECTED_REQUESTS = {
    "two lengths that differ": encode_post(CONTENT_LENGTH_FIELD, b"content-length: 0")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a list of lengths that differ": encode_post(b"content-length: 0, %d" % len(CHAT_REQUEST_BODY))
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a length with a sign": encode_post(b"content-length: +%d" % len(CHAT_REQUEST_BODY))
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a negative length": encode_post(b"content-length: -1") + SMUGGLED_REQUEST,
    "a length in hexadecimal": encode_post(b"content-length: 0x%x" % len(CHAT_REQUEST_BODY))
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a length with a space in it": encode_post(b"content-length: 1 0") + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a length that overflows": encode_post(b"content-length: 18446744073709551616")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a length with a fraction": encode_post(b"content-length: 1.0") + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a length that is empty": encode_post(b"content-length:") + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "an unknown coding": encode_post(b"transfer-encoding: gzip") + SMUGGLED_REQUEST,
    "an unknown coding after chunked": encode_post(b"transfer-encoding: chunked, identity")
    + CHUNKED_BODY
    + SMUGGLED_REQUEST,
    "a coding that only looks like chunked": encode_post(b"transfer-encoding: xchunked")
    + CHUNKED_BODY
    + SMUGGLED_REQUEST,
    "a space before the colon": encode_post(b"transfer-encoding : chunked") + CHUNKED_BODY + SMUGGLED_REQUEST,
    "a length with a space before the colon": encode_post(b"content-length : 0") + SMUGGLED_REQUEST,
    "a vertical tab before chunked": encode_post(b"transfer-encoding: \x0bchunked") + CHUNKED_BODY + SMUGGLED_REQUEST,
    "a line that goes on": encode_post(b"x-a: b", b" " + CHUNKED_FIELD) + CHUNKED_BODY + SMUGGLED_REQUEST,
    "a first line that goes on": encode_post(b" " + CHUNKED_FIELD, host=b"") + CHUNKED_BODY,
    "a bare carriage return": encode_post(b"x-a: b\rcontent-length: 0") + SMUGGLED_REQUEST,
    "a NUL in a value": encode_post(b"x-a: b\x00c", CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a NUL in a name": encode_post(b"x\x00a: b", CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a space in a name": encode_post(b"x a: b", CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a field without a colon": encode_post(b"nonsense", CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "a name that is empty": encode_post(b": b", CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "another version": encode_post(CONTENT_LENGTH_FIELD).replace(b"HTTP/1.1", b"HTTP/3.7", 1)
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "no version": b"POST " + CHAT_PATH.encode() + b"\r\n\r\n" + SMUGGLED_REQUEST,
    "a space too many in the first line": encode_post(CONTENT_LENGTH_FIELD).replace(b" HTTP", b"  HTTP", 1)
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED_REQUEST,
    "no host": encode_post(CONTENT_LENGTH_FIELD, host=b"") + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "an empty host": encode_post(CONTENT_LENGTH_FIELD, host=b"host:\r\n") + CHAT_REQUEST_BODY + SMUGGLED_REQUEST,
    "two hosts": encode_post(CONTENT_LENGTH_FIELD, host=b"host: a\r\nhost: b\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "the same host twice": encode_post(CONTENT_LENGTH_FIELD, host=b"host: a\r\nhost: a\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a host with a path": encode_post(CONTENT_LENGTH_FIELD, host=b"host: a/b\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a host with a user": encode_post(CONTENT_LENGTH_FIELD, host=b"host: u@a\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a host with a space": encode_post(CONTENT_LENGTH_FIELD, host=b"host: a b\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a host with a port that is none": encode_post(CONTENT_LENGTH_FIELD, host=b"host: a:b\r\n")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "the provider twice": encode_post(CONTENT_LENGTH_FIELD, b"x-gateway-provider: openai")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "the provider under two names": encode_post(CONTENT_LENGTH_FIELD, b"x-portkey-provider: openai")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a key with underscores": encode_post(CONTENT_LENGTH_FIELD, b"x_gateway_api_key: a")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a config with an underscore": encode_post(CONTENT_LENGTH_FIELD, b"X-Gateway_Config: {}")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "two credentials": encode_post(CONTENT_LENGTH_FIELD, b"authorization: Bearer other")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "two kinds of content": encode_post(CONTENT_LENGTH_FIELD, b"content-type: text/plain")
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a chunk's size with a sign": encode_post(CHUNKED_FIELD) + b"+" + CHUNKED_BODY + SMUGGLED_REQUEST,
    "a chunk's size in another notation": encode_post(CHUNKED_FIELD) + b"0x" + CHUNKED_BODY + SMUGGLED_REQUEST,
    "a chunk that is longer than its size": encode_post(CHUNKED_FIELD)
    + b"1\r\n"
    + CHAT_REQUEST_BODY
    + b"\r\n0\r\n\r\n"
    + SMUGGLED_REQUEST,
    "a chunk's size that overflows": encode_post(CHUNKED_FIELD)
    + b"1"
    + b"0" * 16
    + b"\r\n"
    + CHAT_REQUEST_BODY
    + SMUGGLED_REQUEST,
    "a chunk's end without its carriage return": encode_post(CHUNKED_FIELD)
    + b"%x\r\n%s\n0\r\n\r\n" % (len(CHAT_REQUEST_BODY), CHAT_REQUEST_BODY)
    + SMUGGLED_REQUEST,
}
# Requests that the gateway may accept. The provider then receives exactly `CHAT_REQUEST_BODY`, once, and no request
# that was hidden behind it.
ACCEPTED_REQUESTS = {
    "a length": encode_post(CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY,
    "the same length twice": encode_post(CONTENT_LENGTH_FIELD, CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY,
    "chunks": encode_post(CHUNKED_FIELD) + CHUNKED_BODY,
    "chunked in capitals": encode_post(b"Transfer-Encoding: CHUNKED") + CHUNKED_BODY,
    "chunked twice": encode_post(CHUNKED_FIELD, CHUNKED_FIELD) + CHUNKED_BODY,
    "chunks beside a length that is too short": encode_post(b"content-length: 4", CHUNKED_FIELD) + CHUNKED_BODY,
    "chunks beside a length that is too long": encode_post(b"content-length: 900", CHUNKED_FIELD) + CHUNKED_BODY,
    "bare line feeds": encode_post(CONTENT_LENGTH_FIELD).replace(b"\r\n", b"\n") + CHAT_REQUEST_BODY,
    "a chunk with an extension": encode_post(CHUNKED_FIELD) + CHUNKED_BODY.replace(b"\r\n", b';a="b"\r\n', 1),
    "chunks and a trailer": encode_post(CHUNKED_FIELD)
    + CHUNKED_BODY[:-2]
    + b"content-length: 1\r\nx-gateway-provider: openai\r\n\r\n",
    "blank lines before": b"\r\n\r\n" + encode_post(CONTENT_LENGTH_FIELD) + CHAT_REQUEST_BODY,
    "another host in the first line": encode_post(
        CONTENT_LENGTH_FIELD, target=b"http://elsewhere.test" + CHAT_PATH.encode()
    )
    + CHAT_REQUEST_BODY,
    "a length after a tab": encode_post(b"content-length:\t%d" % len(CHAT_REQUEST_BODY)) + CHAT_REQUEST_BODY,
}


def read_statuses(connection: RawConnection) -> list[int]:
    """Returns the status of every response until the connection closes or is idle."""
    statuses = []
    connection.socket.settimeout(0.4)
    try:
        while (response := connection.read_response()).status:
            statuses.append(response.status)
    except (TimeoutError, ValueError):
        pass
    return statuses


@pytest.mark.parametrize("name", REJECTED_REQUESTS)
def test_rejected_request_never_reaches_the_provider(running_gateway: Gateway, provider: Mock, name: str):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(REJECTED_REQUESTS[name])
        statuses = read_statuses(connection)
    # After a rejected request with valid framing, the bytes behind it are a separate request.
    assert statuses[:1] in ([400], []), statuses
    assert set(statuses) <= {400, 200}
    count_settled_records(running_gateway)
    received = [entry for entry in provider.ledger() if not entry.get("model", "").startswith("settled")]
    assert [
        entry["path"]
        for entry in received
        if "hidden" not in entry["path"] and entry["body_bytes"] == len(CHAT_REQUEST_BODY)
    ] == []
    assert len([entry for entry in received if "hidden" in entry["path"]]) == statuses.count(200)


@pytest.mark.parametrize("name", ACCEPTED_REQUESTS)
def test_accepted_request_arrives_once_as_parsed(running_gateway: Gateway, provider: Mock, name: str):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(ACCEPTED_REQUESTS[name])
        statuses = read_statuses(connection)
    assert statuses == [200], statuses
    received = provider.ledger()
    assert [(entry["path"], entry["body_bytes"]) for entry in received] == [(CHAT_PATH, len(CHAT_REQUEST_BODY))]
    fields = dict(received[0]["headers"]) if isinstance(received[0]["headers"], list) else received[0]["headers"]
    assert fields["content-length"] == str(len(CHAT_REQUEST_BODY))
    assert "transfer-encoding" not in fields
    assert "elsewhere" not in fields["host"]
