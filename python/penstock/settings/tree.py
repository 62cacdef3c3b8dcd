"""The complete settings tree, and the paths that follow from it."""

from __future__ import annotations

import ipaddress
import os

import msgspec

from penstock.settings import jwt
from penstock.settings.batches import Batches, Files
from penstock.settings.guardrail_models import Guardrails
from penstock.settings.guardrail_plugins import GuardrailPlugins
from penstock.settings.identity import Identity
from penstock.settings.jwt import Issuer, Jwt
from penstock.settings.log_store import LogStore
from penstock.settings.monitoring import Log, Metrics
from penstock.settings.otel import Otel
from penstock.settings.records import DEFAULT_RECORDS_PATH, Records
from penstock.settings.redis import Redis
from penstock.settings.request_limits import Limits
from penstock.settings.routing import Routing
from penstock.settings.secret import Secret
from penstock.settings.secret_managers import Secrets
from penstock.settings.server import Security, Server
from penstock.settings.store import Store
from penstock.settings.upstream import Mock, Upstream

STORE_FILE, MASTER_KEY_FILE, FILES_FOLDER = "penstock.db", "penstock.key", "files"
# Default folder for everything that the gateway stores, if there is no settings file.
DEFAULT_DATA_DIR = "penstock-data"


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
    guardrails: Guardrails = Guardrails()
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
