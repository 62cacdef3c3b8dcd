"""The `[metrics]` and `[log]` settings sections: Prometheus metrics, and the log of the gateway itself."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import Problem
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.settings import Settings

MODEL_LABEL, CONFIG_LABEL, KEY_LABEL, WORKSPACE_LABEL = "model", "config_name", "api_key_name", "workspace"
OPTIONAL_LABELS = (MODEL_LABEL, CONFIG_LABEL, KEY_LABEL, WORKSPACE_LABEL)
METADATA_LABEL_PREFIX = "metadata_"
MAX_LABELS = 16
MAX_PORT = 65535


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Prometheus metrics."""

    enabled: Annotated[
        bool,
        Meta(description="serve `/metrics` and `/dataservice/metrics`", extra={"env": "ENABLE_PROMETHEUS"}),
    ] = False
    token: Annotated[
        Secret | None,
        Meta(
            description="bearer token that requests for metrics must send; without it, only clients on this machine can "
            "read them at the port of the gateway"
        ),
    ] = None
    listen: Annotated[
        str,
        Meta(
            description="address and port that serve nothing but `/metrics`, such as `10.0.0.5:9464` or `[::]:9464`; "
            "everybody who reaches it can read them unless `metrics.token` is set"
        ),
    ] = ""
    app: Annotated[
        str, Meta(description="value of the label `app` of the request metrics", extra={"env": "SERVICE_NAME"})
    ] = "penstock"
    environment: Annotated[
        str,
        Meta(
            description="value of the label `env` of the request metrics, such as `production`; empty: no such label",
            extra={"env": "NODE_ENV"},
        ),
    ] = ""
    include_model: Annotated[
        bool,
        Meta(
            description="add the label `model` to the request metrics", extra={"env": "PROMETHEUS_INCLUDE_MODEL_LABEL"}
        ),
    ] = False
    labels: Annotated[
        tuple[str, ...],
        Meta(
            description="further labels of the request metrics: `model`, `config_name`, `api_key_name`, `workspace`, or "
            "`metadata_` and the name of a metadata key, such as `metadata_team`"
        ),
    ] = ()
    label_values: Annotated[
        int,
        Meta(ge=1, le=100_000, description="different values of one label; further values are counted as `other`"),
    ] = 200
    label_sets: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="different combinations of label values; requests with a further one are counted in a "
            "combination with `other` for each label",
        ),
    ] = 500


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Log of the gateway itself on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="lowest level that is logged")] = (
        "info"
    )
    format: Annotated[Literal["text", "json"], Meta(description="`text`, or `json` for one JSON object per line")] = (
        "text"
    )
    access: Annotated[
        bool,
        Meta(
            description="log one line per request: method, path, status, duration, key, request id and client address; "
            "records then have the client's address too"
        ),
    ] = False


def optional_labels(settings: Settings) -> tuple[str, ...]:
    """Returns the optional labels that are configured, without duplicates. The names are those in the settings."""
    model = (MODEL_LABEL,) if settings.metrics.include_model else ()
    return tuple(dict.fromkeys(model + settings.metrics.labels))


def validate_metrics(settings: Settings) -> Iterator[Problem]:
    """Yields the validation errors of the section `metrics`."""
    if address := settings.metrics.listen:
        try:
            parse_listen_address(address)
        except ValueError:
            reason = f"{address!r} is not allowed: expected an IP address and a port, such as `127.0.0.1:9464`"
            yield Problem("metrics.listen", reason)
        if not settings.metrics.enabled:
            yield Problem("metrics.listen", "needs metrics.enabled = true")
    labels = optional_labels(settings)
    if len(labels) > MAX_LABELS:
        yield Problem("metrics.labels", f"has {len(labels)} labels; at most {MAX_LABELS} are allowed")
    first_by_name: dict[str, str] = {}
    for label in labels:
        if label not in OPTIONAL_LABELS and not metadata_key(label):
            allowed = ", ".join(OPTIONAL_LABELS)
            reason = f"{label!r} is not known; allowed: {allowed}, or `metadata_` and a key, such as `metadata_team`"
            yield Problem("metrics.labels", reason)
        name = prometheus_label_name(label)
        if (first := first_by_name.setdefault(name, label)) != label:
            yield Problem("metrics.labels", f"{first!r} and {label!r} have the same name in Prometheus: {name!r}")


def metadata_key(label: str) -> str:
    """Returns the metadata key of a label such as `metadata.team`; an empty string for other labels."""
    return label.removeprefix(METADATA_LABEL_PREFIX) if label.startswith(METADATA_LABEL_PREFIX) else ""


def parse_listen_address(text: str) -> tuple[str, int]:
    """Splits `127.0.0.1:9464` or `[::1]:9464`. Raises ValueError if it is no IP address with a port."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        message = "expected a port"
        raise ValueError(message)
    is_bracketed = host.startswith("[") and host.endswith("]")
    address = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
    if is_bracketed != (address.version == 6):  # noqa: PLR2004 - IPv6
        message = "expected brackets around an IPv6 address only"
        raise ValueError(message)
    return str(address), int(port)


def prometheus_label_name(label: str) -> str:
    """Returns the name of a label with the characters that Prometheus allows."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)
