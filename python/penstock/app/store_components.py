"""Components of the control process that need the store: authentication, tenant sessions, and background jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.snapshot.build import EMPTY_STORE_DATA

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from litestar.types import Message, Scope

    from penstock import authorization
    from penstock.blobs.store import BlobStore
    from penstock.kit.refusals import RefusalLog
    from penstock.kit.tenant_session import Services
    from penstock.log_api.service import LogService
    from penstock.logs.spooled_records import SpooledRecords
    from penstock.metrics import BatchMetrics, JobMetrics, MetricsStore, RefusalCounter
    from penstock.settings import Settings
    from penstock.settings.secret import Secret
    from penstock.snapshot.build import SnapshotChannel
    from penstock.snapshot.publisher import SnapshotPublisher
    from penstock.snapshot.redis_notifier import RedisNotifier
    from penstock.store.database import Database


class StoreComponents(NamedTuple):
    """Components that need the store: authentication, tenant sessions, and background jobs."""

    database: Database
    blobs: BlobStore
    services: Services
    refusals: RefusalLog
    authenticate: Callable[[authorization.PresentedCredential], Awaitable[authorization.Caller]]
    dependencies: dict[str, object]
    job_loops: list[Callable[[], Coroutine[Any, Any, None]]]
    before_send: Callable[[Message, Scope], Awaitable[None]]


class ChangeNotifier(NamedTuple):
    """Notifies this node's publisher and the other nodes of store changes."""

    publisher: SnapshotPublisher
    redis_notifier: RedisNotifier | None

    def notify(self) -> None:
        """Notifies the publisher and the other nodes that the store changed."""
        self.publisher.notify()
        if self.redis_notifier:
            self.redis_notifier.notify()

    async def wait_until_applied(self, number: int) -> None:
        """Waits, for a bounded time, until each worker of this node applies the change with this number."""
        await self.publisher.wait_until_applied(number)


def open_store(  # noqa: PLR0913, PLR0917 - one parameter for each part that it connects
    settings: Settings,
    published: SnapshotChannel,
    url: Secret,
    figures: tuple[BatchMetrics, JobMetrics, MetricsStore],
    records: SpooledRecords,
    refused: RefusalCounter,
    log_service: LogService,
) -> StoreComponents:
    """Builds the components that need the store. Their modules are imported only here, so a gateway without a store
    never loads them.
    """
    from penstock.access.authentication import CallerAuthenticator
    from penstock.access.passwords import PasswordService
    from penstock.batches.runner import BatchRunner
    from penstock.blobs.store import open_blob_store
    from penstock.jobs.prepare import load_token_verifier
    from penstock.jobs.rotate import KeyRotator
    from penstock.kit.preconditions import before_send
    from penstock.kit.refusals import RefusalLog
    from penstock.kit.tenant_session import Services
    from penstock.resources._last_known import find_caller
    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import Vault, load_master_keys
    from penstock.snapshot.publisher import SavedSnapshot, SnapshotPublisher
    from penstock.store.database import Database

    database = Database(settings.store, url)
    key = load_master_keys(settings)
    vault, saved_snapshot = Vault(key), SavedSnapshot(settings, key)
    # The saved rows are used until the store is read for the first time. A snapshot without them would reject every
    # stored key.
    published.stored = saved_snapshot.load() or EMPTY_STORE_DATA
    tokens = load_token_verifier(settings, saved_snapshot)
    identities = CallerAuthenticator(database, tokens, lambda digest: find_caller(published.stored, digest))
    secrets = SecretCache(settings)
    publisher = SnapshotPublisher(settings, published, database, vault, secrets, saved_snapshot, tokens)
    announcer = _create_redis_notifier(settings, publisher.notify)
    notifier = ChangeNotifier(publisher, announcer)
    services = Services(settings, database, vault, identities, notifier)
    blobs = open_blob_store(settings)
    runner = BatchRunner(settings, services, secrets, blobs, figures[0], records)
    log_parts = _create_log_parts(settings, database, blobs, log_service)
    dependencies: dict[str, object] = {
        "services": services,
        "identities": identities,
        "passwords": PasswordService(),
        "blobs": blobs,
        "runner": runner,
        **log_parts,
    }
    refusals = RefusalLog(database, refused)
    loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
        publisher.run,
        KeyRotator(services).run,
        runner.run,
        log_parts["log_exporter"].run,
        refusals.run,
        *_ledger_jobs(settings, services, figures[1], figures[2]),
    ]
    if announcer:
        loops.append(announcer.run)
    if tokens:
        from penstock.jobs.jwks import JwksRefresher

        loops.append(JwksRefresher(tokens, settings.jwt.refresh_seconds, publisher.notify).run)
    return StoreComponents(
        database,
        blobs,
        services,
        refusals,
        identities.authenticate,
        dependencies,
        loops,
        partial(before_send, services),
    )


def _create_log_parts(
    settings: Settings, database: Database, blobs: BlobStore, log_service: LogService
) -> dict[str, Any]:
    """Returns the services of the log routes that also need the store."""
    from penstock.jobs.log_exports import LogExporter
    from penstock.log_api.custom_logs import CustomLogWriter
    from penstock.pricing.cost_calculator import CostCalculator

    calculator = CostCalculator(settings)
    return {
        "log_service": log_service,
        "log_exporter": LogExporter(settings, database, blobs, log_service),
        "custom_logs": CustomLogWriter(settings, calculator),
        "cost_calculator": calculator,
    }


def _ledger_jobs(
    settings: Settings, services: Services, figures: JobMetrics, workers: MetricsStore
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Returns the job that sums the usage of budgets from records; none if records are disabled."""
    if not settings.records.enabled:
        return []
    from penstock.jobs.usage_ledger import UsageLedger

    return [UsageLedger(settings, services, figures, workers).run]


def _create_redis_notifier(settings: Settings, on_change: Callable[[], None]) -> RedisNotifier | None:
    if not settings.redis.url:
        return None
    from penstock.snapshot.redis_notifier import RedisNotifier

    return RedisNotifier(settings.redis, settings.redis.url.reveal(), on_change, settings.upstream.tls_ca)
