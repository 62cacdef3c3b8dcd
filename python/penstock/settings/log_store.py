"""The `[log_store]` settings section: where records and bodies are stored for queries, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from penstock.errors import Problem
from penstock.settings.buckets import FOLDER, validate_bucket
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

DUCKDB = "duckdb:"
MAX_DAYS = 36_500


class LogStore(msgspec.Struct, frozen=True, kw_only=True):
    """Log store: records, feedback and bodies for logs, analytics and exports."""

    enabled: Annotated[bool, Meta(description="store records for queries; needs `records.enabled`")] = True
    path: Annotated[
        str,
        Meta(
            description="folder of the spool, the embedded log store and bodies; "
            "default: `store` in the folder of `records.path`"
        ),
    ] = ""
    url: Annotated[
        Secret | None,
        Meta(
            description="`clickhouse://user:password@host:8123/database` for a log store that all nodes share; "
            "default: `duckdb:`, an embedded one of this node"
        ),
    ] = None
    keep_days: Annotated[int, Meta(ge=1, le=MAX_DAYS, description="days that records are kept")] = 365
    keep_bodies_days: Annotated[int, Meta(ge=1, le=MAX_DAYS, description="days that bodies are kept")] = 30
    received_max_age_hours: Annotated[
        int,
        Meta(
            ge=1,
            le=24 * MAX_DAYS,
            description="age up to which spans and log records of other programs are accepted; older ones change days "
            "that are stored already, which takes long",
        ),
    ] = 48
    bodies: Annotated[
        str,
        Meta(description="where bodies are stored: `folder` for a folder of `log_store.path`, or `s3://bucket/prefix`"),
    ] = FOLDER
    s3_endpoint_url: Annotated[
        str, Meta(description="URL of a service compatible with S3, such as MinIO; default: Amazon S3")
    ] = ""
    s3_region: Annotated[str, Meta(description="region of the bucket; default: that of the AWS environment")] = ""
    s3_access_key_id: Annotated[
        str, Meta(description="access key of the bucket; default: the credentials of the AWS environment")
    ] = ""
    s3_secret_access_key: Annotated[Secret | None, Meta(description="secret of the access key")] = None
    format: Annotated[
        Literal["packs", "v1", "v2"],
        Meta(
            description="`packs`: compressed packs of many records; `v1`: one object `30/organisation/log.json` per "
            "record; `v2`: one below `30/organisation/workspace/year/month/day/hour/`"
        ),
    ] = "packs"
    connection_failure_threshold: Annotated[
        int,
        Meta(
            ge=1,
            description="failed writes of bodies in a row that open the circuit breaker",
            extra={"env": "LOG_STORE_CONNECTION_FAILURE_THRESHOLD"},
        ),
    ] = 5
    connection_backoff_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="time that the circuit breaker stays open before the bucket is probed",
            extra={"env": "LOG_STORE_CONNECTION_BACKOFF_MS"},
        ),
    ] = 60_000
    connection_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="time limit of one call to the bucket; at most 15 seconds for `files.store`",
            extra={"env": "LOG_STORE_CONNECTION_TIMEOUT_MS"},
        ),
    ] = 15_000

    @property
    def clickhouse_url(self) -> Secret | None:
        """URL of the ClickHouse that all nodes share; `None` for the embedded log store of this node."""
        return self.url if self.url and self.url.reveal() != DUCKDB else None


def validate_log_store(section: LogStore) -> Iterator[Problem]:
    """Yields the validation errors of the section."""
    if section.url and section.url.reveal() != DUCKDB and not _is_clickhouse_url(section.url.reveal()):
        # The value is not repeated, because it may contain a password.
        reason = (
            "is not allowed: expected `duckdb:` or an address such as `clickhouse://user:password@host:8123/database`"
        )
        yield Problem("log_store.url", reason)
    yield from validate_bucket("log_store", "bodies", section.bodies, section)


def _is_clickhouse_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme == "clickhouse" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
