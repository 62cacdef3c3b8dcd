"""Log of the processes on standard error, as text or as JSON lines, and the access log that is part of it."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings.monitoring import Log

TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
ACCESS_MESSAGE = "access"
# A level above all others, which turns a logger off.
OFF = logging.CRITICAL + 1
# Values that need no quotes in a line of `name=value` pairs.
PLAIN_TEXT = re.compile(r'[^\s"=\x00-\x1f\x7f-\x9f\u2028\u2029]+')
# Libraries of which only warnings are logged. At level debug, the database driver would log each statement.
LIBRARIES = ("alembic", "aiosqlite", "asyncio", "hpack", "httpcore", "httpx", "httpx2", "sqlalchemy")
# Logging configuration for Granian, which by default logs to standard output. Its lines become part of the process log
# instead.
GRANIAN_LOGGING: dict[str, Any] = {
    "loggers": {name: {"handlers": [], "propagate": True} for name in ("_granian", "granian.access")},
    "handlers": {},
    "formatters": {},
}

_access = logging.getLogger("penstock.access")
_access.setLevel(OFF)


class JsonFormatter(logging.Formatter):
    """Formats each line as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns time, level, process id, logger and message. Adds the fields of an access line, and the traceback of
        an exception.
        """
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "logger": record.name,
        }
        fields: Mapping[str, object] | None = getattr(record, "fields", None)
        line |= {"message": ACCESS_MESSAGE, **fields} if fields else {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class AccessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the access log. `path` is without the query."""

    method: str
    path: str
    status: int
    ms: float
    api_key_id: str | None = None
    id: str
    client: str | None = None


def configure(settings: Log) -> None:
    """Sets up the log of this process and of those that it forks."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    _access.setLevel(logging.INFO if settings.access else OFF)


def logs_access() -> bool:
    """Returns true if the access log is enabled."""
    return _access.isEnabledFor(logging.INFO)


def log_access(entry: AccessEntry, ended_at: float | None = None) -> None:
    """Logs a request that ended at this Unix time; default: now."""
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value not in {None, ""}}
    text = " ".join(f"{name}={_quote_if_needed(value)}" for name, value in fields.items())
    record = _access.makeRecord(
        _access.name, logging.INFO, __file__, 0, f"{ACCESS_MESSAGE} %s", (text,), None, extra={"fields": fields}
    )
    if ended_at is not None:
        record.created = ended_at
        record.msecs = ended_at % 1 * 1000
    _access.handle(record)


def _quote_if_needed(value: object) -> str:
    text = str(value)
    return text if PLAIN_TEXT.fullmatch(text) else json.dumps(text)
