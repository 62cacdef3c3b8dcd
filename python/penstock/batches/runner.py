"""Runs the batches that the gateway keeps: takes those that nobody runs, sees them through, and deletes what is too old."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import delete, insert, or_, select, update

from penstock.batches.files import SECOND, new_row
from penstock.batches.gateway_batch import Lines, Places, told
from penstock.batches.input import Input, Wrong
from penstock.batches.model import (
    ACTIVE,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    OVER,
    PREFIX,
    VALIDATING,
    models_of,
    turned,
)
from penstock.batches.provider_batch import HandedOver
from penstock.batches.providers import way_of
from penstock.batches.providers.client import Talk
from penstock.batches.redaction import Hidden, of_headers, of_integration
from penstock.errors import LostError, MissingError, PenstockError, UnavailableError
from penstock.ids import new_id
from penstock.job_loop import rung
from penstock.schemas import now
from penstock.store.tables import batch_lines, batches, files, providers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.batches.edge_client import Edge
    from penstock.batches.input import Fault, Line
    from penstock.blobs.folder import Folder
    from penstock.kit.tenant_session import Office
    from penstock.metrics import BatchFigures
    from penstock.records import RecordFeed
    from penstock.secrets.references import Secrets
    from penstock.settings import Settings
    from penstock.store.tenant import Row

log = logging.getLogger("penstock")

INTERVAL = 2.0
# A node that does not say for so long that it runs a batch has died.
LEASE_MS = 30_000
PURGE_SECONDS = 60.0
PAGE, MOST_DELETED = 200, 500


class TakenError(PenstockError):
    """Somebody else runs this batch now, or it is gone."""


class Runner:
    """Runs so many batches at once as the settings say; what it did not finish goes on at the next start, or elsewhere."""

    def __init__(
        self,
        settings: Settings,
        office: Office,
        secrets: Secrets,
        blobs: Folder,
        figures: BatchFigures,
        records: RecordFeed,
    ) -> None:
        """Run nothing yet."""
        self._secrets = secrets
        self._settings = settings
        self._records = records
        self._office = office
        self._database = office.database
        self._blobs = blobs
        self._figures = figures
        # Another one after each start: what the last one held is not held by this one.
        self._me = new_id()
        self._rung = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._edge: Edge | None = None
        self._purged = 0.0

    def ring(self) -> None:
        """Look at once: something changed."""
        self._rung.set()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            if self._database.embedded:
                await self._take_back()
            while True:
                try:
                    await self._look()
                except PenstockError as error:
                    log.warning("batches wait: %s", error)
                # Nobody else begins batches in an embedded store: who does it here rings.
                is_quiet = self._database.embedded and not self._running
                await rung(self._rung, PURGE_SECONDS if is_quiet else INTERVAL)
                self._rung.clear()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            if self._edge:
                await self._edge.close()
                # It may begin again.
                self._edge = None

    async def _take_back(self) -> None:
        """Nobody else runs batches of an embedded store: what the process before held is free."""
        with suppress(UnavailableError):
            async with self._database.writing() as connection:
                await connection.execute(update(batches).values(run_by=None, run_until=None))

    async def _look(self) -> None:
        self._running = {row_id: task for row_id, task in self._running.items() if not task.done()}
        self._figures.running = len(self._running)
        await self._renew()
        for row_id in await self._due(self._settings.batches.at_once - len(self._running)):
            if await self._claim(row_id):
                self._running[row_id] = asyncio.get_running_loop().create_task(self._see_through(row_id))
        if asyncio.get_running_loop().time() - self._purged > PURGE_SECONDS:
            self._purged = asyncio.get_running_loop().time()
            await self._purge()

    async def _renew(self) -> None:
        """Say that what is run here still is, and hear what happened to it meanwhile."""
        if not self._running:
            return
        mine = batches.c.id.in_(list(self._running)) & (batches.c.run_by == self._me)
        async with self._database.writing() as connection:
            await connection.execute(update(batches).where(mine).values(run_until=now() + LEASE_MS))
            columns = (batches.c.id, batches.c.status, batches.c.expires_at)
            found = {row.id: row for row in await connection.execute(select(*columns).where(mine))}
        for row_id, task in self._running.items():
            row = found.get(row_id)
            if row is None:
                # It may have ended just now.
                task.cancel()
            elif (row.status == CANCELLING or row.expires_at <= now()) and row_id in self._stops:
                self._stops[row_id].set()

    async def _due(self, most: int) -> list[str]:
        if most <= 0:
            return []
        is_free = or_(batches.c.run_until.is_(None), batches.c.run_until < now())
        query = select(batches.c.id).where(batches.c.status.in_(ACTIVE), is_free).order_by(batches.c.id).limit(most)
        async with self._database.reading() as connection:
            return [row_id for row_id in await connection.scalars(query) if row_id not in self._running]

    async def _claim(self, row_id: str) -> bool:
        is_free = or_(batches.c.run_until.is_(None), batches.c.run_until < now())
        query = update(batches).where(batches.c.id == row_id, batches.c.status.in_(ACTIVE), is_free)
        async with self._database.writing() as connection:
            done = await connection.execute(query.values(run_by=self._me, run_until=now() + LEASE_MS))
            return done.rowcount == 1

    async def _see_through(self, row_id: str) -> None:
        try:
            await self._steps(row_id)
        except (TakenError, UnavailableError) as error:
            # Somebody does it: who took it, or whoever looks once the store is there again.
            log.warning("the batch %s is not run here any more: %s", row_id, error)
        except MissingError as error:
            await self._give_up(row_id, Wrong("input_file_missing", error.message))
        except LostError as error:
            await self._give_up(row_id, Wrong("provider_failed", error.message))
        except Exception:
            log.exception("the batch %s failed", row_id)
            await self._give_up(row_id, Wrong("internal", "something went wrong"))
        finally:
            self._stops.pop(row_id, None)
            self.ring()

    async def _give_up(self, row_id: str, why: Wrong) -> None:
        with suppress(PenstockError):
            await self._turn(row_id, FAILED, ACTIVE, errors=[msgspec.to_builtins(why)])

    async def _steps(self, row_id: str) -> None:
        """Go from one status to the next; each is written before what belongs to it is done."""
        row = await self._read(row_id)
        if row["status"] == VALIDATING:
            row = await self._validate(row)
        if row["status"] == IN_PROGRESS:
            end = await self._answer(row)
            if end == CANCELLED and row["expires_at"] <= now():
                # Its provider was asked to end it because there was no more time.
                end = EXPIRED
            moments = {EXPIRED: now()} if end == EXPIRED else {}
            # Cancelled at its provider, by whom it may.
            row = await self._turn(row_id, CANCELLING if end == CANCELLED else FINALIZING, (IN_PROGRESS,), also=moments)
        elif row["status"] == CANCELLING and row["job"] and "id" in row["job"]:
            await self._answer(row)
        if row["status"] in {FINALIZING, CANCELLING}:
            await self._finish(row)

    async def _read(self, row_id: str) -> Row:
        async with self._database.reading() as connection:
            return await self._mine(connection, row_id)

    async def _mine(self, connection: AsyncConnection, row_id: str, *, lock: bool = False) -> Row:
        query = select(batches).where(batches.c.id == row_id, batches.c.run_by == self._me)
        found = (await connection.execute(query.with_for_update() if lock else query)).mappings().first()
        if found is None:
            message = "somebody else runs it, or it is gone"
            raise TakenError(message)
        return dict(found)

    async def _turn(
        self,
        row_id: str,
        status: str,
        among: tuple[str, ...],
        also: Mapping[str, int] | None = None,
        **more: Any,  # noqa: ANN401 - columns
    ) -> Row:
        """Give a batch another status, if it has one of these; and say what it is then."""
        async with self._database.writing() as connection:
            row = await self._mine(connection, row_id, lock=True)
            if row["status"] in among:
                change = turned({**row, "moments": {**row["moments"], **(also or {})}}, status, **more)
                await connection.execute(update(batches).where(batches.c.id == row_id).values(change))
                row = {**row, **change}
        return row

    async def _validate(self, row: Row) -> Row:
        faults = await self._faults(row["job"]) if row["job"] else None
        total, wrong = await Input(self._blobs, self._settings, row).check(faults)
        if wrong:
            errors = [msgspec.to_builtins(problem) for problem in wrong]
            return await self._turn(row["id"], FAILED, (VALIDATING,), errors=errors)
        return await self._turn(row["id"], IN_PROGRESS, (VALIDATING,), total=total)

    async def _faults(self, job: Mapping[str, Any]) -> Callable[[Line, Line], Iterator[Fault]]:
        """Say what is wrong with a line for who runs it: lines that the gateway sends itself are looked at on their way."""
        way, models = way_of(job["provider"]), None
        if integration_id := job.get("integration_id"):
            async with self._database.reading() as connection:
                models = await models_of(connection, integration_id)

        def faults(line: Line, first: Line) -> Iterator[Fault]:
            yield from way.faults(line, first)
            yield from models.faults(line) if models else ()

        return faults

    async def _answer(self, row: Row) -> str:
        """Have all lines answered, here or by a provider, and say how that ended."""
        if self._edge is None:
            # What speaks HTTP is loaded with the first batch: most gateways never have one.
            from penstock.batches.edge_client import Edge  # noqa: PLC0415 - as said above

            self._edge = Edge(self._settings)
        async with self._database.reading() as connection:
            sealed = await self._office.vault.open(connection, row["sealed"], row["id"])
            headers = msgspec.json.decode(sealed, type=dict[str, str])
            edge = self._edge.hiding(await self._hidden(connection, row, headers))
        places = Places(edge, self._database, self._settings, self._figures, self._records)
        talk = Talk(row, headers, edge, self._blobs)
        run = HandedOver(row, talk, places) if row["job"] else Lines(row, headers, places)
        if row["status"] == CANCELLING:
            run.stop.set()
        self._stops[row["id"]] = run.stop
        self.ring()
        return await run.run(Input(self._blobs, self._settings, row))

    async def _hidden(self, connection: AsyncConnection, row: Row, headers: Mapping[str, str]) -> Hidden:
        """Give what nobody is to read in the words of a provider."""
        texts = list(of_headers(headers))
        slug = (headers.get(f"{PREFIX}virtual-key") or headers.get(f"{PREFIX}provider", "")).removeprefix("@")
        here = (providers.c.workspace_id == row["workspace_id"], providers.c.slug == slug)
        for integration_id in await connection.scalars(select(providers.c.integration_id).where(*here)):
            texts += await of_integration(connection, self._office.vault, self._secrets, integration_id)
        return Hidden(texts)

    async def _finish(self, row: Row) -> None:
        """Put the answers together as files, and end."""
        is_expired = row["status"] == FINALIZING and EXPIRED in row["moments"]
        if is_expired:
            await self._expire_rest(row)
        made = {"output": await self._put(row, failed=False), "error": await self._put(row, failed=True)}
        status = EXPIRED if is_expired else CANCELLED if row["status"] == CANCELLING else COMPLETED
        async with self._database.writing() as connection:
            held = await self._mine(connection, row["id"], lock=True)
            kept = [file for file in made.values() if file]
            if kept:
                await connection.execute(insert(files), kept)
            ids = {f"{kind}_file_id": file["id"] if file else None for kind, file in made.items()}
            change = turned(held, status, **ids)
            await connection.execute(update(batches).where(batches.c.id == row["id"]).values(change))
            await connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == row["id"]))

    async def _expire_rest(self, row: Row) -> None:
        """Say of the lines that were not sent that there was no time for them."""
        async with self._database.reading() as connection:
            query = select(batch_lines.c.number).where(batch_lines.c.batch_id == row["id"])
            done = set(await connection.scalars(query))
        error = {"code": "batch_expired", "message": "there was no time for this line: batches.window_seconds is over"}
        rest: list[dict[str, Any]] = []
        async for number, line in Input(self._blobs, self._settings, row).requests():
            if number not in done:
                content = told(row["id"], number, line.custom_id, None, error)
                rest.append({"batch_id": row["id"], "number": number, "failed": True, "content": content})
            if len(rest) >= PAGE:
                await self._write(row["id"], rest)
                rest = []
        await self._write(row["id"], rest)

    async def _write(self, row_id: str, rest: list[dict[str, Any]]) -> None:
        if not rest:
            return
        async with self._database.writing() as connection:
            await self._mine(connection, row_id, lock=True)
            await connection.execute(insert(batch_lines), rest)
            counted = {"failed": batches.c.failed + len(rest)}
            await connection.execute(update(batches).where(batches.c.id == row_id).values(counted))

    async def _put(self, row: Row, *, failed: bool) -> dict[str, Any] | None:
        """Keep the good answers, or the others, in the order of the input; nothing where there are none."""
        owner = {name: row[name] for name in ("organisation_id", "workspace_id", "created_by")}
        kind = "error" if failed else "output"
        details: dict[str, Any] = row["details"] or {}
        life: int = details.get("output_seconds") or self._settings.files.keep_seconds
        file = new_row("batch_output", f"{row['id']}_{kind}.jsonl", life, **owner)
        # The same name each time: what was left unfinished before is overwritten.
        file["id"] = str(uuid5(UUID(row["id"]), kind))
        file["bytes"] = await self._blobs.put(file["id"], self._answers(row["id"], failed=failed))
        if not file["bytes"]:
            await self._blobs.delete(file["id"])
        return file if file["bytes"] else None

    async def _answers(self, row_id: str, *, failed: bool) -> AsyncIterator[bytes]:
        after = 0
        query = select(batch_lines.c.number, batch_lines.c.content).where(
            batch_lines.c.batch_id == row_id, batch_lines.c.failed == failed
        )
        while True:
            page = query.where(batch_lines.c.number > after).order_by(batch_lines.c.number).limit(PAGE)
            async with self._database.reading() as connection:
                rows = (await connection.execute(page)).all()
            if not rows:
                return
            yield b"".join(row.content.encode() + b"\n" for row in rows)
            after = rows[-1].number

    async def _purge(self) -> None:
        """Delete what is too old, but for what a batch still reads."""
        read = select(batches.c.input_file_id).where(batches.c.status.in_(ACTIVE))
        old = select(files.c.id).where(files.c.expires_at < now(), files.c.id.not_in(read)).limit(MOST_DELETED)
        async with self._database.reading() as connection:
            names = list(await connection.scalars(old))
        for name in names:
            await self._blobs.delete(name)
        long_over = now() - self._settings.files.keep_seconds * SECOND
        async with self._database.writing() as connection:
            if names:
                await connection.execute(delete(files).where(files.c.id.in_(names)))
            over = (batches.c.status.in_(OVER), batches.c.last_updated_at < long_over)
            await connection.execute(delete(batches).where(*over))
        self._figures.deleted += len(names)
