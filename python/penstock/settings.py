"""Everything an operator can set: one frozen tree, read once from a file and the environment."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from penstock.errors import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Tables of the same file that are no settings: they belong to the snapshot and may change at any time.
SNAPSHOT_TABLES = ("keys", "providers", "configs")
DEFAULT_FILE = "penstock.toml"
MEBIBYTE = 1024 * 1024
WORDS = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


class Secret:
    """A value that prints as dots wherever it ends up."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Hide the value."""
        self._value = value

    def reveal(self) -> str:
        """Hand out the value; the only way to it."""
        return self._value

    def __repr__(self) -> str:
        """Print dots."""
        return "••••"

    __str__ = __repr__

    def __reduce__(self) -> str:
        """Refuse to be pickled: a secret does not travel by accident."""
        message = "a secret cannot be pickled"
        raise TypeError(message)


def _workers() -> int:
    # One event loop carries about four cores' worth of the engine's own threads.
    return max(1, (os.cpu_count() or 1) // 4)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the gateway listens and how it comes and goes."""

    host: Annotated[str, Meta(description="IP address to listen on, or `localhost`")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 takes any free one")] = 8787
    workers: Annotated[int, Meta(ge=1, le=256, description="edge processes; default: one per four cores")] = (
        msgspec.field(default_factory=_workers)
    )
    backlog: Annotated[int, Meta(ge=128, le=65535, description="connections waiting to be accepted, per worker")] = 2048
    connections: Annotated[int, Meta(ge=1, description="connections open at once, per worker, idle ones too")] = 65536
    header_timeout_ms: Annotated[
        int, Meta(ge=100, description="time for a request's headers to arrive, and for a kept connection to be idle")
    ] = 10_000
    header_bytes: Annotated[int, Meta(ge=8192, description="largest block of request headers (HTTP/1)")] = 65536
    drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="time that open requests get to finish at shutdown")
    ] = 30.0
    notice_seconds: Annotated[
        float, Meta(ge=0, le=60, description="time between `/ready` saying no and the port closing; 0 on loopback")
    ] = 1.0
    run_dir: Annotated[
        str, Meta(description="private folder for the control socket; default: a new one, removed at exit")
    ] = ""


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Who may call, and what a caller may choose."""

    require_key: Annotated[
        bool | None,
        Meta(description="ask for a gateway key even while none is configured; default: yes, but no on loopback"),
    ] = None
    block_inline_config: Annotated[
        bool,
        Meta(
            description="refuse configs, providers and hosts that a request brings along",
            extra={"env": "BLOCK_INLINE_CONFIG"},
        ),
    ] = False
    header_aliases: Annotated[
        tuple[str, ...], Meta(description="prefixes that are read as `x-gateway-`, for clients made for other gateways")
    ] = ("x-portkey-",)


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The way out to providers."""

    request_timeout_ms: Annotated[
        int, Meta(ge=1, description="time for a provider to answer", extra={"env": "REQUEST_TIMEOUT"})
    ] = 300_000
    connect_timeout_ms: Annotated[int, Meta(ge=1, description="time to connect to a provider, TLS included")] = 3000
    trusted_custom_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="hosts that a custom host may name, subdomains too; private addresses only if listed here",
            extra={"env": "TRUSTED_CUSTOM_HOSTS"},
        ),
    ] = ()
    tls_ca: Annotated[
        str,
        Meta(
            description="PEM file of certificate authorities to trust besides the usual ones", extra={"env": "TLS_CA"}
        ),
    ] = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something one request may be."""

    body_bytes: Annotated[int, Meta(ge=1024, description="largest request body")] = 100 * MEBIBYTE


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """The record that each request leaves."""

    enabled: Annotated[bool, Meta(description="write a record of each request")] = True
    path: Annotated[str, Meta(min_length=1, description="file of records, one JSON object a line, mode 0600")] = (
        "logs/records.jsonl"
    )
    rotate_bytes: Annotated[int, Meta(ge=4096, description="size at which the file is put aside")] = 100 * MEBIBYTE
    keep: Annotated[int, Meta(ge=0, le=10_000, description="files put aside that are kept")] = 5
    outbox_bytes: Annotated[
        int, Meta(ge=MEBIBYTE, description="records waiting in memory per worker before new ones are dropped")
    ] = 64 * MEBIBYTE
    sensitive_headers: Annotated[
        tuple[str, ...], Meta(description="headers whose values are masked in records, besides those that always are")
    ] = ()


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures for Prometheus."""

    enabled: Annotated[
        bool,
        Meta(description="serve `/metrics` and `/dataservice/metrics`", extra={"env": "ENABLE_PROMETHEUS"}),
    ] = False


