"""HTTP/2 frames for a minimal test client. Header fields are sent uncompressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL_ERROR = 8
MAX_FRAME_BYTES = 16 * 1024


def request_frames(
    stream: int, method: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, ends: bool = True
) -> bytes:
    """Returns the frames of a request. If `ends` is false, the stream stays open for more data."""
    fields = {":method": method, ":scheme": "http", ":authority": "gateway.test", ":path": path, **headers}
    block = b"".join(encode_field(name, value) for name, value in fields.items())
    chunks = [body[at : at + MAX_FRAME_BYTES] for at in range(0, len(body), MAX_FRAME_BYTES)]
    payloads = [(HEADERS, END_HEADERS, block), *((DATA, 0, chunk) for chunk in chunks)]
    frames = [encode_frame(kind, flags, stream, payload) for kind, flags, payload in payloads[:-1]]
    kind, flags, payload = payloads[-1]
    return b"".join(frames) + encode_frame(kind, flags | (END_STREAM if ends else 0), stream, payload)


def reset_frame(stream: int) -> bytes:
    """Returns a RST_STREAM frame that cancels the stream."""
    return encode_frame(RST_STREAM, 0, stream, CANCEL_ERROR.to_bytes(4, "big"))


def encode_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def encode_field(name: str, value: str) -> bytes:
    """Encodes a header field without indexing or compression (RFC 7541 §6.2.2)."""
    return b"\0" + encode_string(name.encode()) + encode_string(value.encode())


def encode_string(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, digits = len(data) - 127, b""
    while rest >= 128:
        digits += bytes([rest % 128 + 128])
        rest //= 128
    return b"\x7f" + digits + bytes([rest]) + data
