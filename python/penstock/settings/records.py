"""Settings of the records of requests."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.settings.request_limits import MEBIBYTE

DEFAULT_RECORDS_PATH = "logs/records.jsonl"


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Request log: one record per request."""

    enabled: Annotated[bool, Meta(description="write a record of each request")] = True
    file: Annotated[
        bool, Meta(description="write records to `path`, too; without a log store they are always written there")
    ] = False
    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="file of records, one JSON object a line, mode 0600; the default is in `store.data_dir` if there is one",
        ),
    ] = DEFAULT_RECORDS_PATH
    rotate_bytes: Annotated[int, Meta(ge=4096, description="size at which the file is rotated")] = 100 * MEBIBYTE
    max_rotated_files: Annotated[int, Meta(ge=0, le=10_000, description="maximum number of rotated files")] = 5
    outbox_bytes: Annotated[
        int,
        Meta(
            ge=MEBIBYTE,
            description="memory per worker for records that are not written yet; beyond it new records are dropped",
        ),
    ] = 64 * MEBIBYTE
    bodies: Annotated[
        bool,
        Meta(
            description="record request and response bodies; a request with debug=false or a workspace that logs figures "
            "alone records none"
        ),
    ] = True
    body_bytes: Annotated[
        int, Meta(ge=0, le=64 * MEBIBYTE, description="recorded bytes of each body; the rest is cut")
    ] = MEBIBYTE
    inline_data: Annotated[
        Literal["digest", "keep"],
        Meta(
            description="base64 of 4 KiB and more in stored bodies, such as images, audio and files: `digest` stores its "
            "size and SHA-256 digest, `keep` the data"
        ),
    ] = "digest"
    durability: Annotated[
        Literal["process", "power"],
        Meta(
            description="what a record survives once the client has the complete response: `process`: a crash of the "
            "gateway; `power`: also a crash of the machine, at the price of one write to the disk before each response "
            "ends"
        ),
    ] = "process"
    spool_bytes: Annotated[
        int,
        Meta(
            ge=16 * MEBIBYTE,
            description="disk space for records that the log worker has not read yet; above 90 percent of it bodies are "
            "left out, and when it is full records wait in memory",
        ),
    ] = 10 * 1024 * MEBIBYTE
    sensitive_headers: Annotated[
        tuple[str, ...],
        Meta(
            description="headers whose values are masked in records, in addition to those that are always masked",
            extra={"env": "ORGANISATION_HEADERS_TO_MASK"},
        ),
    ] = ()
    headers_to_metadata: Annotated[
        tuple[str, ...],
        Meta(
            description="headers whose values become metadata under their lower-case names; masked headers are not allowed",
            extra={"env": "HEADERS_TO_METADATA"},
        ),
    ] = ()