class Mock(msgspec.Struct, frozen=True, kw_only=True):
    """The pretend provider."""

    host: Annotated[str, Meta(description="base URL of the provider named `mock`; empty: there is none")] = ""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway says about itself on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="how much is said")] = "info"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree; its sections are the tables of `penstock.toml`."""

    server: Server = Server()
    security: Security = Security()
    upstream: Upstream = Upstream()
    limits: Limits = Limits()
    records: Records = Records()
    metrics: Metrics = Metrics()
    mock: Mock = Mock()
    log: Log = Log()
    file: str | None = None

    @property
    def address(self) -> str:
        """The IP address to bind."""
        return "127.0.0.1" if self.server.host == "localhost" else self.server.host

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def control_socket(self) -> str:
        """The Unix socket between the edge and the control process."""
        return f"{self.server.run_dir}/control.sock"

    @property
    def notice_seconds(self) -> float:
        """The time between `/ready` saying no and the port closing."""
        return 0.0 if self.loopback else min(self.server.notice_seconds, self.server.drain_seconds)

    @property
    def require_key(self) -> bool:
        """Whether a key is asked for even while none is configured."""
        asked = self.security.require_key
        return not self.loopback if asked is None else asked

    def engine_json(self, worker: int) -> bytes:
        """Say what the engine of one edge worker must know."""
        return msgspec.json.encode(
            {
                "control_socket": self.control_socket,
                "worker": worker,
                "request_timeout_ms": self.upstream.request_timeout_ms,
                "connect_timeout_ms": self.upstream.connect_timeout_ms,
                "max_body_bytes": self.limits.body_bytes,
                "trusted_custom_hosts": self.upstream.trusted_custom_hosts,
                "header_aliases": self.security.header_aliases,
                "require_key": self.require_key,
                "block_inline_config": self.security.block_inline_config,
                "records": self.records.enabled,
                "outbox_bytes": self.records.outbox_bytes,
                "sensitive_headers": self.records.sensitive_headers,
                "mock_host": self.mock.host or None,
                "tls_ca": self.upstream.tls_ca or None,
            }
        )


class Entry(msgspec.Struct, frozen=True):
    """One setting as the reader and the reference see it."""

    section: str
    key: str
    env: str
    type: Any
    default: object
    description: str

    @property
    def path(self) -> str:
        """The place in `penstock.toml`."""
        return f"{self.section}.{self.key}"


def entries() -> Iterator[Entry]:
    """List every setting there is."""
    for section in msgspec.structs.fields(Settings):
        if section.name == "file":
            continue
        for field in msgspec.structs.fields(section.type):
            meta: Meta = get_args(field.type)[1]
            env = (meta.extra or {}).get("env") or f"PENSTOCK_{section.name}_{field.name}".upper()
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            yield Entry(section.name, field.name, env, field.type, default, meta.description or "")


def find_file(asked: str | None, environ: Mapping[str, str]) -> str | None:
    """Choose the file: the one that was asked for, else the one in the working directory if it is there."""
    path = asked or environ.get("PENSTOCK_CONFIG") or (DEFAULT_FILE if os.path.exists(DEFAULT_FILE) else None)  # noqa: PTH110
    return os.path.abspath(path) if path else None  # noqa: PTH100


def read_file(path: str) -> dict[str, Any]:
    """Parse a `penstock.toml`."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return tomllib.load(file)
    except OSError as error:
        message = f"cannot read {path!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path!r} is not valid TOML: {error}"
        raise SettingsError(message) from None


def load(file: str | None, environ: Mapping[str, str], options: Mapping[str, object] | None = None) -> Settings:
    """Read the settings: an option wins over the environment, that over the file, that over the default."""
    document = read_file(file) if file else {}
    problems = [*_unknown_keys(document), *_unknown_names(environ)]
    values: dict[str, dict[str, object]] = {}
    for entry in entries():
        for where, given in _given(entry, document, environ, options or {}):
            try:
                values.setdefault(entry.section, {})[entry.key] = _convert(entry, given)
            except msgspec.ValidationError as error:
                problems.append(Problem(where, f"{given!r} is not allowed: {_lower(str(error))}"))
            break
    settings = Settings(file=file, **{name: _section(name)(**keys) for name, keys in values.items()})
    problems += _contradictions(settings)
    if problems:
        message = "the settings cannot be used:"
        raise SettingsError(message, problems)
    return settings


