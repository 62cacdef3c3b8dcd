"""Hostile values in queries of logs and analytics: none is an internal error, and none widens a query."""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from penstock.log_api.filters import DESCRIPTIONS, RANGES
from penstock.logs.engines.lists import MAX_TRACE_RECORDS, MAX_TREE_DEPTH
from penstock.logs.query import GroupColumn
from tests.unit.resources.logged import LocalLogs, open_workspace, run_logged
from tests.unit.resources.test_logs import WRITE_SCOPES, create_workspace_key

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

# Values that end a string of C, are no UTF-8, look like SQL, like a pattern or like a placeholder, or are very long.
TEXTS = [
    "%00",
    "a%00b",
    "%FF%FE",
    "%ED%A0%80",
    quote("' OR 1=1 --"),
    quote('") OR true OR ("'),
    "$p0",
    quote("{p0:String}"),
]
TEXTS += [quote("(a+)+$" * 40), quote(".*"), "%25", "%5C", "*", "x" * 4000, quote("🦩" * 300), "NULL", ","]
NUMBERS = ["1e999", "inf", "nan", "-0.0", "9" * 400, "1" + "0" * 30, "0x10", "%00", "-9223372036854775809"]
TIMES = ["0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "%00", "nan", "9" * 30, "2026-11-20T25:00:00Z"]
METADATA = [
    quote(text) for text in ("[]", '{"a": {"b": 1}}', '{"a": "b\\u0000"}', '{"\\u0000": "x"}', '{"a": []}', "{" * 500)
]
METADATA += [quote('{"a": "\\ud800"}'), quote('{"' + "k" * 600 + '": "v"}'), quote('{"$p0": "x", "a]": "b", "": ""}')]
PATHS = ["%00", "..%2F..", "%FF", "x" * 3000, "0" * 64, quote("' OR 1=1 --"), "%F0%9F%A6%A9", str(uuid.UUID(int=0))]


def values_of(name: str) -> list[str]:
    """Returns hostile values for a filter."""
    if name == "metadata":
        return [*METADATA, *TEXTS]
    if name.startswith("time_"):
        return TIMES
    return NUMBERS if name.removesuffix("_min").removesuffix("_max") in RANGES else TEXTS


def cursor(text: str) -> str:
    return quote(base64.urlsafe_b64encode(text.encode()).decode())


def test_hostile_filters_find_nothing_and_break_nothing(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, WRITE_SCOPES)
        logs.record(**home)
        paths = [f"{name}={value}" for name in DESCRIPTIONS for value in values_of(name)]
        paths += [f"{name}={value}" for name in ("q", "cursor") for value in TEXTS]
        paths += [f"page_size={value}" for value in NUMBERS]
        widened: list[str] = []
        for query in paths:
            status, body, _ = await reader("GET", f"logs?{query}")
            assert status in {200, 400}, (query, status, body)
            # Nearly all of the values match no record. Limits of numbers and times may be wide.
            name = query.partition("=")[0]
            if status == 200 and body["data"] and not name.endswith("_max") and name != "time_of_generation_min":
                widened.append(query)
        harmless = {"q=%00", "q=%25", "q=%5C", "q=*", "q=,"}
        assert {query for query in widened if not query.endswith("_min=-0.0")} <= harmless, widened

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_hostile_paths_and_parameters_are_client_errors(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, WRITE_SCOPES)
        logs.record(**home)
        paths = [
            f"{start}/{value}" for start in ("logs", "traces", "logs/exports", "analytics/groups") for value in PATHS
        ]
        paths += [f"analytics/groups/metadata/{value}" for value in PATHS]
        paths += [
            f"analytics/graphs/cost?time_zone={value}"
            for value in (*TEXTS, "..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd")
        ]
        paths += [f"logs?workspace_slug={value}" for value in TEXTS]
        paths += [f"analytics/groups/model?{name}={value}" for name in ("columns", "order_by") for value in TEXTS]
        paths += [f"analytics/groups/model?current_page={value}" for value in ("1000000", *NUMBERS)]
        for path in paths:
            status, body, _ = await reader("GET", path)
            assert status < 500, (path, status, body)
        for path in [f"logs?workspace_slug={value}" for value in TEXTS]:
            assert (await api("GET", path))[0] < 500, path

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_forged_cursors_show_no_other_workspace(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, WRITE_SCOPES)
        other_client = await open_workspace(api, "other")
        own = {logs.record(**home) for _ in range(3)}
        for _ in range(3):
            logs.record(**other_client)
        last, first = uuid.UUID(int=2**128 - 1), uuid.UUID(int=0)
        for text in (
            f"{10**15}.{last}",
            f"{2**62}.{last}",
            f"-1.{first}",
            f"{10**400}.{last}",
            f"0.{first}",
            "1.x",
            ".",
            "٣.x",
        ):
            for order in ("asc", "desc"):
                status, body, _ = await reader("GET", f"logs?order={order}&cursor={cursor(text)}")
                assert status in {200, 400}, (text, body)
                assert status == 400 or {row["id"] for row in body["data"]} <= own

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_deep_trace_is_returned(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, WRITE_SCOPES)
        for number in range(MAX_TRACE_RECORDS):
            logs.record(**home, trace_id="deep", span_id=str(number), parent_span_id=str(number - 1))
        trace = await reader.request_ok("GET", "traces/deep")
        depth, level = 0, trace["data"]
        while level:
            depth, level = depth + 1, [child for record in level for child in record["children"]]
        assert (trace["total"], depth) == (MAX_TRACE_RECORDS, MAX_TREE_DEPTH)

    run_logged(bootstrapped_url, tmp_path, scenario)


HOSTILE_LOGS: list[dict[str, Any]] = [
    {"request": {"url": "\0", "body": "\0"}, "response": {"body": None}},
    {
        "request": {"url": "http://[", "body": {"model": "\ud83e\udda9\0"}},
        "response": {"body": {"usage": {"prompt_tokens": 2**70}}},
    },
    {"request": {"url": "x", "body": {"model": ["m"]}}, "response": {"body": {"usage": {"prompt_tokens": -5}}}},
    {"request": {"url": "x", "body": 1e308}, "response": {"body": {"usage": "many"}, "response_time": 1e308}},
    {"request": {"url": "x", "body": 1, "method": "\r\nx"}, "response": {"body": 1, "headers": {"a\0": "b\nc"}}},
    {
        "request": {"url": "x", "body": 1},
        "response": {"body": 1},
        "metadata": {"trace_id": "\0" * 600, "": "", "a" * 5000: "x"},
    },
    {"request": {"url": "x", "body": 1}, "response": {"body": 1}, "metadata": {"a": 10**40, "b": [1], "c": True}},
    {"request": {"url": "x", "body": 1}, "response": {"body": 1}, "metadata": {f"k{n}": "v" for n in range(65)}},
    {"request": {"url": "x", "body": 1}, "response": {"body": 1}, "metadata": {f"k{n}": "v" for n in range(10_000)}},
]


def test_hostile_logs_are_stored_or_rejected_but_stop_no_other(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        _, writer = await create_workspace_key(api, WRITE_SCOPES)
        stored: list[str] = []
        for log in HOSTILE_LOGS:
            status, body, _ = await writer("POST", "logs", log)
            assert status in {200, 400}, (str(log)[:200], body)
            stored += body["ids"] if status == 200 else []
        good = {"request": {"url": "x", "body": {"model": "m"}}, "response": {"body": {}}}
        stored += (await writer.request_ok("POST", "logs", good))["ids"]
        listed = await writer.request_ok("GET", "logs?page_size=100")
        assert sorted(row["id"] for row in listed["data"]) == sorted(stored)
        for log_id in stored:
            await writer.request_ok("GET", f"logs/{log_id}")
        for column in get_args(GroupColumn):
            await writer.request_ok("GET", f"analytics/groups/metadata/a?columns={column}&order_by={column}")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_huge_limit_is_no_missing_limit(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, [*WRITE_SCOPES, "logs.export"])
        logs.record(**home)
        for query in ("cost_min=1e300", "total_units_min=1" + "0" * 30):
            assert (await reader.request_ok("GET", f"logs?{query}"))["data"] == []
        for filters in ({"cost_min": 1e300}, {"total_units_min": 10**30}, {"total_units_min": 2**63}):
            export = {"filters": filters, "requested_data": ["id"]}
            status, body, _ = await reader("POST", "logs/exports", export)
            assert (status, body.get("total", 0)) in {(200, 0), (400, 0)}
        for text in ("1e999", "-1e999", "NaN"):
            status, _, _ = await reader("GET", f"logs?cost_min={text}")
            assert status == 400

    run_logged(bootstrapped_url, tmp_path, scenario)
