"""Runner of the gateway's batches. Claims batches that no node runs, runs them to the end, and deletes expired files
and old batches.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import delete, insert, or_, select, update

from penstock.batches.batch_object import (
    ACTIVE_STATUSES,
    CANCELLED,
    CANCELLING,
    CHECKING_RESPONSES,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    FINISHED_STATUSES,
    HEADER_PREFIX,
    IN_PROGRESS,
    VALIDATING,
    BatchClaimLostError,
    load_allowed_models,
    status_change,
)
from penstock.batches.batch_passes import PASS_HEADER, issue_pass, revoke_pass
from penstock.batches.files import MS_PER_SECOND, new_file_row
from penstock.batches.gateway_batch import BatchDependencies, GatewayBatch, format_output_line
from penstock.batches.input import BatchInput, InputError
from penstock.batches.provider_batch import ProviderBatch
from penstock.batches.provider_batch_guardrails import GuardrailDeniedError
from penstock.batches.providers import batch_provider_for
from penstock.batches.providers.client import BatchClient
from penstock.batches.redaction import SecretRedactor, secrets_in_headers, secrets_of_integration
from penstock.errors import IncompleteResponseError, NotFoundError, PenstockError, UnavailableError
from penstock.ids import new_id
from penstock.job_loop import wait_for_event
from penstock.schemas import now
from penstock.store.job_tables import batch_lines, batches, files
from penstock.store.tables import providers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.batches.edge_client import EdgeClient
    from penstock.batches.input import BatchLine, LineFault
    from penstock.blobs.store import BlobStore
    from penstock.kit.tenant_session import Services
    from penstock.logs.spooled_records import SpooledRecords
    from penstock.metrics import BatchMetrics
    from penstock.secrets.references import SecretCache
    from penstock.settings import Settings
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

POLL_INTERVAL_SECONDS = 2.0
# Validity of a lease. If a node does not renew it in this time, another node may run the batch.
LEASE_MS = 30_000
PURGE_INTERVAL_SECONDS = 60.0
PAGE, MOST_DELETED = 200, 500


class BatchRunner:
    """Runs up to `batches.max_running` batches concurrently. Unfinished batches resume at the next start or on another
    node.
    """

    def __init__(
        self,
        settings: Settings,
        services: Services,
        secrets: SecretCache,
        blobs: BlobStore,
        figures: BatchMetrics,
        records: SpooledRecords,
    ) -> None:
        """Stores the dependencies; runs nothing yet."""
        self._secrets = secrets
        self._settings = settings
        self._records = records
        self._services = services
        self._database = services.database
        self._blobs = blobs
        self._figures = figures
        # Id of this process in leases. It is new at each start, so that leases of the previous process do not count as
        # its own.
        self._runner_id = new_id()
        self._wake_event = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        # Passes of running batches, by the id of the batch.
        self._passes: dict[str, str] = {}
        self._edge: EdgeClient | None = None
        self._purged = 0.0

    def notify(self) -> None:
        """Wakes the runner, because a batch changed."""
        self._wake_event.set()

    async def delete_content(self, file: Row) -> None:
        """Deletes the content of a file whose row was deleted. If the storage fails, the row is restored as an expired
        file, whose content is deleted later.
        """
        try:
            await self._blobs.delete(file["id"])
        except UnavailableError as error:
            log.warning("the content of the file %s is deleted later: %s", file["id"], error)
            async with self._database.write_transaction() as connection:
                await connection.execute(insert(files).values({**file, "expires_at": 0}))

    async def run(self) -> None:
        """Claims and runs batches until cancelled."""
        try:
            if self._database.embedded:
                await self._release_stale_claims()
            while True:
                try:
                    await self._poll()
                except PenstockError as error:
                    log.warning("batches wait: %s", error)
                # With an embedded store, only this process creates batches, and it calls `notify`. It therefore need
                # not poll often.
                is_quiet = self._database.embedded and not self._running
                await wait_for_event(self._wake_event, PURGE_INTERVAL_SECONDS if is_quiet else POLL_INTERVAL_SECONDS)
                self._wake_event.clear()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            if self._edge:
                await self._edge.close()
                # `run` may be called again.
                self._edge = None

    async def _release_stale_claims(self) -> None:
        """Releases all claims in an embedded store. No other process runs its batches, so the claims belong to a
        previous process.
        """
        with suppress(UnavailableError):
            async with self._database.write_transaction() as connection:
                await connection.execute(update(batches).values(run_by=None, run_until=None))

    async def _poll(self) -> None:
        self._running = {row_id: task for row_id, task in self._running.items() if not task.done()}
        self._figures.running_batches = len(self._running)
        await self._renew_leases()
        for row_id in await self._find_claimable(self._settings.batches.max_running - len(self._running)):
            if await self._claim(row_id):
                self._running[row_id] = asyncio.get_running_loop().create_task(self._run_batch(row_id))
        if asyncio.get_running_loop().time() - self._purged > PURGE_INTERVAL_SECONDS:
            self._purged = asyncio.get_running_loop().time()
            await self._purge_expired()

    async def _renew_leases(self) -> None:
        """Renews the leases of running batches. Stops those that were cancelled, have expired or are claimed by another
        node.
        """
        if not self._running:
            return
        claimed = batches.c.id.in_(list(self._running)) & (batches.c.run_by == self._runner_id)
        async with self._database.write_transaction() as connection:
            await connection.execute(update(batches).where(claimed).values(run_until=now() + LEASE_MS))
            columns = (batches.c.id, batches.c.status, batches.c.expires_at)
            rows = {row.id: row for row in await connection.execute(select(*columns).where(claimed))}
        for row_id, task in self._running.items():
            row = rows.get(row_id)
            if row is None:
                # Another node claimed the batch, or it was deleted, or it has just ended.
                task.cancel()
            elif (row.status == CANCELLING or row.expires_at <= now()) and row_id in self._stops:
                self._stops[row_id].set()

    async def _find_claimable(self, maximum: int) -> list[str]:
        if maximum <= 0:
            return []
        is_free = or_(batches.c.run_until.is_(None), batches.c.run_until < now())
        query = (
            select(batches.c.id)
            .where(batches.c.status.in_(ACTIVE_STATUSES), is_free)
            .order_by(batches.c.id)
            .limit(maximum)
        )
        async with self._database.read_connection() as connection:
            return [row_id for row_id in await connection.scalars(query) if row_id not in self._running]

    async def _claim(self, row_id: str) -> bool:
        is_free = or_(batches.c.run_until.is_(None), batches.c.run_until < now())
        query = update(batches).where(batches.c.id == row_id, batches.c.status.in_(ACTIVE_STATUSES), is_free)
        async with self._database.write_transaction() as connection:
            done = await connection.execute(query.values(run_by=self._runner_id, run_until=now() + LEASE_MS))
            return done.rowcount == 1

    async def _run_batch(self, row_id: str) -> None:
        try:
            await self._run_steps(row_id)
        except (BatchClaimLostError, UnavailableError) as error:
            # The batch is not lost: the node that claimed it continues, or any node does once the store is available
            # again.
            log.warning("stopped running the batch %s on this node: %s", row_id, error)
        except NotFoundError as error:
            await self._fail_batch(row_id, InputError("input_file_missing", error.message))
        except GuardrailDeniedError as error:
            await self._fail_batch(row_id, InputError("guardrail_denied", error.message))
        except IncompleteResponseError as error:
            await self._fail_batch(row_id, InputError("provider_failed", error.message))
        except Exception:
            log.exception("the batch %s failed", row_id)
            await self._fail_batch(row_id, InputError("internal", "internal error"))
        finally:
            self._stops.pop(row_id, None)
            revoke_pass(self._passes.pop(row_id, ""))
            self.notify()

    async def _fail_batch(self, row_id: str, reason: InputError) -> None:
        with suppress(PenstockError):
            await self._set_status(row_id, FAILED, ACTIVE_STATUSES, errors=[msgspec.to_builtins(reason)])

    async def _run_steps(self, row_id: str) -> None:
        """Moves the batch from status to status. Stores each status before the work of this status begins, so that a
        later run can resume there.
        """
        row = await self._load_row(row_id)
        if row["status"] == VALIDATING:
            row = await self._validate_input(row)
        if row["status"] == IN_PROGRESS:
            end = await self._run_lines(row)
            if end == CANCELLED and row["expires_at"] <= now():
                # The runner itself cancelled the provider's batch, because its time was over.
                end = EXPIRED
            moments = {EXPIRED: now()} if end == EXPIRED else {}
            following = CHECKING_RESPONSES if await self._has_unchecked_responses(row_id) else FINALIZING
            # The batch may also have been cancelled directly at the provider.
            status = CANCELLING if end == CANCELLED else following
            row = await self._set_status(row_id, status, (IN_PROGRESS,), also=moments)
        elif row["status"] == CANCELLING and row["job"] and "id" in row["job"]:
            await self._run_lines(row)
        if row["status"] in {CHECKING_RESPONSES, CANCELLING} and await self._has_unchecked_responses(row_id):
            row = await self._load_row(row_id)
            batch, batch_input = await self._open_provider_batch(row)
            await batch.check_responses(batch_input)
            row = await self._set_status(row_id, FINALIZING, (CHECKING_RESPONSES,))
        if row["status"] in {FINALIZING, CANCELLING}:
            await self._finish_batch(row)

    async def _has_unchecked_responses(self, row_id: str) -> bool:
        """True if guardrails must check the responses of a batch that a provider ran."""
        job: dict[str, Any] = (await self._load_row(row_id))["job"] or {}
        return "id" in job and job.get("guarded", {}).get("output", False)

    async def _load_row(self, row_id: str) -> Row:
        async with self._database.read_connection() as connection:
            return await self._load_claimed(connection, row_id)

    async def _load_claimed(self, connection: AsyncConnection, row_id: str, *, lock: bool = False) -> Row:
        query = select(batches).where(batches.c.id == row_id, batches.c.run_by == self._runner_id)
        row = (await connection.execute(query.with_for_update() if lock else query)).mappings().first()
        if row is None:
            raise BatchClaimLostError
        return dict(row)

    async def _set_status(
        self,
        row_id: str,
        status: str,
        among: tuple[str, ...],
        also: Mapping[str, int] | None = None,
        **more: Any,  # noqa: ANN401 - columns
    ) -> Row:
        """Sets the status of a batch if its current status is in `among`. Returns the resulting row, changed or not."""
        async with self._database.write_transaction() as connection:
            row = await self._load_claimed(connection, row_id, lock=True)
            if row["status"] in among:
                change = status_change({**row, "moments": {**row["moments"], **(also or {})}}, status, **more)
                await connection.execute(update(batches).where(batches.c.id == row_id).values(change))
                row = {**row, **change}
        return row

    async def _validate_input(self, row: Row) -> Row:
        faults = await self._line_checker(row["job"]) if row["job"] else None
        total, wrong = await BatchInput(self._blobs, self._settings, row).validate(faults)
        if wrong:
            errors = [msgspec.to_builtins(problem) for problem in wrong]
            return await self._set_status(row["id"], FAILED, (VALIDATING,), errors=errors)
        if row["job"]:
            batch, batch_input = await self._open_provider_batch(row)
            # If it is stopped, the batch is cancelled or has expired, and no line is sent.
            await batch.check_requests(batch_input)
        return await self._set_status(row["id"], IN_PROGRESS, (VALIDATING,), total=total)

    async def _line_checker(self, job: Mapping[str, Any]) -> Callable[[BatchLine, BatchLine], Iterator[LineFault]]:
        """Returns a function that yields the reasons why the batch's provider cannot run a line. Only for
        batches of providers: the edge checks the lines that the gateway sends itself.
        """
        provider, models = batch_provider_for(job["provider"]), None
        if integration_id := job.get("integration_id"):
            async with self._database.read_connection() as connection:
                models = await load_allowed_models(connection, integration_id)

        def find_faults(line: BatchLine, first: BatchLine) -> Iterator[LineFault]:
            yield from provider.validate_line(line, first)
            yield from models.find_faults(line) if models else ()

        return find_faults

    async def _run_lines(self, row: Row) -> str:
        """Runs all lines, through the edge or in a batch of the provider. Returns the final status."""
        if row["job"]:
            batch, batch_input = await self._open_provider_batch(row)
            return await batch.run(batch_input)
        headers, edge = await self._open_edge(row)
        gateway_batch = GatewayBatch(row, headers, self._dependencies(edge))
        self._register_stop(row, gateway_batch.stop)
        return await gateway_batch.run(BatchInput(self._blobs, self._settings, row))

    async def _open_provider_batch(self, row: Row) -> tuple[ProviderBatch, BatchInput]:
        headers, edge = await self._open_edge(row)
        if row["id"] not in self._passes:
            self._passes[row["id"]] = issue_pass()
        headers[PASS_HEADER] = self._passes[row["id"]]
        batch = ProviderBatch(row, BatchClient(row, headers, edge, self._blobs), self._dependencies(edge))
        self._register_stop(row, batch.stop)
        return batch, BatchInput(self._blobs, self._settings, row)

    def _dependencies(self, edge: EdgeClient) -> BatchDependencies:
        return BatchDependencies(edge, self._database, self._settings, self._figures, self._records)

    def _register_stop(self, row: Row, stop: asyncio.Event) -> None:
        if row["status"] == CANCELLING:
            stop.set()
        self._stops[row["id"]] = stop
        self.notify()

    async def _open_edge(self, row: Row) -> tuple[dict[str, str], EdgeClient]:
        """Returns the headers of the batch's requests, and a client that hides its credentials in responses."""
        if self._edge is None:
            # The HTTP client is imported with the first batch, because most gateways never run one.
            from penstock.batches.edge_client import EdgeClient  # noqa: PLC0415 - see the comment above

            self._edge = EdgeClient(self._settings)
        async with self._database.read_connection() as connection:
            sealed = await self._services.vault.open(connection, row["sealed"], row["id"])
            headers = msgspec.json.decode(sealed, type=dict[str, str])
            return headers, self._edge.with_redactor(await self._collect_secrets(connection, row, headers))

    async def _collect_secrets(
        self, connection: AsyncConnection, row: Row, headers: Mapping[str, str]
    ) -> SecretRedactor:
        """Returns a redactor for the credentials that the batch uses, because providers may repeat them in
        responses.
        """
        texts = list(secrets_in_headers(headers))
        slug = (headers.get(f"{HEADER_PREFIX}virtual-key") or headers.get(f"{HEADER_PREFIX}provider", "")).removeprefix(
            "@"
        )
        conditions = (providers.c.workspace_id == row["workspace_id"], providers.c.slug == slug)
        for integration_id in await connection.scalars(select(providers.c.integration_id).where(*conditions)):
            texts += await secrets_of_integration(connection, self._services.vault, self._secrets, integration_id)
        return SecretRedactor(texts)

    async def _finish_batch(self, row: Row) -> None:
        """Writes the output and error files and sets the final status."""
        is_expired = row["status"] == FINALIZING and EXPIRED in row["moments"]
        if is_expired:
            await self._expire_unsent_lines(row)
        written_files = {
            "output": await self._write_output_file(row, failed=False),
            "error": await self._write_output_file(row, failed=True),
        }
        status = EXPIRED if is_expired else CANCELLED if row["status"] == CANCELLING else COMPLETED
        async with self._database.write_transaction() as connection:
            claimed_row = await self._load_claimed(connection, row["id"], lock=True)
            file_rows = [file for file in written_files.values() if file]
            if file_rows:
                await connection.execute(insert(files), file_rows)
            ids = {f"{kind}_file_id": file["id"] if file else None for kind, file in written_files.items()}
            change = status_change(claimed_row, status, **ids)
            await connection.execute(update(batches).where(batches.c.id == row["id"]).values(change))
            await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == row["id"]))

    async def _expire_unsent_lines(self, row: Row) -> None:
        """Stores an expiry error for each line that was not sent."""
        async with self._database.read_connection() as connection:
            query = select(batch_lines.c.number).where(batch_lines.c.batch_id == row["id"])
            done = set(await connection.scalars(query))
        error = {"code": "batch_expired", "message": "batches.window_seconds passed before this line was sent"}
        rest: list[dict[str, Any]] = []
        async for number, line in BatchInput(self._blobs, self._settings, row).requests():
            if number not in done:
                content = format_output_line(row["id"], number, line.custom_id, None, error)
                rest.append({"batch_id": row["id"], "number": number, "failed": True, "content": content})
            if len(rest) >= PAGE:
                await self._write_failed_lines(row["id"], rest)
                rest = []
        await self._write_failed_lines(row["id"], rest)

    async def _write_failed_lines(self, row_id: str, rest: list[dict[str, Any]]) -> None:
        if not rest:
            return
        async with self._database.write_transaction() as connection:
            await self._load_claimed(connection, row_id, lock=True)
            await connection.execute(insert(batch_lines), rest)
            counted = {"failed": batches.c.failed + len(rest)}
            await connection.execute(update(batches).where(batches.c.id == row_id).values(counted))

    async def _write_output_file(self, row: Row, *, failed: bool) -> dict[str, Any] | None:
        """Writes the succeeded or the failed lines to a file, in the order of the input. Returns the file's row, or
        `None` if there are no such lines.
        """
        owner = {name: row[name] for name in ("organisation_id", "workspace_id", "created_by")}
        kind = "error" if failed else "output"
        details: dict[str, Any] = row["details"] or {}
        life: int = details.get("output_seconds") or self._settings.files.retention_seconds
        file = new_file_row("batch_output", f"{row['id']}_{kind}.jsonl", life, **owner)
        # The id is deterministic, so the file of an interrupted run is overwritten.
        file["id"] = str(uuid5(UUID(row["id"]), kind))
        file["bytes"] = await self._blobs.put(file["id"], self._read_output_pages(row["id"], failed=failed))
        if not file["bytes"]:
            await self._blobs.delete(file["id"])
        return file if file["bytes"] else None

    async def _read_output_pages(self, row_id: str, *, failed: bool) -> AsyncIterator[bytes]:
        after = 0
        query = select(batch_lines.c.number, batch_lines.c.content).where(
            batch_lines.c.batch_id == row_id, batch_lines.c.failed == failed
        )
        while True:
            page = query.where(batch_lines.c.number > after).order_by(batch_lines.c.number).limit(PAGE)
            async with self._database.read_connection() as connection:
                rows = (await connection.execute(page)).all()
            if not rows:
                return
            yield b"".join(row.content.encode() + b"\n" for row in rows)
            after = rows[-1].number

    async def _purge_expired(self) -> None:
        """Deletes batches that ended long ago, and expired files. The inputs of active batches stay."""
        read = select(batches.c.input_file_id).where(batches.c.status.in_(ACTIVE_STATUSES))
        old = select(files.c.id).where(files.c.expires_at < now(), files.c.id.not_in(read)).limit(MOST_DELETED)
        async with self._database.read_connection() as connection:
            names = list(await connection.scalars(old))
        await self._blobs.delete(*names)
        long_over = now() - self._settings.files.retention_seconds * MS_PER_SECOND
        async with self._database.write_transaction() as connection:
            if names:
                await connection.execute(delete(files).where(files.c.id.in_(names)))
            over = (batches.c.status.in_(FINISHED_STATUSES), batches.c.last_updated_at < long_over)
            await connection.execute(delete(batches).where(*over))
        self._figures.deleted_files += len(names)
