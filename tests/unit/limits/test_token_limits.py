"""Limits that tokens carry: they are stored as they are seen, listed, reset, and send alerts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import insert, select, update

from penstock.errors import UnavailableError
from penstock.ids import new_id
from penstock.jobs.usage_alerts import mark_used_groups
from penstock.jobs.usage_ledger import UsageLedger
from penstock.limits import token_limits as token_limits_module
from penstock.metrics import MetricsStore
from penstock.schemas import now
from penstock.settings import Records, Settings
from penstock.store.limit_tables import limit_usage, token_limits
from tests.unit.resources.management_api import management_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.kit.tenant_session import Services
    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

FAR = 4_000_000_000_000


def describe_token(workspace: dict[str, Any], user: str = "ann", **changes: Any) -> dict[str, Any]:
    """Returns a token as a worker reports it: with a budget of ten requests, and a rate limit."""
    limit_id = f"token:{workspace['organisation_id']}:{user.strip(chr(0))}"
    budget = {"limit_id": f"{limit_id}:usage:requests:", "type": "requests", "limit": 10, "alert": 5, "unit": None}
    rate = {"limit_id": f"{limit_id}:rate:tokens:minute", "type": "tokens", "limit": 90, "alert": None}
    limits = [
        {**budget, "period_start": 5, "period_end": FAR, **changes},
        {**rate, "unit": "minute", "period_start": None, "period_end": None},
    ]
    return {
        "organisation_id": workspace["organisation_id"],
        "workspace_id": workspace["id"],
        "user": user,
        "limits": limits,
    }


class LedgerSteps:
    """Ledger of a node whose only worker reports tokens."""

    def __init__(self, api: ManagementClient, folder: Path) -> None:
        self.api, self.services = api, api.app.state["services"]
        self.workers = MetricsStore()
        settings = Settings(records=Records(path=str(folder / "records.jsonl")))
        self.ledger = UsageLedger(settings, self.services, workers=self.workers)

    async def report(self, *tokens: dict[str, Any]) -> None:
        self.workers.accept_push(msgspec.json.encode({"worker": 0, "pid": 1, "tokens": tokens}))
        await self.ledger.store_token_limits()

    async def rows(self) -> list[dict[str, Any]]:
        async with self.services.database.read_connection() as connection:
            query = select(token_limits).order_by(token_limits.c.limit_id, token_limits.c.workspace_id)
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def set_usage(self, workspace: dict[str, Any], requests: int) -> str:
        """Sets the usage of the budget of `ann`; returns the id of the limit."""
        limit_id = describe_token(workspace)["limits"][0]["limit_id"]
        key = {"limit_id": limit_id, "value_key": "", "period_start": 5}
        counts = {"requests": requests, "tokens": 0, "nanodollars": 0, "updated_at": now()}
        flags = {"is_threshold_alert_sent": False, "is_exhausted_alert_sent": False, "status": "active", "resets": 0}
        async with self.services.database.write_transaction() as connection:
            done = await connection.execute(update(limit_usage).filter_by(**key).values(counts))
            if not done.rowcount:
                row = {"id": new_id(), "measure": "requests", **key, **counts, **flags}
                await connection.execute(insert(limit_usage).values(row))
        return limit_id

    async def usage(self, api: ManagementClient | None = None) -> list[dict[str, Any]]:
        listed = await (api or self.api).request_ok("GET", "limits/usage")
        return [row for row in listed["data"] if row["kind"] == "token"]


def run(url: Secret, folder: Path, steps: Any) -> None:
    async def run_steps() -> None:
        async with management_client(url) as api:
            await steps(LedgerSteps(api, folder), api)

    asyncio.run(run_steps())


async def mark(services: Services, limit_id: str) -> list[dict[str, Any]]:
    found: AsyncIterator[Any] = mark_used_groups(services, [limit_id])
    return [alert.to_json() async for alerts in found for alert in alerts]


def test_limits_are_stored_as_they_were_seen_last(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        first, second = (await api.create_workspace(), await api.create_workspace())
        gone = {**first, "id": new_id()}
        await ledger.report(describe_token(first), describe_token(second), describe_token(gone))
        assert [row["amount"] for row in await ledger.rows()] == [90, 90, 10, 10]
        await ledger.report(describe_token(first, limit=20), describe_token(first, "bob\0"))
        rows = {(row["user_name"], row["workspace_id"], row["kind"]): row for row in await ledger.rows()}
        assert rows["ann", first["id"], "usage"]["amount"] == 20
        assert rows["ann", second["id"], "usage"]["amount"] == 10
        assert rows["bob\N{REPLACEMENT CHARACTER}", first["id"], "usage"]["alert"] == 5

    run(bootstrapped_url, tmp_path, steps)


def test_unchanged_limits_are_rarely_written(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        await ledger.report(describe_token(workspace))
        before = await ledger.rows()
        await ledger.report(describe_token(workspace))
        assert await ledger.rows() == before
        monkeypatch.setattr(token_limits_module, "REFRESH_MS", -1)
        await asyncio.sleep(0.002)
        await ledger.report(describe_token(workspace))
        assert all(new["seen_at"] > old["seen_at"] for new, old in zip(await ledger.rows(), before, strict=True))
        # Nobody has seen the limits for long.
        monkeypatch.setattr(token_limits_module, "FORGET_MS", -1000)
        await ledger.ledger.prune()
        assert await ledger.rows() == []

    run(bootstrapped_url, tmp_path, steps)


def test_budgets_of_tokens_are_listed_and_reset(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        here, there = (await api.create_workspace(), await api.create_workspace())
        scopes = {"name": "k", "scopes": ["policies.list", "policies.update"]}
        key = await api.request_ok("POST", "api-keys/workspace/service", {**scopes, "workspace_id": here["id"]})
        in_workspace = api.with_key(key["key"])
        await ledger.report(describe_token(here))
        limit_id = await ledger.set_usage(here, 9)
        (row,) = await ledger.usage(in_workspace)
        expected = {"limit_id": limit_id, "owner_name": "ann", "value_key": "", "type": "requests", "credit_limit": 10}
        assert {**row, **expected, "current_usage": 9, "alert_threshold": 5, "used_percent": 90} == row
        assert row["next_usage_reset_at"].startswith("2096")
        path = f"limits/tokens/{row['owner_id']}/reset"
        await in_workspace.request_ok("PUT", path)
        assert [row["current_usage"] for row in await ledger.usage()] == [0]
        async with ledger.services.database.read_connection() as connection:
            assert await connection.scalar(select(limit_usage.c.resets)) == 1
        # The budget is the same in all workspaces, so a key of one of them must not reset it once others use it.
        await ledger.report(describe_token(there))
        assert len(await ledger.usage()) == len(await ledger.usage(in_workspace)) == 1
        await in_workspace.expect_error(409, "other workspaces", "PUT", path)
        await api.request_ok("PUT", path)
        await api.expect_error(404, "no token has a budget", "PUT", f"limits/tokens/{new_id()}/reset")
        rates = [row["id"] for row in await ledger.rows() if row["kind"] == "rate"]
        await api.expect_error(404, "no token has a budget", "PUT", f"limits/tokens/{rates[0]}/reset")

    run(bootstrapped_url, tmp_path, steps)


def test_usage_of_a_past_period_is_not_listed(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        await ledger.report(describe_token(workspace, period_end=now() - 1))
        await ledger.set_usage(workspace, 9)
        assert await ledger.usage() == []
        await ledger.report(describe_token(workspace, period_start=7))
        assert await ledger.usage() == []
        await ledger.report(describe_token(workspace))
        assert len(await ledger.usage()) == 1

    run(bootstrapped_url, tmp_path, steps)


def test_budgets_of_tokens_send_alerts_once(bootstrapped_url: Secret, tmp_path: Path):
    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        events: list[list[str]] = []
        for requests in (5, 6, 10, 11):
            limit_id = await ledger.set_usage(workspace, requests)
            # Until a worker has reported the limit, nobody knows its threshold.
            await ledger.report(describe_token(workspace))
            alerts = await mark(ledger.services, limit_id)
            events.append([alert["event"] for alert in alerts])
            assert all((alert["kind"], alert["owner_name"]) == ("token", "ann") for alert in alerts)
        assert events == [["limit.threshold"], [], ["limit.exhausted"], []]
        # A token with a higher limit makes the budget active again.
        await ledger.report(describe_token(workspace, limit=30))
        assert limit_id in ledger.services.changed_budgets
        assert await mark(ledger.services, limit_id) == []
        assert [row["status"] for row in await ledger.usage()] == ["active"]

    run(bootstrapped_url, tmp_path, steps)


def test_failed_write_is_repeated(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: object) -> None:
        raise UnavailableError("the store is away")

    async def steps(ledger: LedgerSteps, api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        with monkeypatch.context() as patch:
            patch.setattr(token_limits_module, "_upsert", fail)
            with pytest.raises(UnavailableError):
                await ledger.report(describe_token(workspace))
        await ledger.report(describe_token(workspace))
        assert len(await ledger.rows()) == 2

    run(bootstrapped_url, tmp_path, steps)
