"""Binary format of spool segments. The engine writes the same format (`rust/core/src/accounting/spool`)."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import msgspec

from penstock.engine import decode_spool_frames, split_spool_frames

MEBIBYTE = 1024 * 1024
MAGIC = b"PSPOOL01"
SEGMENT_BYTES = 64 * MEBIBYTE
SEGMENT_SUFFIX, LOCK_FILE = ".seg", "lock"
# Header of a frame: length of the payload, checksum, kind, flags, reserved, record id.
FRAME_HEADER = struct.Struct("<IIBBH16s")
HEADER_LENGTH = struct.Struct("<I")
# Offset in the header at which the part begins that the checksum covers. The checksum also covers the payload.
CHECKED_FROM = 8
MAX_HEADER_BYTES = 4096

BEGIN, CLIENT_REQUEST, UPSTREAM_REQUEST, UPSTREAM_RESPONSE, CLIENT_RESPONSE = 1, 2, 3, 4, 5
END, AMEND, FEEDBACK, EXTERNAL_LOG = 6, 7, 8, 9
# URL, method and headers of the request to the provider, as JSON with secrets masked. It is stored with the bodies.
UPSTREAM_HEAD = 10
BODY_NAMES = {
    CLIENT_REQUEST: "client_request",
    UPSTREAM_REQUEST: "upstream_request",
    UPSTREAM_RESPONSE: "upstream_response",
    CLIENT_RESPONSE: "client_response",
    UPSTREAM_HEAD: "upstream_head",
}
BODY_CUT, BODIES_DROPPED, REFUSED = 1, 2, 4
# Flag of an `END` frame that was written before the usage was known. An amendment follows, unless no usage is found.
AMENDMENT_FOLLOWS = 8


class SegmentHeader(msgspec.Struct, frozen=True):
    """Node and process that wrote a segment. `started_at` is when the segment was created, in milliseconds."""

    node: str = ""
    writer: str = ""
    pid: int = 0
    process_start: int = 0
    """Start time of the process, in clock ticks since the start of the system. Setting the system clock does not change
    it.
    """
    boot_id: str = ""
    started_at: int = 0


# A frame: kind, flags, record id, payload, and its offset in the segment.
Frame = tuple[int, int, bytes, bytes, int]


class DecodedFrames(NamedTuple):
    """Frames of a buffer. `end` is the offset after the last one. `is_broken` is true if decoding stopped at a damaged
    frame.

    The `BEGIN` frame of a request is omitted if its `END` frame follows in the buffer without bodies in between.
    """

    frames: list[Frame]
    end: int
    is_broken: bool
    # Number of bytes of the incomplete frame at the end, if the buffer has its header.
    needed: int


def encode_frame(kind: int, flags: int, record_id: bytes, payload: bytes) -> bytes:
    """Returns the bytes of one frame."""
    checked = FRAME_HEADER.pack(0, 0, kind, flags, 0, record_id)[CHECKED_FROM:]
    checksum = zlib.crc32(payload, zlib.crc32(checked))
    return FRAME_HEADER.pack(len(payload), checksum, kind, flags, 0, record_id) + payload


def encode_header(header: SegmentHeader) -> bytes:
    """Returns the bytes at the start of a segment."""
    text = msgspec.json.encode(header)
    return MAGIC + HEADER_LENGTH.pack(len(text)) + text


def decode_header(data: bytes) -> tuple[SegmentHeader, int] | None:
    """Returns the header and its length in bytes; `None` if it is incomplete. Raises `ValueError` if it is invalid."""
    start = len(MAGIC) + HEADER_LENGTH.size
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        message = "the segment does not start with the name of its format"
        raise ValueError(message)
    if len(data) < start:
        return None
    (length,) = HEADER_LENGTH.unpack_from(data, len(MAGIC))
    if length > MAX_HEADER_BYTES:
        message = f"the segment has a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed"
        raise ValueError(message)
    if len(data) < start + length:
        return None
    return msgspec.json.decode(data[start : start + length], type=SegmentHeader), start + length


def decode_frames(data: bytes, base: int, limit: int) -> DecodedFrames:
    """Decodes at most `limit` complete frames of a buffer that starts at the offset `base` of its segment."""
    return DecodedFrames(*decode_spool_frames(data, base, limit))


class PlainRecords(NamedTuple):
    """Records of finished requests without bodies, flags and feedback of guardrails. `ids` has 16 bytes for each line."""

    ids: bytes
    lines: list[bytes]


def split_frames(data: bytes, base: int, limit: int, done: int) -> tuple[PlainRecords, DecodedFrames]:
    """Decodes like `decode_frames`, but returns plain records separately, without those before the offset `done`."""
    plain, frames, end, is_broken, needed = split_spool_frames(data, base, limit, done)
    return PlainRecords(*plain), DecodedFrames(frames, end, is_broken, needed)
