"""HTTP client of an OpenTelemetry collector: sends one batch of spans, and reports if it may be sent again."""

from __future__ import annotations

import email.utils
import enum
import http.client
import ssl
import time
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from penstock import __version__
from penstock.settings.otel import find_traces_url, parse_pairs

if TYPE_CHECKING:
    from penstock.settings.otel import Otel

# Statuses after which OTLP/HTTP allows a client to send the batch again.
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
SUCCESS_STATUSES = range(200, 300)
TOO_LARGE_STATUS = 413
GZIP_WINDOW_BITS, GZIP_LEVEL = 31, 1
MAX_RESPONSE_BYTES, MAX_REASON_CHARS = 64 * 1024, 200
MAX_RETRY_AFTER_SECONDS = 600.0


class Outcome(enum.Enum):
    """Result of sending a batch."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    TOO_LARGE = "too large"
    REFUSED = "refused"


class Delivery(msgspec.Struct, frozen=True):
    """Result of sending a batch, with the number of spans that the collector rejected, and the delay before the batch
    may be sent again.
    """

    outcome: Outcome
    reason: str = ""
    rejected_spans: int = 0
    retry_after_seconds: float | None = None


class PartialSuccess(msgspec.Struct, frozen=True):
    """Number of spans that the collector rejected, and the reason. OTLP encodes 64-bit integers as strings."""

    rejectedSpans: int | str = 0  # noqa: N815 - name in OTLP
    errorMessage: str = ""  # noqa: N815 - name in OTLP


class ExportResponse(msgspec.Struct, frozen=True):
    """Response of a collector to accepted spans."""

    partialSuccess: PartialSuccess | None = None  # noqa: N815 - name in OTLP


class OtelClient:
    """Client with one connection. It follows no redirects. The operator configures the address, so it is not checked
    against the address policy.
    """

    def __init__(self, settings: Otel, tls_ca: str = "") -> None:
        """Stores the address and the headers of the collector. `tls_ca` is a file with additional certificate
        authorities. Raises `OSError` if a file of certificates cannot be used.
        """
        url = urlsplit(find_traces_url(settings))
        self._host, self._port = url.hostname or "", url.port
        self._path = url.path or "/"
        self._tls = make_tls_context(settings, tls_ca) if url.scheme == "https" else None
        self._timeout_seconds = settings.timeout_ms / 1000
        self._headers = {
            "user-agent": f"penstock/{__version__}",
            **parse_pairs(settings.headers.reveal() if settings.headers else ""),
            "content-type": "application/json",
            "content-encoding": "gzip",
        }
        self._connection: http.client.HTTPConnection | None = None

    def send(self, payload: bytes, timeout_seconds: float | None = None) -> Delivery:
        """Sends a batch. Errors of the network or of the collector are part of the result, and raise no exception."""
        body = zlib.compress(payload, GZIP_LEVEL, GZIP_WINDOW_BITS)
        seconds = min(self._timeout_seconds, timeout_seconds or self._timeout_seconds)
        try:
            return self._post(body, seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Delivery(Outcome.RETRY, f"it does not respond: {error or type(error).__name__}")

    def close(self) -> None:
        """Closes the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _post(self, body: bytes, seconds: float) -> Delivery:
        connection = self._connect(seconds)
        is_reused = connection.sock is not None
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
        except ConnectionError:
            self.close()
            if not is_reused:
                raise
            # The collector had closed the idle connection, so the batch is sent again on a new one.
            return self._post(body, seconds)
        received = response.read(MAX_RESPONSE_BYTES)
        if not response.isclosed():
            # The rest of a long response is not read, so the connection cannot be used again.
            self.close()
        return read_delivery(response.status, response.headers.get("retry-after"), received)

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)
                if self._tls
                else http.client.HTTPConnection(self._host, self._port, timeout=seconds)
            )
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        self._connection.timeout = seconds
        return self._connection


def make_tls_context(settings: Otel, tls_ca: str) -> ssl.SSLContext:
    """Returns the TLS settings of a connection to the collector. Raises `OSError` if a file cannot be used."""
    context = ssl.create_default_context(cafile=settings.certificate or None)
    if tls_ca and not settings.certificate:
        context.load_verify_locations(tls_ca)
    if settings.client_certificate:
        # With an empty password, an encrypted key is an error. Without one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(settings.client_certificate, settings.client_key or None, password="")
    return context


def read_delivery(status: int, retry_after: str | None, received: bytes) -> Delivery:
    """Interprets the response of a collector as OTLP/HTTP requires."""
    if status in SUCCESS_STATUSES:
        return _read_success(received)
    words = " ".join(received[:MAX_REASON_CHARS].decode("utf-8", "replace").split())
    reason = f"it returned status {status}" + (f": {words}" if words else "")
    if status in RETRIED_STATUSES:
        return Delivery(Outcome.RETRY, reason, retry_after_seconds=parse_retry_after(retry_after))
    return Delivery(Outcome.TOO_LARGE if status == TOO_LARGE_STATUS else Outcome.REFUSED, reason)


def parse_retry_after(text: str | None) -> float | None:
    """Returns the delay in seconds that a `retry-after` header sets, as a number or as a date. Returns `None` if it is
    not valid.
    """
    if not text:
        return None
    if text.strip().isdecimal():
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return min(max(0.0, moment.timestamp() - time.time()), MAX_RETRY_AFTER_SECONDS)


def _read_success(received: bytes) -> Delivery:
    try:
        partial = msgspec.json.decode(received, type=ExportResponse).partialSuccess if received else None
        rejected = int(partial.rejectedSpans) if partial else 0
    except (msgspec.MsgspecError, ValueError):
        # Some collectors return an empty response, or one in another format. The success status is enough.
        return Delivery(Outcome.ACCEPTED)
    return Delivery(Outcome.ACCEPTED, partial.errorMessage if partial else "", max(0, rejected))
