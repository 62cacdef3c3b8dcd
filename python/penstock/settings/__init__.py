"""All settings of an operator: one immutable tree, read once from `penstock.toml`, the environment and command options."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from penstock.errors import Problem, SettingsError
from penstock.settings import jwt
from penstock.settings.batches import Batches, Files
from penstock.settings.guardrail_plugins import GuardrailPlugins
from penstock.settings.identity import Identity
from penstock.settings.jwt import Issuer, Jwt
from penstock.settings.log_store import LogStore
from penstock.settings.monitoring import Log, Metrics
from penstock.settings.otel import Otel
from penstock.settings.redis import Redis
from penstock.settings.routing import Routing
from penstock.settings.secret import Secret
from penstock.settings.store import Store
from penstock.settings.upstream import Mock, Upstream
from penstock.settings.validation import validate_settings
from penstock.similar_names import describe_unknown, find_misspelt
from penstock.type_validation import describe_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Tables of the same file that are not settings. They belong to the snapshot and may change while the gateway runs.
SNAPSHOT_TABLES = ("keys", "providers", "configs")
# Table with the prices of models, which also belongs to the snapshot.
PRICES_TABLE = "prices"
ISSUERS_TABLE = "issuers"
DEFAULT_SETTINGS_FILE = "penstock.toml"
STORE_FILE, MASTER_KEY_FILE, FILES_FOLDER = "penstock.db", "penstock.key", "files"
# Default folder for everything that the gateway stores, if there is no settings file.
DEFAULT_DATA_DIR = "penstock-data"
DEFAULT_RECORDS_PATH = "logs/records.jsonl"
MEBIBYTE = 1024 * 1024
BOOLEAN_WORDS = {
    "on": True,
    "yes": True,
    "true": True,
    "1": True,
    "off": False,
    "no": False,
    "false": False,
    "0": False,
}


def _default_worker_count() -> int:
    # The event loop of one worker is fast enough for the engine threads of about four cores.
    return max(1, (os.cpu_count() or 1) // 4)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Network address, connection limits and shutdown of the gateway."""

    host: Annotated[str, Meta(description="IP address to listen on, or `localhost`")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 takes any free one")] = 8787
    workers: Annotated[int, Meta(ge=1, le=256, description="edge processes; default: one per four cores")] = (
        msgspec.field(default_factory=_default_worker_count)
    )
    backlog: Annotated[int, Meta(ge=128, le=65535, description="connections waiting to be accepted, per worker")] = 2048
    connections: Annotated[int, Meta(ge=1, description="maximum open connections per worker, including idle ones")] = (
        65536
    )
    header_timeout_ms: Annotated[int, Meta(ge=100, description="time limit for the headers of a request to arrive")] = (
        10_000
    )
    keep_alive_ms: Annotated[
        int, Meta(ge=100, description="time after which an idle keep-alive connection is closed")
    ] = 75_000
    header_bytes: Annotated[
        int, Meta(ge=8192, description="maximum size of a request head: first line and headers")
    ] = 65536
    drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="time that open requests get to finish at shutdown")
    ] = 30.0
    write_stall_ms: Annotated[
        int, Meta(ge=100, description="time limit for a client that does not read its response")
    ] = 60_000
    heartbeat_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="silence in an event stream before a comment is sent as a heartbeat; 0: never"),
    ] = 15.0
    shutdown_delay_seconds: Annotated[
        float,
        Meta(ge=0, le=60, description="time between `/ready` failing and the port closing at shutdown; 0 on loopback"),
    ] = 1.0
    tls_certificate_file: Annotated[
        str,
        Meta(
            description="PEM file with the certificate of the gateway and its intermediate certificates; with "
            "`server.tls_key_file` the gateway accepts only TLS; reloaded when it changes"
        ),
    ] = ""
    tls_key_file: Annotated[str, Meta(description="PEM file with the key of the certificate, without a passphrase")] = (
        ""
    )
    tls_min_version: Annotated[
        Literal["1.2", "1.3"], Meta(description="oldest version of TLS that clients may use")
    ] = "1.2"
    public_url: Annotated[
        str,
        Meta(
            description="base URL at which people reach the gateway, such as `https://ai.example.com`; default: the URL of the request"
        ),
    ] = ""
    run_dir: Annotated[
        str,
        Meta(description="private folder for the sockets between the processes; default: a new one, removed at exit"),
    ] = ""

    @property
    def has_tls(self) -> bool:
        """True if clients connect over TLS."""
        return bool(self.tls_certificate_file and self.tls_key_file)


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication of clients, and what a request may choose inline."""

    require_key: Annotated[
        bool | None,
        Meta(
            description="require a gateway key even while none is configured; default: yes, but no on loopback without a store"
        ),
    ] = None
    block_inline_config: Annotated[
        bool,
        Meta(
            description="reject configs, providers and hosts that a request chooses inline",
            extra={"env": "BLOCK_INLINE_CONFIG"},
        ),
    ] = False
    header_aliases: Annotated[
        tuple[str, ...],
        Meta(
            description="other prefixes that are accepted and returned in place of `x-gateway-`, for clients made for other gateways",
            extra={"env": "GATEWAY_HEADER_ALIASES"},
        ),
    ] = ("x-portkey-",)
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="addresses and networks (`10.0.0.0/8`) of proxies in front of the gateway: "
            "their `x-forwarded-for` header is trusted"
        ),
    ] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, and of all concurrent requests of a worker."""

    body_bytes: Annotated[int, Meta(ge=1024, description="maximum size of a request body")] = 100 * MEBIBYTE
    alert_webhook: Annotated[
        Secret | None,
        Meta(
            description="URL that alerts of budgets are posted to as JSON, once in each period when a budget reaches its alert threshold or its limit"
        ),
    ] = None
    buffered_body_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory of each worker for buffered JSON bodies above 256 KiB; one such body is always allowed",
        ),
    ] = 512 * MEBIBYTE
    body_idle_ms: Annotated[int, Meta(ge=10, description="maximum wait for the next chunk of a request body")] = 10_000
    body_total_ms: Annotated[int, Meta(ge=10, description="maximum wait for the complete request body")] = 300_000
    body_rate: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000_000,
            description="minimum rate of a request body in bytes per second, after the first `body_grace_ms`",
        ),
    ] = 1024
    body_grace_ms: Annotated[int, Meta(ge=0, description="time before the minimum rate of a request body applies")] = (
        10_000
    )
    in_flight: Annotated[
        int, Meta(ge=1, description="maximum concurrent requests of each worker; further requests get status 503")
    ] = 20_000


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
    keep: Annotated[int, Meta(ge=0, le=10_000, description="rotated files that are kept")] = 5
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


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """External secret managers: AWS Secrets Manager, Azure Key Vault, HashiCorp Vault."""

    refresh_seconds: Annotated[int, Meta(ge=1, description="time after which a value is fetched again")] = 300
    fetch_ms: Annotated[int, Meta(ge=100, description="time limit for fetching one value")] = 10_000
    aws_endpoint_url: Annotated[str, Meta(description="endpoint URL of AWS; default: that of the region")] = ""
    azure_authority: Annotated[str, Meta(description="URL of Microsoft Entra; default: that of the public cloud")] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The complete settings tree. Each section is a table of `penstock.toml`."""

    server: Server = Server()
    security: Security = Security()
    upstream: Upstream = Upstream()
    limits: Limits = Limits()
    routing: Routing = Routing()
    redis: Redis = Redis()
    records: Records = Records()
    log_store: LogStore = LogStore()
    otel: Otel = Otel()
    store: Store = Store()
    jwt: Jwt = Jwt()
    secrets: Secrets = Secrets()
    identity: Identity = Identity()
    files: Files = Files()
    batches: Batches = Batches()
    guardrail_plugins: GuardrailPlugins = GuardrailPlugins()
    metrics: Metrics = Metrics()
    mock: Mock = Mock()
    log: Log = Log()
    file: str | None = None
    issuers: tuple[Issuer, ...] = ()

    def with_master_key(self, text: str) -> Settings:
        """Returns a copy with a master key that was fetched from a secret manager."""
        store = msgspec.structs.replace(self.store, master_key=Secret(text))
        return msgspec.structs.replace(self, store=store)

    @property
    def trusted_issuers(self) -> tuple[Issuer, ...]:
        """Issuers whose JWTs are accepted."""
        return jwt.trusted_issuers(self.jwt, self.issuers)

    @property
    def bind_address(self) -> str:
        """IP address to bind."""
        return "127.0.0.1" if self.server.host == "localhost" else self.server.host

    @property
    def is_loopback(self) -> bool:
        """True if only programs on this machine can reach the gateway."""
        return ipaddress.ip_address(self.bind_address).is_loopback

    @property
    def control_socket(self) -> str:
        """Path of the Unix socket between the edge workers and the control process."""
        return f"{self.server.run_dir}/control.sock"

    @property
    def log_socket(self) -> str:
        """Path of the Unix socket of the log worker."""
        return f"{self.server.run_dir}/logs.sock"

    @property
    def plugin_socket(self) -> str:
        """Path of the Unix socket of the process of plug-ins."""
        return f"{self.server.run_dir}/plugins.sock"

    @property
    def has_record_file(self) -> bool:
        """True if the records of all requests are written to a file."""
        return self.records.file or not self.log_store.enabled

    @property
    def log_store_folder(self) -> str:
        """Folder of the spool, the embedded log store and bodies."""
        folder = os.path.dirname(os.path.abspath(self.records.path))
        return os.path.abspath(self.log_store.path or os.path.join(folder, "store"))

    @property
    def spool_folder(self) -> str:
        """Folder with the spool of each process that writes records."""
        return os.path.join(self.log_store_folder, "spool")

    @property
    def limits_folder(self) -> str:
        """Folder with the counters of limits, which all workers of the node share."""
        return os.path.join(self.log_store_folder, "limits")

    @property
    def store_url(self) -> Secret | None:
        """Database URL, or `None` if no store is configured and the default SQLite file does not exist."""
        if not self.store.enabled:
            return None
        if self.store.url:
            return self.store.url
        store_path = self.sibling_path(STORE_FILE)
        return Secret(f"sqlite:///{store_path}") if os.path.exists(store_path) else None

    @property
    def files_folder(self) -> str:
        """Folder of files that are uploaded to the gateway itself."""
        return self.files.folder or self.sibling_path(FILES_FOLDER)

    @property
    def creates_store(self) -> bool:
        """True if `penstock serve` creates the embedded store if it does not exist."""
        return self.store.enabled and self.store.url is None and bool(self.store.data_dir)

    def sibling_path(self, name: str) -> str:
        """Returns the path of a file in `store.data_dir`; without one next to the settings file, or in the working
        directory if there is no settings file.
        """
        folder = self.store.data_dir or (os.path.dirname(self.file) if self.file else os.getcwd())
        return os.path.join(os.path.abspath(folder), name)

    def with_data_dir(self) -> Settings:
        """Returns a copy with its data and records in `store.data_dir`. The default is `penstock-data`, unless
        `penstock.db` is next to it. With a settings file, it must already contain the store. With `store.url`, it must
        contain the only master key. Otherwise returns `self`.
        """
        configured, default_parent = self.store.data_dir, os.path.dirname(self.file) if self.file else os.getcwd()
        default = os.path.join(default_parent, DEFAULT_DATA_DIR)
        if not configured:
            if not self.store.enabled or os.path.exists(os.path.join(default_parent, STORE_FILE)):
                return self
            needed = MASTER_KEY_FILE if self.store.url else STORE_FILE if self.file else ""
            has_other_key = self.store.url and os.path.exists(os.path.join(default_parent, MASTER_KEY_FILE))
            if has_other_key or not os.path.exists(os.path.join(default, needed) if needed else default_parent):
                return self
        folder = os.path.abspath(configured or default)
        records = self.records
        if records.path == DEFAULT_RECORDS_PATH:
            records = msgspec.structs.replace(records, path=os.path.join(folder, DEFAULT_RECORDS_PATH))
        return msgspec.structs.replace(
            self, store=msgspec.structs.replace(self.store, data_dir=folder), records=records
        )

    @property
    def shutdown_delay_seconds(self) -> float:
        """Seconds between `/ready` failing and the port closing. At most the drain time; 0 on loopback."""
        return 0.0 if self.is_loopback else min(self.server.shutdown_delay_seconds, self.server.drain_seconds)

    @property
    def require_key(self) -> bool:
        """True if a gateway key is required even while none is configured."""
        configured = self.security.require_key
        # With a store, keys are added and deleted at run time. Deleting the last one must not open the gateway to
        # everyone.
        return not self.is_loopback or self.store_url is not None if configured is None else configured

    @property
    def container_credentials_url(self) -> str | None:
        """URL where a container fetches AWS credentials. On ECS only a path is configured."""
        path = self.identity.aws_container_path
        return f"http://169.254.170.2{path}" if path else self.identity.aws_container_url or None


class SettingSpec(msgspec.Struct, frozen=True):
    """Description of one setting. The loader and the reference page use it."""

    section: str
    key: str
    env: str
    type: Any
    default: object
    description: str
    # Further environment variables for the setting. They precede `env`, because they are more specific.
    other_envs: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Path of the setting in `penstock.toml`."""
        return f"{self.section}.{self.key}"


