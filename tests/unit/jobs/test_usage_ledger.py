"""Usage ledger: adds the usage of each record once, whatever is killed in between."""

from __future__ import annotations

import asyncio
import errno
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import msgspec
import pytest
from sqlalchemy import func, select, update

from penstock.job_loop import stop_jobs
from penstock.jobs import usage_ledger
from penstock.jobs.usage_ledger import UsageLedger
from penstock.logs import spool_format as spool
from penstock.logs.ledger_state import MAX_AMOUNT, MEMBERS_FILE, STATE_FILE, KnownMembers, LedgerState
from penstock.logs.spool_writer import NewFrame, SpoolWriter
from penstock.settings import Records, Settings
from penstock.store.limit_tables import limit_usage
from tests.unit.resources.management_api import management_client

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Services
    from penstock.settings.secret import Secret

BUDGET = {"id": "b", "group": "ann", "period_start": 5, "type": "tokens"}


def make_record(number: int, tokens: int, kind: int = spool.END, flags: int = 0, **budget: object) -> NewFrame:
    """Returns the frame of a record that counts for the budget."""
    fields = {"total_units": tokens, "cost_nanodollars": 3, "limits": {"budgets": [{**BUDGET, **budget}]}}
    return NewFrame(kind, uuid.UUID(int=number).bytes, msgspec.json.encode(fields), flags)


def run_ledger(url: Secret, tmp_path: Path, steps: Any) -> list[dict[str, Any]]:
    """Runs the steps with a spool writer and a function that makes ledgers; returns the rows of the ledger."""
    settings = Settings(records=Records(path=str(tmp_path / "records.jsonl")))
    writer = SpoolWriter(settings.spool_folder, "edge-1", "test", is_durable=False)

    async def run() -> list[dict[str, Any]]:
        async with management_client(url) as api:
            services: Services = api.app.state["services"]
            await steps(writer, lambda: UsageLedger(settings, services), Path(settings.limits_folder))
            async with services.database.read_connection() as connection:
                return [dict(row) for row in (await connection.execute(select(limit_usage))).mappings()]

    try:
        return asyncio.run(run())
    finally:
        writer.close()


async def fold(ledger: UsageLedger) -> None:
    while ledger.read_spool() or ledger.has_unstored_usage:
        await ledger.store_batch()