def refuse_open_host(settings: Settings, keys: int) -> None:
    """Refuse to be reachable from other machines with nothing that asks who is calling."""
    if settings.loopback or keys or settings.security.require_key is not None:
        return
    message = (
        f"no gateway key is configured, so anyone who reaches {settings.server.host!r} could spend your providers' money\n"
        "hint: add a key to penstock.toml ([[keys]] with name and key),\n"
        "hint: or listen on this machine only (--host 127.0.0.1),\n"
        "hint: or say that something in front of the gateway checks its callers (PENSTOCK_SECURITY_REQUIRE_KEY=false)"
    )
    raise SettingsError(message)


def markdown() -> str:
    """Render the reference of all settings."""
    rows = [
        "| key in `penstock.toml` | environment | type | default | what it does |",
        "|---|---|---|---|---|",
        *(
            f"| `{entry.path}` | `{entry.env}` | {_type_name(entry.type)} | {_default_name(entry)} | {entry.description} |"
            for entry in entries()
        ),
    ]
    return "\n".join(rows)


def _section(name: str) -> Any:  # noqa: ANN401
    return next(field.type for field in msgspec.structs.fields(Settings) if field.name == name)


def _sections() -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}
    for entry in entries():
        known.setdefault(entry.section, []).append(entry.key)
    return known


def _unknown_keys(document: dict[str, Any]) -> Iterator[Problem]:
    known = _sections()
    for table, content in document.items():
        if table in SNAPSHOT_TABLES:
            continue
        if table not in known:
            yield Problem(table, f"is not known; allowed: {', '.join([*known, *SNAPSHOT_TABLES])}")
        elif not isinstance(content, dict):
            yield Problem(table, f"must be a table: [{table}]")
        else:
            keys = cast("dict[str, object]", content)
            allowed = f"is not known; allowed: {', '.join(known[table])}"
            yield from (Problem(f"{table}.{key}", allowed) for key in keys if key not in known[table])


def _unknown_names(environ: Mapping[str, str]) -> Iterator[Problem]:
    # Only names that start like a section of ours: PENSTOCK_ANYTHING may be what somebody's ${...} refers to.
    prefixes = {f"PENSTOCK_{section}_".upper(): section for section in _sections()}
    known = {entry.env for entry in entries()}
    for name in environ:
        section = next((section for prefix, section in prefixes.items() if name.startswith(prefix)), None)
        if section and name not in known:
            allowed = ", ".join(entry.env for entry in entries() if entry.section == section)
            yield Problem(name, f"is not known; allowed: {allowed}")


def _given(
    entry: Entry, document: dict[str, Any], environ: Mapping[str, str], options: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    if options.get(entry.path) is not None:
        yield f"--{entry.key.replace('_', '-')}", options[entry.path]
    if entry.env in environ:
        yield entry.env, environ[entry.env]
    table = document.get(entry.section)
    if isinstance(table, dict) and entry.key in table:
        yield entry.path, table[entry.key]


def _convert(entry: Entry, given: object) -> object:
    if not isinstance(given, str):
        return msgspec.convert(given, entry.type)
    plain: Any = get_args(entry.type)[0]
    if get_origin(plain) is tuple:
        return msgspec.convert([part.strip() for part in given.split(",") if part.strip()], entry.type)
    if plain in {bool, bool | None}:
        return msgspec.convert(WORDS.get(given.strip().lower(), given), entry.type)
    return msgspec.convert(given.strip(), entry.type, strict=False)


def _contradictions(settings: Settings) -> Iterator[Problem]:
    try:
        ipaddress.ip_address(settings.address)
    except ValueError:
        yield Problem("server.host", f"{settings.server.host!r} is not allowed: expected an IP address or `localhost`")
    if settings.mock.host and not settings.mock.host.startswith(("http://", "https://")):
        yield Problem("mock.host", f"{settings.mock.host!r} is not allowed: expected a URL with http:// or https://")
    if settings.upstream.tls_ca and not os.path.isfile(settings.upstream.tls_ca):  # noqa: PTH113
        yield Problem("upstream.tls_ca", f"there is no file {settings.upstream.tls_ca!r}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _type_name(annotated: Any) -> str:  # noqa: ANN401
    plain: Any = get_args(annotated)[0]
    if get_origin(plain) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(plain))
    names: dict[Any, str] = {bool: "yes or no", bool | None: "yes or no", int: "integer", float: "number", str: "text"}
    return names.get(plain, "list of texts")


def _default_name(entry: Entry) -> str:
    if entry.key == "workers" or entry.default in (None, "", ()):
        return "none" if entry.default == () else ""
    if isinstance(entry.default, bool):
        return "yes" if entry.default else "no"
    default: Any = entry.default
    return (
        f"`{default}`"
        if not isinstance(default, tuple)
        else ", ".join(f"`{item}`" for item in cast("tuple[str, ...]", default))
    )
