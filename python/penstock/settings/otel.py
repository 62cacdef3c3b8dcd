"""The `[otel]` settings section: export of request records as OpenTelemetry spans over OTLP/HTTP."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from penstock.errors import Problem
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES_PATH = "/v1/traces"
OTLP_EXPORTER, NO_EXPORTER = "otlp", "none"
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
PAIRS_WORDS = "expected pairs such as `name=value,other=value`, with special characters percent-encoded"


class Otel(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry export. It is off unless an endpoint is set, and needs `records.enabled`."""

    enabled: Annotated[
        bool,
        Meta(
            description="export spans if an endpoint is set",
            extra={"env": "EXPERIMENTAL_GEN_AI_OTEL_TRACES_ENABLED"},
        ),
    ] = True
    sdk_disabled: Annotated[
        str,
        Meta(
            description="`true`, in any letter case, turns the export off; other values have no effect",
            extra={"env": "OTEL_SDK_DISABLED"},
        ),
    ] = ""
    traces_exporter: Annotated[
        str,
        Meta(
            description="`none` turns the export off; of a list of exporters, only `otlp` has an effect",
            extra={"env": "OTEL_TRACES_EXPORTER"},
        ),
    ] = OTLP_EXPORTER
    endpoint: Annotated[
        str,
        Meta(
            description="base URL of an OTLP/HTTP collector, such as `http://127.0.0.1:4318`; `/v1/traces` is appended",
            extra={
                "env": "OTEL_EXPORTER_OTLP_ENDPOINT",
                "other_envs": ("EXPERIMENTAL_GEN_AI_OTEL_EXPORTER_OTLP_ENDPOINT",),
            },
        ),
    ] = ""
    traces_endpoint: Annotated[
        str,
        Meta(
            description="complete URL that spans are sent to, instead of `otel.endpoint`",
            extra={"env": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
        ),
    ] = ""
    headers: Annotated[
        Secret | None,
        Meta(
            description="headers that the collector requires: `name=value,other=value`, with special characters percent-encoded",
            extra={
                "env": "OTEL_EXPORTER_OTLP_HEADERS",
                "other_envs": (
                    "EXPERIMENTAL_GEN_AI_OTEL_EXPORTER_OTLP_HEADERS",
                    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                ),
            },
        ),
    ] = None
    certificate: Annotated[
        str,
        Meta(
            description="PEM file of the certificate authorities that the collector's certificate is checked against; default: those of the system and of `upstream.tls_ca`",
            extra={
                "env": "OTEL_EXPORTER_OTLP_CERTIFICATE",
                "other_envs": ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",),
            },
        ),
    ] = ""
    client_certificate: Annotated[
        str,
        Meta(
            description="PEM file of the certificate that the gateway shows to the collector, and of its chain",
            extra={
                "env": "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
                "other_envs": ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",),
            },
        ),
    ] = ""
    client_key: Annotated[
        str,
        Meta(
            description="PEM file of the private key of `otel.client_certificate`, without a passphrase; default: the key is in the same file",
            extra={
                "env": "OTEL_EXPORTER_OTLP_CLIENT_KEY",
                "other_envs": ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",),
            },
        ),
    ] = ""
    service_name: Annotated[
        str,
        Meta(
            description="resource attribute `service.name`; default: that of `otel.resource_attributes`, else `penstock`",
            extra={"env": "OTEL_SERVICE_NAME"},
        ),
    ] = ""
    resource_attributes: Annotated[
        str,
        Meta(
            description="further resource attributes: `name=value,other=value`, with special characters percent-encoded",
            extra={
                "env": "OTEL_RESOURCE_ATTRIBUTES",
                "other_envs": ("EXPERIMENTAL_GEN_AI_OTEL_RESOURCE_ATTRIBUTES",),
            },
        ),
    ] = ""
    content: Annotated[
        bool, Meta(description="export messages, system instructions and tool definitions, too; needs `records.bodies`")
    ] = False
    batch_records: Annotated[int, Meta(ge=1, le=8192, description="maximum number of requests in one export")] = 512
    batch_ms: Annotated[int, Meta(ge=0, le=60_000, description="time that an export waits for more requests")] = 1000
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="time limit of one export",
            extra={"env": "OTEL_EXPORTER_OTLP_TIMEOUT", "other_envs": ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",)},
        ),
    ] = 10_000
    max_age_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="age at which requests are skipped while the collector does not respond; also if they occupy half of `records.spool_bytes`",
        ),
    ] = 3600


def find_traces_url(otel: Otel) -> str:
    """Returns the URL that spans are sent to; an empty string if the export is off."""
    is_off = otel.sdk_disabled.lower() == "true" or _list_exporters(otel) == {NO_EXPORTER}
    if is_off or not otel.enabled:
        return ""
    base = otel.endpoint.rstrip("/")
    return otel.traces_endpoint or (base and base + TRACES_PATH)


def find_ignored_values(otel: Otel) -> list[str]:
    """Returns the values that have no effect, because OpenTelemetry says that unknown ones are ignored with a warning."""
    ignored = [
        f"otel.traces_exporter has {name!r}; known are `otlp` and `none`"
        for name in sorted(_list_exporters(otel) - {OTLP_EXPORTER, NO_EXPORTER})
    ]
    if otel.sdk_disabled.lower() not in {"", "true", "false"}:
        ignored.append(f"otel.sdk_disabled is {otel.sdk_disabled!r}; known are `true` and `false`")
    return ignored


def _list_exporters(otel: Otel) -> set[str]:
    return {name.strip() for name in otel.traces_exporter.split(",") if name.strip()}


def parse_pairs(text: str) -> dict[str, str]:
    """Parses `name=value,other=value`, whose parts may be percent-encoded. Raises `ValueError`."""
    headers: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, mark, value = part.partition("=")
        name, value = unquote(name.strip()), unquote(value.strip())
        if not mark or not name:
            raise ValueError(PAIRS_WORDS)
        headers[name] = value
    return headers


def validate_otel(section: Otel) -> Iterator[Problem]:
    """Yields the validation errors of the section. Without an endpoint the other values are not used."""
    if not find_traces_url(section):
        return
    for name, url in (("endpoint", section.endpoint), ("traces_endpoint", section.traces_endpoint)):
        if url and not _is_collector_url(url):
            # The value is not repeated, because it may contain a password.
            reason = (
                "is not allowed: expected a URL such as `http://127.0.0.1:4318`, without a user, a query and a fragment"
            )
            yield Problem(f"otel.{name}", reason)
    for name in ("certificate", "client_certificate", "client_key"):
        path: str = getattr(section, name)
        if path and not os.path.isfile(path):
            yield Problem(f"otel.{name}", f"there is no file {path!r}")
    if section.client_key and not section.client_certificate:
        yield Problem("otel.client_key", "needs otel.client_certificate: set the file of its certificate")
    try:
        headers = parse_pairs(section.headers.reveal() if section.headers else "")
        if not all(map(_is_header, headers, headers.values())):
            yield Problem("otel.headers", f"has a header that HTTP does not allow: {PAIRS_WORDS}")
    except ValueError as error:
        yield Problem("otel.headers", f"is not allowed: {error}")
    try:
        parse_pairs(section.resource_attributes)
    except ValueError as error:
        yield Problem("otel.resource_attributes", f"is not allowed: {error}")


def _is_collector_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and is_plain
    except ValueError:
        return False


def _is_header(name: str, value: str) -> bool:
    return bool(HEADER_NAME.fullmatch(name)) and value.isascii() and value.isprintable()
