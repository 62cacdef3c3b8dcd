"""Request records of batch lines that a provider answered in a batch of its own."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast

from penstock.batches.gateway_batch import BatchDependencies
from penstock.batches.input import BatchLine
from penstock.batches.records import BatchBilling, BatchInfo, CompletedLine
from penstock.logs.record_file import RecordFileConsumer
from penstock.logs.spool_reader import delete_segments, find_recent_segment
from penstock.logs.spool_writer import SpoolWriter
from penstock.logs.spooled_records import SpooledRecords
from penstock.metrics import BatchMetrics
from penstock.settings import Records, Settings

# A value of stored metadata may be longer than one of a request.
METADATA = {"team": "red", "user": "u" * 512}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def make_completed_line(number: int, model: str = "gpt-4o", status: int = 200) -> CompletedLine:
    body = {"model": model, "messages": []}
    line = BatchLine(custom_id=f"mine-{number}", method="POST", url="/v1/chat/completions", body=body)
    return CompletedLine(number, line, {"status_code": status, "request_id": "r", "body": {"usage": USAGE}})


def make_billing(folder: Path, *, enabled: bool = True) -> tuple[BatchBilling, BatchMetrics, SpoolWriter]:
    records = Records(path=str(folder / "records.jsonl"), enabled=enabled)
    settings, figures = Settings(records=records), BatchMetrics()
    nothing = cast("Any", None)
    job = {"provider": "openai", "api_key_id": "k-1"}
    batch = BatchInfo("0199aaaa-0000-7000-8000-000000000001", job, METADATA, 1_760_000_000_000)
    writer = SpoolWriter(settings.spool_folder, "control", "node-1")
    own = SpooledRecords(writer)
    return BatchBilling(batch, BatchDependencies(nothing, nothing, settings, figures, own)), figures, writer


def run_log_worker(folder: Path) -> None:
    """Writes what is in the spool to the record file and deletes what is read, as the log worker does."""
    settings = Settings(records=Records(path=str(folder / "records.jsonl")))
    consumer = RecordFileConsumer(settings.records, settings.spool_folder)
    while consumer.run_once(is_final=True):
        pass
    needed = consumer.follower.first_needed_segment("control")
    consumer.close()
    folder = Path(settings.spool_folder) / "control"
    delete_segments(folder, min(needed, find_recent_segment(folder, time.time() - 600)))


def read_records(folder: Path) -> list[dict[str, Any]]:
    run_log_worker(folder)
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_lines_written_again_are_recorded_once(tmp_path: Path):
    async def scenario() -> None:
        first, figures, writer = make_billing(tmp_path)
        await first.write_records([make_completed_line(1), make_completed_line(2)], is_retry=False)
        assert figures.cost_nanodollars > 0
        # The process died before it stored its progress.
        writer.close()
        run_log_worker(tmp_path)
        second, _, _ = make_billing(tmp_path)
        await second.write_records([make_completed_line(1), make_completed_line(2)], is_retry=True)
        await second.write_records([make_completed_line(3)], is_retry=True)

    asyncio.run(scenario())
    records = read_records(tmp_path)
    assert [record["trace_id"] for record in records] == ["gw_batch_0199aaaa-0000-7000-8000-000000000001"] * 3
    assert len({record["id"] for record in records}) == 3
    assert [record["metadata"] for record in records] == [METADATA] * 3
    assert records[0]["cost_nanodollars"] == records[1]["cost_nanodollars"] > 0
    assert (records[0]["ai_org"], records[0]["api_key_id"], records[0]["total_units"]) == ("openai", "k-1", 15)


def test_model_without_a_price_has_no_cost(tmp_path: Path):
    first, figures, _ = make_billing(tmp_path)
    asyncio.run(first.write_records([make_completed_line(1, "made-up")], is_retry=False))
    assert (read_records(tmp_path)[0]["cost_nanodollars"], figures.cost_nanodollars) == (None, 0)


def test_disabled_records_write_no_file(tmp_path: Path):
    first, _, _ = make_billing(tmp_path, enabled=False)
    asyncio.run(first.write_records([make_completed_line(1)], is_retry=False))
    assert list(tmp_path.iterdir()) == []
