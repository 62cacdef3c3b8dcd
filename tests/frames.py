"""Frames of HTTP/2, as much of them as a client of one's own needs: no field is compressed."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def field(name: str, value: str) -> bytes:
    """A header field that is neither indexed nor compressed (RFC 7541 §6.2.2)."""
    return b"\0" + text(name.encode()) + text(value.encode())


def text(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, digits = len(data) - 127, b""
    while rest >= 128:
        digits += bytes([rest % 128 + 128])
        rest //= 128
    return b"\x7f" + digits + bytes([rest]) + data
