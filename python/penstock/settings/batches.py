"""The settings sections `[files]` and `[batches]`. They cover files and batches that the gateway stores and runs
itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.buckets import FOLDER
from penstock.settings.secret import Secret

MEBIBYTE = 1024 * 1024
DAY_SECONDS = 24 * 3600


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of files that are uploaded to the gateway itself, of outputs of batches, and of log exports."""

    store: Annotated[
        str,
        Meta(
            description="where the contents of files, outputs of batches and log exports are stored: "
            "`folder` for `files.folder`, or `s3://bucket/prefix`"
        ),
    ] = FOLDER
    folder: Annotated[
        str,
        Meta(
            description="folder of the uploaded files, on a disk that all nodes share; default: `files` beside the settings file"
        ),
    ] = ""
    s3_endpoint_url: Annotated[
        str,
        Meta(description="URL of a service compatible with S3, such as MinIO; default: `log_store.s3_endpoint_url`"),
    ] = ""
    s3_region: Annotated[str, Meta(description="region of the bucket; default: `log_store.s3_region`")] = ""
    s3_access_key_id: Annotated[
        str,
        Meta(description="access key of the bucket; default, with its secret: `log_store.s3_access_key_id`"),
    ] = ""
    s3_secret_access_key: Annotated[Secret | None, Meta(description="secret of the access key")] = None
    workspace_bytes: Annotated[
        int, Meta(ge=0, description="maximum total size of the files of one workspace, in bytes")
    ] = 10 * 1024 * MEBIBYTE
    retention_seconds: Annotated[int, Meta(ge=1, description="age at which files and finished batches are deleted")] = (
        30 * DAY_SECONDS
    )


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of batches that the gateway runs itself."""

    max_running: Annotated[
        int, Meta(ge=1, le=64, description="batches that one node runs at once; further batches wait")
    ] = 4
    max_unfinished: Annotated[int, Meta(ge=1, description="maximum number of unfinished batches of one workspace")] = (
        100
    )
    max_lines: Annotated[int, Meta(ge=1, le=1_000_000, description="maximum number of lines of a batch")] = 50_000
    line_bytes: Annotated[int, Meta(ge=1024, description="maximum length of a batch line, in bytes")] = MEBIBYTE
    response_bytes: Annotated[int, Meta(ge=1024, description="maximum size of the response to a line, in bytes")] = (
        16 * MEBIBYTE
    )
    concurrency: Annotated[
        int,
        Meta(ge=1, le=1000, description="lines of a batch that are started per interval, and that run at once"),
    ] = 25
    interval_ms: Annotated[int, Meta(ge=0, le=3_600_000, description="length of the interval")] = 5000
    max_retries: Annotated[
        int, Meta(ge=0, le=10, description="retries of a line after an error that may be temporary")
    ] = 3
    poll_ms: Annotated[
        int, Meta(ge=10, description="interval at which the status of a batch that a provider runs is polled")
    ] = 30_000
    window_seconds: Annotated[int, Meta(ge=1, description="time limit of a batch; lines not sent by then expire")] = (
        DAY_SECONDS
    )
