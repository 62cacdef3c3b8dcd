"""Checks of an installation: everything that a gateway needs. Each failure has a hint that describes what to do.

Nothing is created or changed, except for the probe that a bucket needs to show that it can be written.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import stat
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from sqlalchemy import select, text

from penstock import engine, listen
from penstock.blobs.store import open_blob_store, open_body_bucket
from penstock.errors import PenstockError, UnavailableError
from penstock.fetch import Fetcher, FetchRequest, fetch_errors
from penstock.jobs.prepare import describe_cause, open_database
from penstock.logs.engines.clickhouse_client import ClickHouseClient, parse_url
from penstock.logs.engines.protocol import LogEngineError
from penstock.secrets.references import resolve_master_key
from penstock.secrets.vault import MissingMasterKeyError, Vault, has_data_keys, load_master_keys
from penstock.settings import MASTER_KEY_FILE, read_toml_file
from penstock.snapshot.build import build_valid_snapshot, find_missing_providers
from penstock.store.migrate import newest_revision
from penstock.store.revision import current_revision
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from penstock.settings import Settings
    from penstock.store.database import Database

MEBIBYTE = 1024 * 1024
FEW_BYTES, TOO_FEW_BYTES = 2048 * MEBIBYTE, 100 * MEBIBYTE
# `CHECK_SECONDS` limits each check that contacts another machine. `MAX_HOSTS` is the maximum number of provider hosts
# to contact.
CHECK_SECONDS, MAX_HOSTS = 5.0, 20
# Maximum difference between clocks. With a larger one, tokens and request signatures of cloud providers become invalid.
MAX_CLOCK_SECONDS = 5.0
# Less than this before its end, a certificate should have been renewed: Let's Encrypt renews after 60 of 90 days.
FEW_CERTIFICATE_SECONDS = 14 * 24 * 3600
# Minimum for the limit of open files. Each client may also need a connection to a provider; the rest is for files and
# workers.
MIN_OPEN_FILES = 4096

Status = Literal["ok", "warning", "failed", "skipped"]


class Finding(msgspec.Struct, frozen=True):
    """Result of one check. `hint` describes what to do about a warning or a failure."""

    name: str
    status: Status
    message: str
    hint: str = ""


Findings = list[Finding]


async def examine(settings: Settings, *, offline: bool = False) -> Findings:
    """Runs all checks. With `offline`, no other machine is contacted except the store, Redis and the log store."""
    findings = [
        *_run_check("configuration", lambda: _check_configuration(settings)),
        *_run_check("open files", lambda: _check_open_files(settings)),
        *_run_check("folders", lambda: _check_folders(settings)),
        *_run_check("port", lambda: _check_port(settings)),
        *_run_check("certificate", lambda: _check_certificate(settings)),
    ]
    hosts = _hosts_of_file(settings)
    database = open_database(settings) if settings.store_url else None
    try:
        if database:
            findings += await _await_check("store", lambda: _check_store(settings, database))
            hosts |= await _hosts_of_store(database)
        else:
            findings += _run_check("master key", lambda: _check_new_store(settings))
    finally:
        if database:
            await database.close()
    findings += await _await_check("redis", lambda: _check_redis(settings))
    findings += await _await_check("log store", lambda: _check_log_store(settings))
    findings += await _await_check("buckets", lambda: _check_buckets(settings))
    if offline:
        findings.append(Finding("providers", "skipped", "--offline: no provider was contacted"))
    else:
        findings += await _check_providers(settings, hosts)
    if not any(finding.name == "clock" for finding in findings):
        findings.append(Finding("clock", "skipped", "no other machine sent its time"))
    return findings


def _run_check(name: str, check: Callable[[], Iterable[Finding]]) -> Findings:
    try:
        return list(check())
    except (PenstockError, OSError) as error:
        return [_failure(name, error)]


async def _await_check(name: str, check: Callable[[], Awaitable[Findings]]) -> Findings:
    try:
        async with asyncio.timeout(CHECK_SECONDS * 2):
            return await check()
    except TimeoutError:
        return [Finding(name, "failed", f"no answer within {CHECK_SECONDS * 2:.0f} s")]
    except (PenstockError, OSError) as error:
        return [_failure(name, error)]


def _failure(name: str, error: Exception) -> Finding:
    message, _, hint = str(error).replace("\n", " ").partition("; hint: ")
    return Finding(name, "failed", message, hint)


def _check_configuration(settings: Settings) -> Iterable[Finding]:
    snapshot = build_valid_snapshot(settings)
    source = "no settings file: defaults and environment variables"
    message = f"{settings.file}: {snapshot.keys} keys are in it" if settings.file else source
    yield Finding("settings", "ok", message)
    listen.check_open_host(settings, snapshot.keys)
    for problem in find_missing_providers(settings) if settings.store_url is None else ():
        yield Finding("settings", "warning", str(problem), "add the provider to the settings file")


def _check_open_files(settings: Settings) -> Iterable[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= 2 * settings.server.connections:
        yield Finding("open files", "ok", f"the limit allows {settings.server.connections:,} connections per worker")
        return
    status: Status = "warning" if hard >= MIN_OPEN_FILES else "failed"
    message = f"the limit of {hard:,} open files allows about {hard // 2:,} connections per worker"
    yield Finding("open files", status, message, "raise it: `ulimit -Hn 1048576`, or LimitNOFILE= in a systemd unit")


def _check_folders(settings: Settings) -> Iterable[Finding]:
    folders = {
        os.path.dirname(os.path.abspath(settings.records.path)): "records",
        settings.log_store_folder: "log store",
    }
    if settings.store.data_dir:
        folders[settings.store.data_dir] = "data"
    if settings.files.folder:
        folders[settings.files.folder] = "files"
    for folder, purpose in folders.items():
        yield _check_folder(folder, purpose)
    key_file = Path(settings.store.master_key_file or settings.sibling_path(MASTER_KEY_FILE))
    if not settings.store.master_key and key_file.exists() and stat.S_IMODE(key_file.stat().st_mode) & 0o077:
        yield Finding(
            "master key", "failed", f"other users of this machine can read {key_file}", f"chmod 600 {key_file}"
        )


def _check_folder(folder: str, purpose: str) -> Finding:
    existing = Path(folder)
    while not existing.exists():
        existing = existing.parent
    name = f"folder of {purpose}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, "failed", f"{existing} cannot be written", "change its owner, or choose another folder")
    free = shutil.disk_usage(existing).free
    message = f"{folder}: {free // MEBIBYTE:,} MiB are free"
    if free < FEW_BYTES:
        hint = "free disk space; when the disk is full, records wait in memory and then get lost"
        return Finding(name, "failed" if free < TOO_FEW_BYTES else "warning", message, hint)
    return Finding(name, "ok", message)


def _check_new_store(settings: Settings) -> Iterable[Finding]:
    if not settings.creates_store:
        reason = "there is no store; keys, providers and configs come from the settings file"
        yield Finding("store", "skipped", reason)
        return
    yield Finding("store", "ok", f"there is none yet; penstock serve creates it in {settings.store.data_dir}")
    with suppress(MissingMasterKeyError):
        load_master_keys(settings)


def _check_port(settings: Settings) -> Iterable[Finding]:
    address = f"{settings.server.host} port {settings.server.port}"
    probe = listen.request_ready(settings)
    if probe is None:
        yield Finding("port", "ok", f"nothing listens on {address} yet")
        return
    with probe:
        probe.settimeout(CHECK_SECONDS)
        try:
            response = probe.recv(64)
        except TimeoutError:
            response = b""
    if response.startswith(b"HTTP/1.1 200"):
        yield Finding("port", "ok", f"a gateway is ready on {address}")
    elif response.startswith(b"HTTP/1.1 503"):
        yield Finding("port", "warning", f"a gateway on {address} is not ready", "see its log, and GET /v1/health")
    else:
        hint = "stop it, or choose another port: server.port"
        yield Finding("port", "failed", f"another program listens on {address}", hint)


def _check_certificate(settings: Settings) -> Iterable[Finding]:
    if not settings.server.has_tls:
        return
    certificate = x509.load_pem_x509_certificate(Path(settings.server.tls_certificate_file).read_bytes())
    expires = certificate.not_valid_after_utc
    seconds = expires.timestamp() - time.time()
    message = f"the certificate {'expired' if seconds < 0 else 'is valid until'} {expires:%Y-%m-%d %H:%M} UTC"
    if seconds >= FEW_CERTIFICATE_SECONDS:
        yield Finding("certificate", "ok", message)
        return
    hint = "renew it and replace both files; the gateway loads them by itself"
    yield Finding("certificate", "failed" if seconds < 0 else "warning", message, hint)


async def _check_store(settings: Settings, database: Database) -> Findings:
    kind = "SQLite" if database.embedded else "PostgreSQL"
    try:
        revision, newest = await current_revision(database), newest_revision()
    except UnavailableError as error:
        hint = "check store.url, the server and its log" if not database.embedded else f"restore {database.file}"
        return [Finding("store", "failed", f"{kind} cannot be used: {describe_cause(error)}", hint)]
    findings = [Finding("store", "ok", f"{kind}; its tables are at revision {revision}")]
    if revision is None:
        return [Finding("store", "failed", f"{kind}; it has no tables", "penstock init")]
    if revision != newest:
        hint = "penstock migrate; if a newer release made these tables, install that release"
        findings = [
            Finding("store", "failed", f"{kind}; revision {revision} is not {newest}, which this release needs", hint)
        ]
    elif await has_data_keys(database):
        key = load_master_keys(await resolve_master_key(settings))
        async with database.read_connection() as connection:
            await Vault(key).load(connection)
        findings.append(Finding("master key", "ok", "it decrypts the stored credentials"))
    if not database.embedded:
        async with database.read_connection() as connection:
            query = text("SELECT extract(epoch FROM clock_timestamp())")
            findings.append(_compare_clock("PostgreSQL", float(await connection.scalar(query) or 0)))
    return findings


async def _check_redis(settings: Settings) -> Findings:
    if settings.redis.url is None:
        return [Finding("redis", "skipped", "redis.url is not set; nothing is shared between nodes")]
    # The import cannot fail: settings with `redis.url` are only valid if the Redis client is installed.
    from penstock.snapshot.redis_notifier import fetch_redis_time  # noqa: PLC0415 - see the comment above

    try:
        clock = await fetch_redis_time(settings.redis.url.reveal(), settings.upstream.tls_ca)
    except UnavailableError as error:
        hint = "check redis.url; requests go on without Redis meanwhile"
        return [Finding("redis", "failed", error.message, hint)]
    return [Finding("redis", "ok", "it answers"), _compare_clock("Redis", clock)]


async def _check_log_store(settings: Settings) -> Findings:
    if not settings.records.enabled or not settings.log_store.enabled:
        return [Finding("log store", "skipped", "records.enabled or log_store.enabled is false; no logs are stored")]
    url = settings.log_store.clickhouse_url
    if url is None:
        return [Finding("log store", "ok", f"embedded, in {settings.log_store_folder}")]

    def fetch_server_time() -> float:
        client = ClickHouseClient(parse_url(url.reveal()))
        try:
            (row,) = client.query("SELECT toUnixTimestamp(now())", {}, CHECK_SECONDS, memory_bytes=64 * MEBIBYTE)
            return float(row[0])
        finally:
            client.close()

    try:
        clock = await asyncio.to_thread(fetch_server_time)
    except (LogEngineError, OSError, ValueError) as error:
        hint = "check log_store.url; records wait in the spool meanwhile"
        return [Finding("log store", "failed", f"ClickHouse does not answer ({type(error).__name__})", hint)]
    return [Finding("log store", "ok", "ClickHouse answers"), _compare_clock("ClickHouse", clock)]


async def _check_buckets(settings: Settings) -> Findings:
    stores = {"files.store": open_blob_store(settings), "log_store.bodies": open_body_bucket(settings)}
    findings: Findings = []
    for setting, store in stores.items():
        probe = getattr(store, "probe", None)
        if store is None or probe is None:
            continue
        try:
            await probe()
            findings.append(Finding(setting, "ok", "the bucket can be written"))
        except PenstockError as error:
            findings.append(_failure(setting, error))
        finally:
            await store.close()
    return findings


def _hosts_of_file(settings: Settings) -> set[str]:
    """Returns the base URLs of the providers in the settings file."""
    document = read_toml_file(settings.file) if settings.file else {}
    rows: list[dict[str, Any]] = document.get("providers", [])
    return {url for row in rows if (url := base_url(row.get("provider"), row.get("custom_host")))}


async def _hosts_of_store(database: Database) -> set[str]:
    """Returns the base URLs of the integrations. Returns none if the store fails, because the check of the store
    reports that.
    """
    query = select(integrations.c.ai_provider_id, integrations.c.configurations).where(
        integrations.c.status == "active"
    )
    try:
        async with database.read_connection() as connection:
            rows = (await connection.execute(query)).all()
    except PenstockError:
        return set()
    return {url for row in rows if (url := base_url(row.ai_provider_id, row.configurations.get("custom_host")))}


def base_url(provider: object, custom_host: object) -> str | None:
    """Returns the base URL of a saved provider; `None` if it depends on a region or an account."""
    if custom_host:
        return str(custom_host)
    urls = {row["slug"]: row["base_url"] for row in engine.catalogue()}
    url = str(urls.get(str(provider), ""))
    return url if url.startswith("http") and "{" not in url else None


async def _check_providers(settings: Settings, urls: set[str]) -> Findings:
    origins = sorted({f"{parts.scheme}://{parts.netloc}" for url in urls if (parts := urlsplit(url)).hostname})
    if not origins:
        return [Finding("providers", "skipped", "no saved provider has a fixed host")]
    results = await asyncio.gather(*(_check_provider(settings, origin) for origin in origins[:MAX_HOSTS]))
    findings = [finding for finding, _ in results]
    if (skipped := len(origins) - MAX_HOSTS) > 0:
        findings.append(Finding("providers", "skipped", f"{skipped} more hosts were not contacted"))
    # The clock of one provider may be wrong. If that of this machine is wrong, it differs from all of them.
    if clocks := [clock for _, clock in results if clock]:
        server, difference = min(clocks, key=lambda clock: abs(clock[1]))
        findings.append(_describe_clock(server, difference))
    return findings


async def _check_provider(settings: Settings, origin: str) -> tuple[Finding, tuple[str, float] | None]:
    """Returns if a provider can be reached, and by how many seconds the clock of this machine differs from its `Date`."""
    name = f"provider {urlsplit(origin).netloc}"
    fetcher = Fetcher(settings)
    try:
        # Every status counts as success: it shows that the name resolves, that the port is open, and that TLS works.
        response = await fetcher.send(FetchRequest(url=f"{origin}/", method="HEAD", seconds=CHECK_SECONDS))
    except fetch_errors() as error:
        reason = str(error) or type(error).__name__
        hint = "check the network, the proxy (HTTPS_PROXY), the certificates (upstream.tls_ca) and TRUSTED_CUSTOM_HOSTS"
        return Finding(name, "failed", f"it cannot be reached: {reason}", hint), None
    difference = None
    with suppress(TypeError, ValueError):
        difference = time.time() - parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    finding = Finding(name, "ok", f"it answers with status {response.status}")
    return finding, None if difference is None else (name, difference)


def _compare_clock(server: str, seconds: float) -> Finding:
    return _describe_clock(server, time.time() - seconds)


def _describe_clock(server: str, difference: float) -> Finding:
    message = f"this machine and {server} differ by {abs(difference):.1f} s"
    if abs(difference) > MAX_CLOCK_SECONDS:
        hint = "synchronise the clocks, for example with chrony; tokens and signatures become invalid"
        return Finding("clock", "failed", message, hint)
    return Finding("clock", "ok", message)
