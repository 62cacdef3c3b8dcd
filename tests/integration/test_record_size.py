"""Bytes that a record takes in the log store: records of real requests, repeated with other ids, times and figures."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import TYPE_CHECKING, Any

from penstock.logs.batch import Position, RecordBatch
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.unit.logs.conftest import open_duckdb
from tests.unit.logs.samples import make_id

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

MAX_RECORD_BYTES = 100
REQUESTS, ROWS, BATCH_ROWS = 40, 40_000, 10_000
KEYS, USERS, FAILURE_SHARE = 20, 500, 0.02
PRICES = {"request_token": {"price": 0.000015}, "response_token": {"price": 0.00006}}
DAY = dt.datetime(2026, 11, 2, tzinfo=dt.UTC)
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "OpenAI/Python 2.8.1",
    "x-gateway-provider": "@main",
    "x-stainless-arch": "x64",
    "x-stainless-async": "false",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "x-stainless-package-version": "2.8.1",
    "x-stainless-read-timeout": "600",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.9",
}
FIGURES = (
    *("response_time", "time_to_first_byte", "upstream_response_time", "gateway_processing_time"),
    *("request_parsing_time", "pre_processing_time", "authentication_time", "limit_check_time"),
)


def read_templates(folder: Path, mock: Mock) -> list[dict[str, Any]]:
    """Returns the records of real requests, whose bodies are not stored."""
    tables = {
        "mock": {"host": mock.url},
        "records": {"bodies": False},
        "keys": [{"name": f"key {number}", "id": f"k-{number}", "key": f"pk-{number:010}"} for number in range(KEYS)],
        "providers": [{"slug": "main", "provider": "mock", "api_key": "sk-0123456789"}],
        "prices": [{"provider": "mock", "model": "mock", "pay_as_you_go": PRICES}],
    }
    with run_gateway(folder, tables) as gateway:
        for number in range(REQUESTS):
            metadata = {"_user": f"user-{number}", "team": f"team-{number % 7}", "environment": "production"}
            headers = {"x-gateway-api-key": f"pk-{number % KEYS:010}", "x-gateway-metadata": json.dumps(metadata)}
            model = "mock?fault=reset" if number == 0 else "mock"
            send_raw_request(
                gateway.base_url, CHAT_PATH, chat_body(model, stream=number % 2 == 1), {**HEADERS, **headers}
            )
        return gateway.records(REQUESTS)


def vary(template: dict[str, Any], source: random.Random, moment: dt.datetime) -> bytes:
    """Returns a record line with another id, time, user, and other figures."""
    name = str(make_id(moment, source))
    scale = source.lognormvariate(0, 0.6)
    record = {
        **template,
        "id": name,
        "trace_id": name,
        "created_at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **{key: round(template[key] * scale * source.uniform(0.8, 1.2), 3) for key in FIGURES if key in template},
        "attempts": [
            {**attempt, **{key: round(attempt[key] * source.uniform(0.5, 2), 3) for key in ("start", "duration")}}
            for attempt in template["attempts"]
        ],
    }
    if "req_units" in template:
        units = source.randrange(20, 4000), source.randrange(5, 900)
        cost = units[0] * 150 + units[1] * 600
        record |= {"req_units": units[0], "res_units": units[1], "total_units": sum(units), "cost_nanodollars": cost}
    user = f"user-{source.randrange(USERS)}"
    record |= {"user": user, "metadata": {**template["metadata"], "_user": user}}
    record |= {"bytes_out": source.randrange(300, 6000), "request_bytes": source.randrange(100, 20_000)}
    return json.dumps({**record, "response_bytes": record["bytes_out"]}, separators=(",", ":")).encode()


def test_record_without_bodies_takes_few_bytes(mock: Mock, tmp_path: Path):
    templates = read_templates(tmp_path, mock)
    failed = [record for record in templates if not record["is_success"]]
    good = [record for record in templates if record["is_success"]]
    assert failed
    assert {"request_headers", "attempts", "cost_nanodollars"} <= good[0].keys()
    source = random.Random(7)  # noqa: S311 - the same records each time
    lines = [
        vary(
            source.choice(failed if source.random() < FAILURE_SHARE else good),
            source,
            DAY + dt.timedelta(seconds=86_000 * number / ROWS),
        )
        for number in range(ROWS)
    ]
    engine = open_duckdb(tmp_path / "log store")
    for start in range(0, ROWS, BATCH_ROWS):
        batch = RecordBatch("node", "edge-1", lines[start : start + BATCH_ROWS])
        assert engine.insert(batch, {"edge-1": Position(1, start + 1)}) == 0
    engine.seal_days(DAY + dt.timedelta(days=10))
    engine.close()
    size = sum(path.stat().st_size for path in (tmp_path / "log store" / "days").iterdir()) / ROWS
    print(f"{size:.1f} bytes per record")
    assert size <= MAX_RECORD_BYTES