def iter_setting_specs() -> Iterator[SettingSpec]:
    """Yields every setting."""
    for section in msgspec.structs.fields(Settings):
        if section.name in {"file", ISSUERS_TABLE}:
            continue
        for field in msgspec.structs.fields(section.type):
            meta: Meta = get_args(field.type)[1]
            extra = meta.extra or {}
            env = extra.get("env") or f"PENSTOCK_{section.name}_{field.name}".upper()
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            words, others = meta.description or "", extra.get("other_envs", ())
            yield SettingSpec(section.name, field.name, env, field.type, default, words, others)


def find_settings_file(given_path: str | None, environ: Mapping[str, str]) -> str | None:
    """Returns the absolute path of the settings file: the given path, else `PENSTOCK_CONFIG`, else the default file if
    it exists.
    """
    path = (
        given_path
        or environ.get("PENSTOCK_CONFIG")
        or (DEFAULT_SETTINGS_FILE if os.path.exists(DEFAULT_SETTINGS_FILE) else None)
    )
    return os.path.abspath(path) if path else None


def read_toml_file(path: str) -> dict[str, Any]:
    """Parses a `penstock.toml`. Raises `SettingsError` if it cannot be read or is not valid TOML."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        message = f"cannot read {path!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path!r} is not valid TOML: {error}"
        raise SettingsError(message) from None


def load_settings(
    file: str | None, environ: Mapping[str, str], options: Mapping[str, object] | None = None
) -> Settings:
    """Reads the settings. Command options override the environment, which overrides the file, which overrides the
    defaults.

    Raises `SettingsError` with all problems found.
    """
    document = read_toml_file(file) if file else {}
    problems = [*_find_unknown_keys(document), *_find_unknown_variables(environ, document)]
    values: dict[str, dict[str, object]] = {}
    for entry in iter_setting_specs():
        for source, value in _candidate_values(entry, document, environ, options or {}):
            try:
                values.setdefault(entry.section, {})[entry.key] = _convert_value(entry, value)
            except msgspec.ValidationError:
                is_secret = is_secret_type(entry.type)
                expected = "a string" if is_secret else describe_type(entry.type).removesuffix(" or null")
                problems.append(
                    Problem(source, f"{'the value' if is_secret else repr(value)} is not allowed: expected {expected}")
                )
            break
    sections = {name: _section_type(name)(**keys) for name, keys in values.items()}
    settings = Settings(file=file, issuers=jwt.parse_issuers(document.get(ISSUERS_TABLE, []), problems), **sections)
    problems += validate_settings(settings)
    if problems:
        message = "the settings cannot be used:"
        raise SettingsError(message, problems)
    return settings.with_data_dir()


def _section_type(name: str) -> Any:  # noqa: ANN401 - a struct that msgspec makes
    return next(field.type for field in msgspec.structs.fields(Settings) if field.name == name)


def _keys_by_section() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for entry in iter_setting_specs():
        sections.setdefault(entry.section, []).append(entry.key)
    return sections


def _find_unknown_keys(document: dict[str, Any]) -> Iterator[Problem]:
    sections = _keys_by_section()
    for table, content in document.items():
        if table in {*SNAPSHOT_TABLES, PRICES_TABLE, ISSUERS_TABLE}:
            continue
        if table not in sections:
            known_tables = [*sections, *SNAPSHOT_TABLES, PRICES_TABLE, ISSUERS_TABLE]
            yield Problem(table, describe_unknown(table, known_tables))
        elif not isinstance(content, dict):
            yield Problem(table, f"must be a table: [{table}]")
        else:
            keys = cast("dict[str, object]", content)
            known_keys = sections[table]
            yield from (
                Problem(f"{table}.{key}", describe_unknown(key, known_keys)) for key in keys if key not in known_keys
            )


def _find_unknown_variables(environ: Mapping[str, str], document: dict[str, Any]) -> Iterator[Problem]:
    # A variable that the settings file names is not unknown: a `${…}` reference may use it.
    text = str(document)
    prefixes = {f"PENSTOCK_{section}_".upper(): section for section in _keys_by_section()}
    known_names = {entry.env for entry in iter_setting_specs()}
    for name in environ:
        section = next((section for prefix, section in prefixes.items() if name.startswith(prefix)), None)
        if name in known_names:
            continue
        if section:
            yield Problem(
                name, describe_unknown(name, [entry.env for entry in iter_setting_specs() if entry.section == section])
            )
        elif (
            name.startswith("PENSTOCK_") and f"${{{name}" not in text and (similar := find_misspelt(name, known_names))
        ):
            yield Problem(name, f"is not known; did you mean {similar}?")


def _candidate_values(
    entry: SettingSpec, document: dict[str, Any], environ: Mapping[str, str], options: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    if options.get(entry.path) is not None:
        yield f"--{entry.key.replace('_', '-')}", options[entry.path]
    # Proxy variables are also read in lower case, because other programs use these names.
    lower = (entry.env.lower(),) if entry.env.endswith("_PROXY") else ()
    for name in (*entry.other_envs, entry.env, *lower):
        if name in environ:
            yield name, environ[name]
    table = document.get(entry.section)
    if isinstance(table, dict) and entry.key in table:
        yield entry.path, table[entry.key]


def decode_secret(_secret: type, value: object) -> Secret:
    """Msgspec decoding hook that wraps a string in a `Secret`."""
    if not isinstance(value, str):
        message = f"expected `str`, got `{type(value).__name__}`"
        raise TypeError(message)
    return Secret(value)


def is_secret_type(annotated: Any) -> bool:  # noqa: ANN401 - a type
    return Secret in get_args(get_args(annotated)[0])


def _convert_value(entry: SettingSpec, settings: object) -> object:
    if is_secret_type(entry.type):
        text = settings.strip() if isinstance(settings, str) else settings
        return msgspec.convert(text or None, entry.type, dec_hook=decode_secret)
    if not isinstance(settings, str):
        return msgspec.convert(settings, entry.type)
    plain: Any = get_args(entry.type)[0]
    if get_origin(plain) is tuple:
        return msgspec.convert([part.strip() for part in settings.split(",") if part.strip()], entry.type)
    if plain in {bool, bool | None}:
        return msgspec.convert(BOOLEAN_WORDS.get(settings.strip().lower(), settings), entry.type)
    return msgspec.convert(settings.strip(), entry.type, strict=False)
