"""Log exports: states, fields, rows, signed links, and who sees which export."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import duckdb
import pandas as pd
import pytest
from sqlalchemy import select, update

from penstock.errors import InvalidError
from penstock.job_loop import stop_jobs
from penstock.jobs.log_exports import ExportStoppedError
from penstock.log_api.exports import EXPORT_FIELDS
from penstock.log_api.filters import MAX_NUMBER, parse_filters
from penstock.logs.engines.protocol import LogEngineError
from penstock.store.job_tables import files, log_exports
from tests.unit.resources.logged import LocalLogs, open_workspace, run_logged
from tests.unit.resources.test_logs import join_workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

SCOPES = ["logs.export", "logs.list", "completions.write"]
FIELDS = ["id", "ai_model", "cost", "request", "response", "metadata", "created_at"]


@pytest.fixture(autouse=True)
def file_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("penstock.settings.Settings.files_folder", str(tmp_path / "files"))
    return tmp_path / "files"


@asynccontextmanager
async def running_exporter(api: ManagementClient) -> AsyncIterator[None]:
    """Runs the background job of exports."""
    task = asyncio.ensure_future(api.dependency("log_exporter").run())
    try:
        yield
    finally:
        await stop_jobs([task])


async def wait_for_status(client: ManagementClient, export_id: str, *statuses: str) -> Any:
    actual: Any = None
    for _ in range(400):
        actual = await client.request_ok("GET", f"logs/exports/{export_id}")
        if actual["status"] in statuses:
            return actual
        await asyncio.sleep(0.02)
    raise AssertionError(actual)


async def create_exporting_key(api: ManagementClient, name: str = "w") -> tuple[dict[str, str], ManagementClient]:
    home = await open_workspace(api, name)
    _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=SCOPES)
    return home, client


async def create_export(client: ManagementClient, **fields: Any) -> str:
    body = {"filters": {}, "requested_data": FIELDS, **fields}
    return (await client.request_ok("POST", "logs/exports", body))["id"]


async def download(api: ManagementClient, client: ManagementClient, export_id: str) -> list[dict[str, Any]]:
    url = urlsplit((await client.request_ok("GET", f"logs/exports/{export_id}/download"))["signed_url"])
    assert url.path == f"/v1/logs/exports/{export_id}/file"
    response = await api.with_key("").fetch(f"{url.path}?{url.query}")
    assert response.status == 200
    assert response.headers["content-length"] == str(len(response.body))
    return [json.loads(line) for line in response.body.splitlines()]


def test_export_writes_the_requested_fields_of_matching_logs(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        other = await open_workspace(api, "other")
        logs.record(**other)
        logs.record(**home, ai_model="cheap", cost_nanodollars=1)
        first = logs.record(({"a": 1}, {"b": 2}), **home)
        second = logs.record(({"a": 3}, {"b": 4}), **home, after=timedelta(seconds=1), ai_model="o3")
        export = await client.request_ok(
            "POST",
            "logs/exports",
            {"filters": {"cost_min": 1, "ai_model": "gpt-5,o3"}, "requested_data": FIELDS, "description": "d"},
        )
        assert (export["total"], export["object"]) == (2, "export")
        fetched = await client.request_ok("GET", f"logs/exports/{export['id']}")
        assert (fetched["status"], fetched["description"], fetched["total_records"]) == ("draft", "d", None)
        assert fetched["filters"] == {"cost_min": 1, "ai_model": "gpt-5,o3"}
        assert (fetched["workspace_id"], fetched["requested_data"]) == (home["workspace_id"], FIELDS)
        await client.expect_error(409, "it is draft", "GET", f"logs/exports/{export['id']}/download")
        async with running_exporter(api):
            started = await client.request_ok("POST", f"logs/exports/{export['id']}/start")
            assert started["object"] == "export"
            done = await wait_for_status(client, export["id"], "success", "failed")
        assert (done["status"], done["total_records"], done["error"]) == ("success", 2, None)
        rows = await download(api, client, export["id"])
        assert [row["id"] for row in rows] == [second, first]
        assert list(rows[0]) == FIELDS
        assert {name: rows[0][name] for name in ("ai_model", "cost", "request", "response")} == {
            "ai_model": "o3",
            "cost": 2,
            "request": {"a": 3},
            "response": {"b": 4},
        }
        await client.expect_error(409, "it is success", "POST", f"logs/exports/{export['id']}/start")
        await client.expect_error(409, "it is success", "POST", f"logs/exports/{export['id']}/cancel")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_only_drafts_can_be_changed_and_stopped_exports_start_again(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.jobs.log_exports.MAX_UNAVAILABLE_SECONDS", 0.0)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        logs.record(**home)
        export_id = await create_export(client)
        change = {"filters": {"status_code": "500"}, "requested_data": ["id"], "workspace_id": home["workspace_slug"]}
        assert (await client.request_ok("PUT", f"logs/exports/{export_id}", change))["total"] == 0
        assert (await client.request_ok("PUT", f"logs/exports/{export_id}", {"filters": {}}))["total"] == 1
        read = await client.request_ok("GET", f"logs/exports/{export_id}")
        assert read["requested_data"] == ["id"]
        await client.request_ok("PUT", f"logs/exports/{export_id}", read)
        changed = {"filters": {}, "created_by": "someone"}
        await client.expect_error(400, "created_by cannot be changed", "PUT", f"logs/exports/{export_id}", changed)
        await client.request_ok("POST", f"logs/exports/{export_id}/start")
        await client.expect_error(409, "it is in_progress", "PUT", f"logs/exports/{export_id}", {"filters": {}})
        await client.request_ok("POST", f"logs/exports/{export_id}/cancel")
        assert (await client.request_ok("GET", f"logs/exports/{export_id}"))["status"] == "stopped"
        async with running_exporter(api):
            logs.failure = LogEngineError("it is not open")
            await client.request_ok("POST", f"logs/exports/{export_id}/start")
            failed = await wait_for_status(client, export_id, "failed")
            assert "it is not open" in failed["error"]
            logs.failure = None
            await client.request_ok("POST", f"logs/exports/{export_id}/start")
            assert (await wait_for_status(client, export_id, "success", "failed"))["error"] is None

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_page_of_a_large_export_has_its_rows(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.jobs.log_exports.PAGE_SIZE", 3)
    monkeypatch.setattr("penstock.jobs.log_exports.SKIPPED_PAGE_SIZE", 4)
    monkeypatch.setattr("penstock.jobs.log_exports.MAX_ROWS", 8)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        created = [logs.record(**home, after=timedelta(seconds=number)) for number in range(10)][::-1]
        async with running_exporter(api):
            for filters, expected in (
                ({}, created[:8]),
                ({"page_size": 4, "current_page": 1}, created[4:8]),
                ({"page_size": 4, "current_page": 2}, created[8:]),
                ({"page_size": 9, "current_page": 1}, created[9:]),
            ):
                export_id = await create_export(client, filters=filters, requested_data=["id"])
                await client.request_ok("POST", f"logs/exports/{export_id}/start")
                done = await wait_for_status(client, export_id, "success", "failed")
                assert done["total_records"] == len(expected)
                assert [row["id"] for row in await download(api, client, export_id)] == expected

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_file_is_read_by_duckdb_and_pandas(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        odd = 'line\nbreak \u2028 "quote" 🦩 \0'
        question = {"messages": [{"role": "user", "content": odd}]}
        ids = [logs.record((question, {"n": 1}), **home, metadata={"team": odd}), logs.record(**home)]
        export_id = await create_export(client, requested_data=list(EXPORT_FIELDS))
        async with running_exporter(api):
            await client.request_ok("POST", f"logs/exports/{export_id}/start")
            await wait_for_status(client, export_id, "success")
        rows = {row["id"]: row for row in await download(api, client, export_id)}
        assert rows[ids[0]]["request"] == question
        file = next(path for path in (tmp_path / "files").rglob("*") if path.is_file())
        relation = duckdb.read_json(str(file), format="newline_delimited")
        assert set(relation.columns) == set(EXPORT_FIELDS)
        read_rows = relation.select("id::VARCHAR, metadata.team, response_status_code, created_at").fetchall()
        assert {row[0]: row[1:3] for row in read_rows} == {ids[0]: (odd, 200), ids[1]: (None, 200)}
        assert {row[3].isoformat() for row in read_rows} == {"2026-11-20T12:00:00+00:00"}
        frame = pd.read_json(file, lines=True).set_index("id")
        assert frame.loc[ids[0], "request"] == question
        assert frame["cost"].sum() == sum(row["cost"] for row in rows.values())
        assert str(frame.loc[ids[1], "created_at"].isoformat()) == "2026-11-20T12:00:00+00:00"

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_workspaces_have_their_exports_in_turns(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        exports: dict[str, list[str]] = {}
        for name, count in (("busy", 4), ("second", 2), ("third", 1)):
            home, client = await create_exporting_key(api, name)
            logs.record(**home)
            exports[name] = [await create_export(client, requested_data=["id"]) for _ in range(count)]
            for export_id in exports[name]:
                await client.request_ok("POST", f"logs/exports/{export_id}/start")
        order: list[str] = []
        exporter = api.dependency("log_exporter")
        while row := await exporter._claim_next():
            order.append(row["id"])
        busy, second, third = exports.values()
        assert order == [busy[0], second[0], third[0], busy[1], second[1], *busy[2:]]

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_busy_log_store_delays_an_export(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.jobs.log_exports.RETRY_PAUSE_SECONDS", 0.0, raising=False)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        for number in range(3):
            logs.record(({"n": number}, {}), **home, after=timedelta(seconds=number))
        export_id = await create_export(client, requested_data=["request"])
        await client.request_ok("POST", f"logs/exports/{export_id}/start")
        busy = LogEngineError("other queries are running")
        pages, bodies = fail_first(logs.run, busy, 2), fail_first(logs.get_bodies, busy, 4)
        monkeypatch.setattr(logs, "run", pages)
        monkeypatch.setattr(logs, "get_bodies", bodies)
        exporter = api.dependency("log_exporter")
        row = await exporter._claim_next()
        chunks = [chunk async for chunk in exporter._write_rows(row, [0])]
        assert [json.loads(line)["request"]["n"] for line in b"".join(chunks).splitlines()] == [2, 1, 0]
        # Bodies are read for the workspace, so that other workspaces keep their query slots.
        assert {call.args[2] for call in bodies.await_args_list} == {home["workspace_id"]}

        async def cancel_while_busy(*_: Any) -> None:
            await client.request_ok("POST", f"logs/exports/{export_id}/cancel")
            raise busy

        # An export that waits ends when it is stopped.
        monkeypatch.setattr(logs, "run", cancel_while_busy)
        with pytest.raises(ExportStoppedError):
            await anext(exporter._write_rows(row, [0]))

    run_logged(bootstrapped_url, tmp_path, scenario)


def fail_first(call: Any, error: Exception, count: int) -> AsyncMock:
    """Returns a function that fails the first times, and then does the same as `call`."""
    failures = [error] * count

    async def run(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await call(*arguments)

    return AsyncMock(side_effect=run)


def test_few_bodies_are_in_memory_at_once(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.jobs.log_exports.CONCURRENT_BODIES", 2)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        for number in range(5):
            logs.record(({"n": number}, {"r": number}), **home, after=timedelta(seconds=number))
        export_id = await create_export(client, requested_data=["request", "response"])
        await client.request_ok("POST", f"logs/exports/{export_id}/start")
        exporter = api.dependency("log_exporter")
        row = await exporter._claim_next()
        chunks = [chunk async for chunk in exporter._write_rows(row, [0])]
        assert [len(chunk.splitlines()) for chunk in chunks] == [2, 2, 1]
        first = json.loads(chunks[0].splitlines()[0])
        assert first == {"request": {"n": 4}, "response": {"r": 4}}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_denied_fields_are_rejected(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        export_id = await create_export(client)
        denied = {"export_settings": {"deniedFields": ["request", "metadata"]}}
        await api.request_ok("PUT", "admin/organisation/settings", denied)
        actual = await client.request_ok("GET", f"logs/exports/field-restrictions?workspace_id={home['workspace_id']}")
        assert actual["deniedFields"] == ["request", "metadata"]
        assert "request" not in actual["allowedFields"]
        body = {"filters": {}, "requested_data": FIELDS}
        await client.expect_error(403, "requested_data[3] 'request' may not", "POST", "logs/exports", body)
        await client.expect_error(403, "requested_data[3]", "PUT", f"logs/exports/{export_id}", {"filters": {}})
        # An export that was created before the rule cannot be started either.
        await client.expect_error(403, "requested_data[3]", "POST", f"logs/exports/{export_id}/start")
        await create_export(client, requested_data=["id"])

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_problems_of_an_export_are_reported(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        _, client = await create_exporting_key(api)
        body = {"filters": {"status_code": "x", "cost_min": 2, "cost_max": 1}, "requested_data": ["id"]}
        status, response, _ = await client("POST", "logs/exports", body)
        assert status == 400
        paths = {problem["path"] for problem in response["data"]["errors"]}
        assert paths == {"filters.status_code", "filters.cost_min"}
        await client.expect_error(400, "requested_data", "POST", "logs/exports", {"filters": {}})
        await client.expect_error(
            400, "colour", "POST", "logs/exports", {"filters": {"colour": 1}, "requested_data": ["id"]}
        )
        far = {"filters": {"page_size": 50_000, "current_page": 21}, "requested_data": ["id"]}
        await client.expect_error(400, "skips 1,050,000 logs", "POST", "logs/exports", far)
        await client.expect_error(404, "no object", "GET", "logs/exports/x")

    run_logged(bootstrapped_url, tmp_path, scenario)


@pytest.mark.parametrize("name", ["cost_min", "weighted_feedback_max", "total_units_min"])
def test_filters_that_are_no_numbers_are_rejected(name: str):
    with pytest.raises(InvalidError) as caught:
        parse_filters({name: math.nan}, "filters.")
    assert [(problem.path, problem.message[:15]) for problem in caught.value.problems] == [
        (f"filters.{name}", "is not a number")
    ]
    # An infinite number is as good as the largest one.
    _, parsed = parse_filters({name: math.inf})
    assert int(parsed[name]) == MAX_NUMBER


def test_link_ends_and_cannot_be_changed(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, client = await create_exporting_key(api)
        _, other_client = await create_exporting_key(api, "other")
        logs.record(**home)
        export_id = await create_export(client, requested_data=["id"])
        async with running_exporter(api):
            await client.request_ok("POST", f"logs/exports/{export_id}/start")
            await wait_for_status(client, export_id, "success")
        url = urlsplit((await client.request_ok("GET", f"logs/exports/{export_id}/download"))["signed_url"])
        anyone = api.with_key("")
        assert (await anyone.fetch(f"{url.path}?{url.query}")).status == 200
        expires, signature = (part.partition("=")[2] for part in url.query.split("&"))
        for query in (
            f"expires={int(expires) + 1}&signature={signature}",
            f"expires={expires}&signature={'0' * 64}",
            f"expires={expires}&signature=%C3%A9",
        ):
            assert (await anyone.fetch(f"{url.path}?{query}")).status == 403
        for path in (url.path.replace(export_id, other_client.key[:8]), url.path.replace(export_id, export_id[::-1])):
            assert (await anyone.fetch(f"{path}?{url.query}")).status == 403
        await other_client.expect_error(404, "no object", "GET", f"logs/exports/{export_id}/download")
        # The file is not among those of the workspace, and other routes do not reach it.
        assert (await client.request_ok("GET", "files"))["data"] == []
        async with api.database.read_connection() as connection:
            file_id = await connection.scalar(select(log_exports.c.file_id))
        assert (await client("GET", f"files/gw_file_{file_id}/content"))[0] == 404
        moment = int(expires) * 1000
        with monkeypatch.context() as patch:
            patch.setattr("penstock.log_api.exports.now", lambda: moment)
            assert (await anyone.fetch(f"{url.path}?{url.query}")).status == 403
        async with api.database.write_transaction() as connection:
            await connection.execute(update(files).values(expires_at=1))
        await client.expect_error(404, "has expired", "GET", f"logs/exports/{export_id}/download")
        assert (await anyone.fetch(f"{url.path}?{url.query}")).status == 403

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_key_of_a_user_sees_own_exports_and_own_logs(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, service = await create_exporting_key(api)
        user, _ = await join_workspace(api, home["workspace_id"], "manager")
        _, manager = await api.create_key(
            "workspace/user", workspace_id=home["workspace_id"], user_id=user, scopes=SCOPES
        )
        own = logs.record(**home, user_id=user)
        (person,) = [row for row in (await api.request_ok("GET", "admin/users"))["data"] if row["id"] == user]
        with_token = logs.record(**home, user_id=person["email"].lower())
        logs.record(**home)
        theirs = await create_export(service)
        flags = {"security_settings": {"managersViewAllData": False}}
        await api.request_ok("PUT", f"workspaces/{home['workspace_id']}", flags)
        manager.clear_caller_cache()
        mine = await create_export(manager, requested_data=["id"])
        listed = await manager.request_ok("GET", "logs/exports")
        assert [row["id"] for row in listed["data"]] == [mine]
        assert {row["id"] for row in (await service.request_ok("GET", "logs/exports"))["data"]} == {mine, theirs}
        await manager.expect_error(404, "no object", "GET", f"logs/exports/{theirs}")
        async with running_exporter(api):
            await manager.request_ok("POST", f"logs/exports/{mine}/start")
            await wait_for_status(manager, mine, "success")
        assert {row["id"] for row in await download(api, manager, mine)} == {own, with_token}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_file_is_only_for_callers_that_may_see_its_logs(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, _ = await create_exporting_key(api)
        user, _ = await join_workspace(api, home["workspace_id"], "manager")
        _, manager = await api.create_key(
            "workspace/user", workspace_id=home["workspace_id"], user_id=user, scopes=SCOPES
        )
        logs.record(**home)
        export_id = await create_export(manager)
        path = f"logs/exports/{export_id}/download"
        async with running_exporter(api):
            await manager.request_ok("POST", f"logs/exports/{export_id}/start")
            await wait_for_status(manager, export_id, "success")
        await manager.request_ok("GET", path)
        await api.request_ok("GET", path)

        async def set_flags(**flags: bool) -> None:
            await api.request_ok("PUT", f"workspaces/{home['workspace_id']}", {"security_settings": flags})
            manager.clear_caller_cache()

        await set_flags(managersViewAllData=False)
        await manager.expect_error(403, "logs of other users", "GET", path)
        await api.request_ok("GET", path)
        await set_flags(managersViewAllData=True, managersViewLogs=False)
        await manager.expect_error(403, "its settings forbid it", "GET", path)
        await set_flags(managersViewLogs=True, organisationAdminsViewLogs=False)
        await api.expect_error(403, "its settings forbid it", "GET", path)
        assert (await api.request_ok("GET", f"logs/exports/{export_id}"))["status"] == "success"
        await manager.request_ok("GET", path)

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_draft_that_an_admin_updated_shows_a_restricted_creator_no_other_logs(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, _ = await create_exporting_key(api)
        user, _ = await join_workspace(api, home["workspace_id"], "manager")
        _, manager = await api.create_key(
            "workspace/user", workspace_id=home["workspace_id"], user_id=user, scopes=SCOPES
        )
        flags = {"security_settings": {"managersViewAllData": False}}
        await api.request_ok("PUT", f"workspaces/{home['workspace_id']}", flags)
        manager.clear_caller_cache()
        logs.record(**home)
        export_id = await create_export(manager)
        change = {"filters": {}, "description": "reviewed"}
        assert (await api.request_ok("PUT", f"logs/exports/{export_id}", change))["total"] == 1
        async with running_exporter(api):
            await manager.request_ok("POST", f"logs/exports/{export_id}/start")
            await wait_for_status(manager, export_id, "success")
        await manager.expect_error(403, "logs of other users", "GET", f"logs/exports/{export_id}/download")
        await api.request_ok("GET", f"logs/exports/{export_id}/download")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_organisation_key_exports_the_default_workspace(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home = await open_workspace(api)
        default = next(row for row in (await api.request_ok("GET", "workspaces"))["data"] if row["is_default"])
        for fields, expected in (
            ({}, default["id"]),
            ({"workspace_id": home["workspace_slug"]}, home["workspace_id"]),
            ({"filters": {"workspace_slug": home["workspace_slug"]}}, home["workspace_id"]),
        ):
            export_id = await create_export(api, **fields)
            assert (await api.request_ok("GET", f"logs/exports/{export_id}"))["workspace_id"] == expected
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=SCOPES)
        body = {"filters": {}, "requested_data": ["id"], "workspace_id": default["id"]}
        await client.expect_error(403, "is not open to this key", "POST", "logs/exports", body)
        listed = await api.request_ok("GET", f"logs/exports?workspace_id={home['workspace_slug']}&page_size=1")
        assert (listed["total"], len(listed["data"]), listed["object"]) == (2, 1, "list")

    run_logged(bootstrapped_url, tmp_path, scenario)
