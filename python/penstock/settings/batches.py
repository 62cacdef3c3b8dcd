"""The sections of the settings about files and batches that the gateway keeps itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MEBIBYTE = 1024 * 1024
DAY_SECONDS = 24 * 3600


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are uploaded to the gateway itself."""

    folder: Annotated[
        str,
        Meta(
            description="where they are kept, on a disk that all nodes share; default: `files` beside the settings file"
        ),
    ] = ""
    workspace_bytes: Annotated[int, Meta(ge=0, description="room for the files of one workspace")] = (
        10 * 1024 * MEBIBYTE
    )
    keep_seconds: Annotated[
        int, Meta(ge=1, description="age at which files, and batches that are over, are deleted")
    ] = 30 * DAY_SECONDS


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that the gateway runs itself."""

    at_once: Annotated[int, Meta(ge=1, le=64, description="batches that one node runs at once; others wait")] = 4
    waiting: Annotated[int, Meta(ge=1, description="batches of one workspace that are not over yet")] = 100
    lines: Annotated[int, Meta(ge=1, le=1_000_000, description="most lines of a batch")] = 50_000
    line_bytes: Annotated[int, Meta(ge=1024, description="longest line of a batch")] = MEBIBYTE
    answer_bytes: Annotated[int, Meta(ge=1024, description="longest answer to a line")] = 16 * MEBIBYTE
    requests: Annotated[
        int,
        Meta(ge=1, le=1000, description="lines of a batch that are begun within an interval, and under way at once"),
    ] = 25
    interval_ms: Annotated[int, Meta(ge=0, le=3_600_000, description="length of the interval")] = 5000
    retries: Annotated[int, Meta(ge=0, le=10, description="further attempts at a line that may yet succeed")] = 3
    poll_ms: Annotated[
        int, Meta(ge=10, description="time between two questions how far a batch is that a provider runs")
    ] = 30_000
    window_seconds: Annotated[int, Meta(ge=1, description="time for all lines of a batch; what is left is expired")] = (
        DAY_SECONDS
    )
