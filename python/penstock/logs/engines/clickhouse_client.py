"""Small synchronous client for ClickHouse's HTTP interface."""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.logs.engines.protocol import LogEngineError, QueryTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.logs.engines.sql import Row

# Error codes of queries that exceed a limit: timeout, too many rows or bytes, memory limit, too slow.
TOO_LARGE_CODES = frozenset({158, 159, 160, 241, 307, 396})
# Error codes for input with values of a wrong type.
INVALID_INPUT_CODES = frozenset({6, 26, 27, 38, 41, 53, 69, 72, 117, 321, 376, 441})
OK_STATUS = 200
MAX_ERROR_BYTES = 4096
DEFAULT_PORT, DEFAULT_TLS_PORT = 8123, 8443
# Time that the client waits longer than the server. The server thus ends an insert before the client repeats it.
CLIENT_GRACE_SECONDS = 5.0


class ClickHouseInputError(LogEngineError):
    """The server rejected a value in the rows to insert."""


class ServerAddress(msgspec.Struct, frozen=True):
    """Parts of a URL `clickhouse://user:password@host:port/database?secure=1&cluster=name`."""

    host: str
    port: int
    user: str
    password: str
    database: str
    is_secure: bool
    cluster: str | None


def parse_url(url: str) -> ServerAddress:
    """Parses a URL. Raises `ValueError`, without the password in the message."""
    parts = urllib.parse.urlsplit(url)
    options = dict(urllib.parse.parse_qsl(parts.query))
    unknown = set(options) - {"secure", "cluster"}
    if parts.scheme != "clickhouse" or not parts.hostname or unknown:
        message = (
            "log_store.url must be clickhouse://user:password@host:port/database, with the options secure and cluster"
        )
        raise ValueError(message)
    is_secure = options.get("secure", "0") in {"1", "true"}
    return ServerAddress(
        parts.hostname,
        parts.port or (DEFAULT_TLS_PORT if is_secure else DEFAULT_PORT),
        urllib.parse.unquote(parts.username or "default"),
        urllib.parse.unquote(parts.password or ""),
        urllib.parse.unquote(parts.path.strip("/")) or "default",
        is_secure,
        options.get("cluster"),
    )


class ClickHouseClient:
    """Client with one connection per thread."""

    def __init__(self, address: ServerAddress) -> None:
        """Stores the address."""
        self._address = address
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Closes all connections. A thread that sends another request opens a new connection."""
        for connection in self._connections:
            connection.close()

    def query(self, sql: str, parameters: Mapping[str, str], seconds: float, *, memory_bytes: int) -> list[Row]:
        """Runs a SELECT, and returns its rows."""
        settings = {
            "readonly": "2",
            "max_execution_time": f"{max(seconds, 0.001):.3f}",
            "max_memory_usage": str(memory_bytes),
            **{f"param_{name}": value for name, value in parameters.items()},
        }
        body = self._send(sql.encode() + b" FORMAT JSONCompact", settings, seconds)
        try:
            return [tuple(row) for row in msgspec.json.decode(body)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            message = f"ClickHouse returned a result that is not complete: {body[-200:].decode(errors='replace')}"
            raise LogEngineError(message) from error

    def command(self, sql: str, data: bytes = b"", seconds: float = 60.0) -> None:
        """Runs a statement that returns nothing, such as an INSERT with its rows.

        It uses a new connection. On an idle connection that the server has closed, the client would repeat the
        statement.
        """
        if (connection := getattr(self._local, "connection", None)) is not None:
            connection.close()
        self._send(sql.encode() + (b"\n" + data if data else b""), {"max_execution_time": f"{seconds:.3f}"}, seconds)

    def _send(self, body: bytes, settings: Mapping[str, str], seconds: float) -> bytes:
        query = urllib.parse.urlencode({
            "database": self._address.database,
            "wait_end_of_query": "1",
            "async_insert": "0",
            "join_use_nulls": "1",
            "max_query_size": str(16 * 1024 * 1024),
            "date_time_input_format": "best_effort",
            "input_format_skip_unknown_fields": "1",
            "output_format_json_quote_64bit_integers": "0",
            **settings,
        })  # fmt: skip
        headers = {"X-ClickHouse-User": self._address.user, "X-ClickHouse-Key": self._address.password}
        connection = self._connect(seconds + CLIENT_GRACE_SECONDS)
        is_reused = connection.sock is not None
        try:
            connection.request("POST", f"/?{query}", body, headers)
            response = connection.getresponse()
            received = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if is_reused and isinstance(error, ConnectionError):
                # The server had closed the idle connection, so the query is sent again on a new one.
                return self._send(body, settings, seconds)
            message = f"ClickHouse at {self._address.host}:{self._address.port} does not answer: {error!r}"
            raise LogEngineError(message) from error
        if response.status != OK_STATUS:
            raise _make_error(response.status, response.headers.get("X-ClickHouse-Exception-Code"), received)
        return received

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._address.is_secure else http.client.HTTPConnection
            connection = self._local.connection = kind(self._address.host, self._address.port)
            self._connections.append(connection)
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        return connection


def _make_error(status: int, code: str | None, received: bytes) -> LogEngineError:
    text = received[:MAX_ERROR_BYTES].decode(errors="replace").strip()
    number = int(code) if code and code.isdigit() else 0
    if number in TOO_LARGE_CODES:
        message = "the query needs more time or memory than is allowed; choose a shorter range of time or more filters"
        return QueryTooLargeError(message)
    message = f"ClickHouse returned status {status}: {text}"
    return ClickHouseInputError(message) if number in INVALID_INPUT_CODES else LogEngineError(message)


def encode_parameter(value: Any) -> str:  # noqa: ANN401 - any bound value
    """Encodes a value for a URL parameter `param_…`: strings with the escapes of tab-separated text, arrays of strings
    as literals.
    """
    if isinstance(value, list):
        items = cast("list[object]", value)
        return "[" + ",".join("'" + str(item).replace("\\", "\\\\").replace("'", "\\'") + "'" for item in items) + "]"
    text = str(value)
    for character, escape in ESCAPES:
        text = text.replace(character, escape)
    return text


ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"), ("\b", "\\b"), ("\f", "\\f"), ("\0", "\\0"))