def test_adds_records_and_their_amendments(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append(
            [
                make_record(1, 10),
                # The usage of this record is not known yet.
                make_record(2, 0, flags=spool.AMENDMENT_FOLLOWS),
                make_record(2, 7, kind=spool.AMEND),
                # Another target responded to this request.
                make_record(3, 5, is_failed_attempt=True),
                NewFrame(spool.END, uuid.UUID(int=4).bytes, b'{"metadata":{"a":"\\"budgets\\":[{"}}'),
            ]
        )
        await fold(make_ledger())

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert (row["value_key"], row["requests"], row["tokens"], row["measure"]) == ("ann", 3, 17, "tokens")


def test_usage_counts_in_the_period_in_which_its_request_began(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        # The second request began before the reset, and ended after the first one of the next period.
        writer.append([make_record(1, 10), make_record(2, 4, period_start=9)])
        ledger = make_ledger()
        await fold(ledger)
        writer.append([make_record(3, 7), make_record(4, 0, flags=spool.AMENDMENT_FOLLOWS)])
        writer.append([make_record(5, 2, period_start=9), make_record(4, 5, kind=spool.AMEND)])
        await fold(ledger)

    rows = run_ledger(bootstrapped_url, tmp_path, steps)
    assert {row["period_start"]: (row["requests"], row["tokens"]) for row in rows} == {5: (3, 22), 9: (2, 6)}


def test_batch_that_was_stored_before_a_kill_is_added_once(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(writer: SpoolWriter, make_ledger: Any, folder: Path) -> None:
        writer.append([make_record(1, 10)])
        ledger = make_ledger()
        ledger.read_spool()
        await ledger.seal_batch()
        saved = tmp_path / "saved.json"
        shutil.copy(folder / STATE_FILE, saved)
        await ledger.store_batch()
        # Restores the state of a process that was killed after the commit, before it saved that the batch is stored.
        # Meanwhile there is another record.
        shutil.copy(saved, folder / STATE_FILE)
        writer.append([make_record(2, 4)])
        await fold(make_ledger())

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert (row["requests"], row["tokens"]) == (2, 14)


def fail_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Makes the next save of the state fail."""
    save = LedgerState.save

    def fail(_state: LedgerState, _folder: str) -> None:
        monkeypatch.setattr(LedgerState, "save", save)
        raise error

    monkeypatch.setattr(LedgerState, "save", fail)


async def run_until_stored(ledger: UsageLedger, tokens: int) -> None:
    """Runs the job until the store has these tokens, or more."""
    job = asyncio.ensure_future(ledger.run())
    try:
        while True:
            async with ledger._database.read_connection() as connection:
                if (await connection.scalar(select(func.sum(limit_usage.c.tokens))) or 0) >= tokens:
                    return
            assert not job.done()
            await asyncio.sleep(0.01)
    finally:
        await stop_jobs([job])


def test_job_that_begins_again_counts_each_record_once(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append([make_record(1, 10)])
        ledger = make_ledger()
        await run_until_stored(ledger, 10)
        writer.append([make_record(2, 4)])
        fail_once(monkeypatch, RuntimeError("a fault"))
        with pytest.raises(RuntimeError):
            await ledger.run()
        writer.append([make_record(3, 1)])
        await run_until_stored(ledger, 15)

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert (row["requests"], row["tokens"]) == (3, 15)


def test_job_goes_on_when_the_disk_is_full_for_a_while(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(usage_ledger, "FOLD_SECONDS", 0.01)
    full = OSError(errno.ENOSPC, "No space left on device")

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        ledger = make_ledger()
        fail_once(monkeypatch, full)
        writer.append([make_record(1, 10)])
        await run_until_stored(ledger, 10)
        monkeypatch.setattr(KnownMembers, "save", Mock(side_effect=full))
        ledger._report_due = 0.0
        writer.append([make_record(2, 4)])
        await run_until_stored(ledger, 14)
        # Another process counts nothing again.
        await fold(make_ledger())

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert (row["requests"], row["tokens"]) == (2, 14)
    assert [record.message for record in caplog.records if "is not read for now" in record.message] == [
        "usage is not read for now: [Errno 28] No space left on device"
    ]


def test_batch_whose_save_failed_is_saved_before_it_is_stored(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save = LedgerState.save

    def save_sealed(state: LedgerState, folder: str) -> None:
        if not state.batch:
            raise OSError("killed")
        save(state, folder)

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append([make_record(1, 10)])
        ledger = make_ledger()
        ledger.read_spool()
        fail_once(monkeypatch, OSError("full"))
        with pytest.raises(OSError, match="full"):
            await ledger.store_batch()
        # Killed after the commit, before it was saved that the batch is stored.
        monkeypatch.setattr(LedgerState, "save", save_sealed)
        with pytest.raises(OSError, match="killed"):
            await ledger.store_batch()
        monkeypatch.setattr(LedgerState, "save", save)
        writer.append([make_record(2, 4, group="bob")])
        await fold(make_ledger())

    rows = run_ledger(bootstrapped_url, tmp_path, steps)
    assert {row["value_key"]: row["tokens"] for row in rows} == {"ann": 10, "bob": 4}


def test_batches_of_all_nodes_have_the_same_order(bootstrapped_url: Secret, tmp_path: Path):
    keys = [("b", "ann", 5), ("b", "ann", 9), ("b", "bob", 5), ("c", "ann", 5)]

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        for number, (limit_id, group, start) in enumerate([keys[2], keys[0], keys[3], keys[1]]):
            writer.append([make_record(number, 1, id=limit_id, group=group, period_start=start)])
            # Sums of one read have no order.
            ledger = make_ledger()
            ledger.read_spool()
        await ledger.seal_batch()
        assert [(key.limit_id, key.group, key.period_start) for key, _ in ledger._state.batch] == keys

    assert run_ledger(bootstrapped_url, tmp_path, steps) == []


def test_corrected_costs_change_the_ledger_by_the_difference(bootstrapped_url: Secret, tmp_path: Path):
    def correct(number: int, cost: int, before: int | None) -> NewFrame:
        fields = {
            "cost_nanodollars": cost,
            "previous_cost_nanodollars": before,
            "limits": {"budgets": [{**BUDGET, "type": "cost"}]},
        }
        return NewFrame(spool.AMEND, uuid.UUID(int=number).bytes, msgspec.json.encode(fields))

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append([make_record(1, 10, type="cost"), make_record(2, 20, type="cost")])
        writer.append([correct(1, 10, 3), correct(2, 1, 3), correct(3, 5, None)])
        await fold(make_ledger())

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert (row["requests"], row["tokens"], row["nanodollars"]) == (2, 30, 6 + 7 - 2 + 5)
    # The counters of the data plane add only these differences.
    assert row["corrected_nanodollars"] == 7 - 2 + 5


def test_nodes_learn_how_many_workers_all_of_them_have(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counts: list[int] = []
    shares: list[tuple[bool, int]] = []

    async def steps(writer: SpoolWriter, make_ledger: Any, folder: Path) -> None:
        async def report(workers: int, *, is_new: bool = False) -> UsageLedger:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            ledger = make_ledger()
            ledger._worker_count = workers
            await ledger.report_workers()
            count, seen_ms, start = map(int, (folder / MEMBERS_FILE).read_text().split())
            counts.append(count)
            shares.append((seen_ms > 0, start))
            return ledger

        ledger = await report(2, is_new=True)
        await report(3)
        # Deletes the state, so that this ledger acts as another node.
        late = await report(4, is_new=True)
        late._report_due = 0.0
        began = usage_ledger.now()
        await late.report_workers()
        *_, start = map(int, (folder / MEMBERS_FILE).read_text().split())
        # The other nodes do not know this node yet, so it gets no share of windows that have already begun.
        assert start == 0 if shares[-1][1] == 0 else began < start <= began + usage_ledger.JOIN_MS
        monkeypatch.setattr(usage_ledger, "NODE_EXPIRY_MS", -1000)
        await report(4)
        # The node has reported only its worker count so far. Usage that it adds now counts once.
        writer.append([make_record(1, 10)])
        await fold(ledger)

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert counts == [2, 3, 7, 4]
    # A SQLite database has only one node. The other nodes already know a restarted node.
    is_shared = not bootstrapped_url.reveal().startswith("sqlite")
    never = usage_ledger.NEVER_MS if is_shared else 0
    assert shares == [(is_shared, never), (is_shared, 0), (is_shared, never), (is_shared, never)]
    assert row["tokens"] == 10


def test_usage_that_the_database_rejects_does_not_stop_the_ledger(
    bootstrapped_url: Secret, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    dropped: list[int] = []

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append([make_record(1, 1), make_record(2, 2, group="a\0b"), make_record(3, 4, id="b" * 300)])
        ledger = make_ledger()
        await fold(ledger)
        writer.append([make_record(4, 8)])
        await fold(ledger)
        # Another process adds nothing again.
        await fold(make_ledger())
        dropped.append(ledger._figures.dropped_limit_usage)

    rows = run_ledger(bootstrapped_url, tmp_path, steps)
    # SQLite accepts any text.
    rejected = 0 if bootstrapped_url.reveal().startswith("sqlite") else 2
    assert (len(rows), dropped) == (3 - rejected, [rejected])
    assert [row["tokens"] for row in rows if row["value_key"] == "ann" and row["limit_id"] == "b"] == [9]
    assert sum("is lost" in record.message for record in caplog.records) == rejected


def test_sums_beyond_64_bits_are_clamped(bootstrapped_url: Secret, tmp_path: Path):
    most = 2**63 - 1

    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        ledger = make_ledger()
        for number in range(3):
            # The first two are in one batch, the others in batches of their own.
            writer.append([make_record(number, most), make_record(number + 10, 5, group="bob")])
            if number > 0:
                await fold(ledger)
        async with ledger._database.write_transaction() as connection:
            await connection.execute(update(limit_usage).values(tokens=most))
        writer.append([make_record(20, most), make_record(21, 5, group="bob")])
        await fold(ledger)

    rows = run_ledger(bootstrapped_url, tmp_path, steps)
    assert {row["value_key"]: (row["tokens"], row["requests"]) for row in rows} == {
        "ann": (MAX_AMOUNT, 4),
        "bob": (MAX_AMOUNT, 4),
    }


def test_entries_of_past_periods_are_deleted(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def steps(writer: SpoolWriter, make_ledger: Any, _folder: Path) -> None:
        writer.append([make_record(1, 10), make_record(2, 10, period_start=9), make_record(3, 10, group="bob")])
        ledger = make_ledger()
        await fold(ledger)
        await ledger.prune()
        async with ledger._database.read_connection() as connection:
            assert len((await connection.execute(select(limit_usage.c.id))).all()) == 3
        monkeypatch.setattr(usage_ledger, "PRUNE_AGE_MS", -1000)
        await ledger.prune()

    (row,) = run_ledger(bootstrapped_url, tmp_path, steps)
    assert row["period_start"] == 9
