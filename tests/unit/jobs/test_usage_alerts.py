"""Alerts of budgets: once for each group and period, to the audit log and to the webhook, also after failures."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, update

from penstock.errors import UnavailableError
from penstock.ids import new_id
from penstock.jobs import usage_alerts, usage_ledger
from penstock.jobs.alert_webhook import AlertWebhook
from penstock.jobs.usage_alerts import mark_used_groups
from penstock.jobs.usage_ledger import UsageLedger
from penstock.limits.rules import integration_counter_id
from penstock.schemas import now
from penstock.settings import Limits, Records, Settings
from penstock.settings.secret import Secret
from penstock.store.limit_tables import limit_usage
from penstock.store.tables import audit_log
from tests.unit.resources.management_api import management_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.jobs.usage_alerts import Alert, AlertedLimit
    from penstock.kit.tenant_session import Services
    from tests.unit.resources.management_api import ManagementClient


class Receiver:
    """Server that answers with the statuses of a list, and then with 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def settings(self) -> Settings:
        url = Secret(f"http://127.0.0.1:{self.server.server_port}/hook?token=secret")
        return Settings(limits=Limits(alert_webhook=url))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    actual = Receiver()
    yield actual
    actual.stop()


async def create_key(api: ManagementClient) -> str:
    limits = {"type": "requests", "credit_limit": 10, "alert_threshold": 5}
    workspace = (await api.create_workspace())["id"]
    body = {"name": "app", "workspace_id": workspace, "scopes": ["completions.write"], "usage_limits": limits}
    return (await api.request_ok("POST", "api-keys/workspace/service", body))["id"]


async def set_usage(
    services: Services, limit_id: str, requests: int, *, is_past: bool = False, group: str = ""
) -> None:
    """Sets the usage in the current period, or in one that ended long ago."""
    async with services.database.write_transaction() as connection:
        (limit,) = await usage_alerts._load_limits(services, [limit_id])
        period = {"limit_id": limit_id, "value_key": group, "period_start": limit.period_start - 10_000 * is_past}
        row = {**period, "measure": "requests", "status": "active"}
        flags = {"is_threshold_alert_sent": False, "is_exhausted_alert_sent": False}
        changed_at = now() - 3_600_000 * is_past
        done = await connection.execute(
            update(limit_usage).filter_by(**period).values(requests=requests, updated_at=changed_at)
        )
        if not done.rowcount:
            counts = {"requests": requests, "tokens": 0, "nanodollars": 0, "resets": 0, "updated_at": changed_at}
            await connection.execute(insert(limit_usage).values(id=new_id(), **row, **flags, **counts))


async def mark_all(services: Services, *limit_ids: str) -> list[Alert]:
    return [alert async for alerts in mark_used_groups(services, limit_ids) for alert in alerts]


def test_each_alert_of_a_key_is_sent_once(bootstrapped_url: Secret):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            key_id = await create_key(api)
            limit_id = f"api_key:{key_id}:usage:requests:"

            async def mark(requests: int) -> list[str]:
                await set_usage(services, limit_id, requests)
                return [alert.to_json()["event"] for alert in await mark_all(services, limit_id)]

            assert await mark(4) == []
            assert [await mark(5), await mark(6)] == [["limit.threshold"], []]
            assert [await mark(10), await mark(12)] == [["limit.exhausted"], []]
            async with services.database.read_connection() as connection:
                rows = (await connection.execute(select(audit_log.c.action))).scalars()
                result = [action for action in rows if "exhaust" in action or "alert" in action]
            assert len(result) == 2, result

    asyncio.run(run())


def test_past_periods_send_no_alerts(bootstrapped_url: Secret):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            limit_id = f"api_key:{await create_key(api)}:usage:requests:"
            await set_usage(services, limit_id, 100, is_past=True)
            await set_usage(services, limit_id, 4)
            assert await mark_all(services, limit_id) == []
            async with services.database.read_connection() as connection:
                assert list((await connection.execute(select(limit_usage.c.status))).scalars()) == ["active"] * 2
            await set_usage(services, limit_id, 10)
            assert [alert.used for alert in await mark_all(services, limit_id)] == [10]

    asyncio.run(run())


def test_limit_that_is_lowered_below_the_usage_sends_an_alert(bootstrapped_url: Secret, tmp_path: Path):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            ledger = UsageLedger(Settings(records=Records(path=str(tmp_path / "records.jsonl"))), services)
            workspace = (await api.create_workspace())["id"]
            limits = {"type": "requests", "credit_limit": 50}
            key = {"name": "app", "workspace_id": workspace, "scopes": ["completions.write"], "usage_limits": limits}
            key_id = (await api.request_ok("POST", "api-keys/workspace/service", key))["id"]
            policy: dict[str, Any] = {"workspace_id": workspace, **limits, "conditions": [], "group_by": []}
            policy |= {"conditions": [{"key": "metadata.a", "value": "b"}], "group_by": [{"key": "metadata.a"}]}
            policy_id = (await api.request_ok("POST", "policies/usage-limits", policy))["id"]
            integration = {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"}
            integration_id = (await api.request_ok("POST", "integrations", integration))["id"]
            shared = {"global_workspace_access": {"enabled": True, "usage_limits": [limits]}}
            await api.request_ok("PUT", "integrations/i/workspaces", shared)
            provider = {"name": "p", "integration_id": "i", "workspace_id": workspace, "usage_limits": limits}
            provider_id = (await api.request_ok("POST", "providers", provider))["id"]
            await api.request_ok("PUT", f"workspaces/{workspace}", {"usage_limits": [limits]})
            counter = integration_counter_id(integration_id, workspace)
            owners = [
                f"api_key:{key_id}",
                f"workspace:{workspace}",
                f"provider:{provider_id}",
                f"integration:{counter}",
            ]
            for limit_id in (policy_id, *(f"{owner}:usage:requests:" for owner in owners)):
                await set_usage(services, limit_id, 20)
            await ledger.mark_groups()
            assert ledger._figures.limit_alerts == 0
            lower = {**limits, "credit_limit": 10}
            shared["global_workspace_access"]["usage_limits"] = [lower]
            for number, (path, body) in enumerate(
                [
                    (f"api-keys/{key_id}", {"usage_limits": lower}),
                    (f"policies/usage-limits/{policy_id}", {"credit_limit": 10}),
                    ("integrations/i/workspaces", shared),
                    ("providers/p", {"usage_limits": lower}),
                    (f"workspaces/{workspace}", {"usage_limits": [lower]}),
                ]
            ):
                await api.request_ok("PUT", path, body)
                await ledger.mark_groups()
                assert ledger._figures.limit_alerts == number + 1, path

    asyncio.run(run())


def test_budgets_of_workspaces_at_integrations_send_alerts(bootstrapped_url: Secret):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            workspace = (await api.create_workspace())["id"]
            integration = {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"}
            integration_id = (await api.request_ok("POST", "integrations", integration))["id"]
            limits = [{"type": "requests", "credit_limit": 10, "alert_threshold": 5}]
            shared = {"enabled": True, "usage_limits": limits}
            await api.request_ok("PUT", "integrations/i/workspaces", {"global_workspace_access": shared})
            provider = {"name": "p", "integration_id": "i", "workspace_id": workspace}
            await api.request_ok("POST", "providers", provider)
            limit_id = f"integration:{integration_counter_id(integration_id, workspace)}:usage:requests:"

            async def mark(requests: int) -> list[dict[str, Any]]:
                await set_usage(services, limit_id, requests)
                return [alert.to_json() for alert in await mark_all(services, limit_id)]

            (alert,) = await mark(5)
            assert (alert["event"], alert["kind"], alert["owner_name"]) == ("limit.threshold", "integration", "i")
            assert alert["workspace_id"] == workspace
            assert [alert["event"] for alert in await mark(10)] == ["limit.exhausted"]
            assert await mark(11) == []
            async with services.database.read_connection() as connection:
                query = select(audit_log.c.action).where(audit_log.c.resource_id == integration_id)
                actions = [action for action in (await connection.execute(query)).scalars() if action != "create"]
            assert len([action for action in actions if "exhaust" in action or "alert" in action]) == 2, actions

    asyncio.run(run())


def test_groups_that_cannot_be_marked_are_tried_again(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            limit_id = f"api_key:{await create_key(api)}:usage:requests:"
            await set_usage(services, limit_id, 10)
            ledger = UsageLedger(Settings(records=Records(path=str(tmp_path / "records.jsonl"))), services)
            requested: list[set[str]] = []

            async def mark(_services: Services, ids: set[str]) -> AsyncIterator[list[Alert]]:
                requested.append(set(ids))
                if len(requested) == 1:
                    message = "the store is away"
                    raise UnavailableError(message)
                yield []

            monkeypatch.setattr(usage_ledger, "mark_used_groups", mark)
            with pytest.raises(UnavailableError):
                await ledger.mark_groups()
            await ledger.mark_groups()
            await ledger.mark_groups()
            assert requested == [{limit_id}, {limit_id}]

    asyncio.run(run())


def test_alerts_of_one_budget_are_sent_if_another_cannot_be_marked(
    bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            keys = [await create_key(api), await create_key(api)]
            for key_id in keys:
                await set_usage(services, f"api_key:{key_id}:usage:requests:", 10)
            ledger = UsageLedger(Settings(records=Records(path=str(tmp_path / "records.jsonl"))), services)
            sent: list[str] = []
            monkeypatch.setattr(ledger.webhook, "add", lambda alerts: sent.extend(a.limit.owner_id for a in alerts))
            mark_groups, marked = usage_alerts._mark_groups, list[str]()

            async def mark(services: Services, limit: AlertedLimit) -> tuple[list[Alert], bool]:
                marked.append(limit.owner_id)
                if len(marked) == 2:
                    message = "the store is away"
                    raise UnavailableError(message)
                return await mark_groups(services, limit)

            monkeypatch.setattr(usage_alerts, "_mark_groups", mark)
            with pytest.raises(UnavailableError):
                await ledger.mark_groups()
            assert sent == marked[:1]
            assert ledger._figures.limit_alerts == 1
            await ledger.mark_groups()
            assert sorted(sent) == sorted(keys)
            assert ledger._figures.limit_alerts == 2

    asyncio.run(run())


def test_more_groups_than_one_transaction_marks_send_alerts(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            limit_id = f"api_key:{await create_key(api)}:usage:requests:"
            groups = [f"g{number}" for number in range(5)]
            for group in groups:
                await set_usage(services, limit_id, 10, group=group)
            monkeypatch.setattr(usage_alerts, "MAX_MARKED", 2)
            sent = [[alert.value_key for alert in alerts] async for alerts in mark_used_groups(services, [limit_id])]
            assert [len(alerts) for alerts in sent] == [2, 2, 1]
            assert sorted(group for alerts in sent for group in alerts) == groups
            assert await mark_all(services, limit_id) == []

    asyncio.run(run())


def test_budget_that_is_spent_from_the_beginning_is_exhausted(bootstrapped_url: Secret, tmp_path: Path):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            ledger = UsageLedger(Settings(records=Records(path=str(tmp_path / "records.jsonl"))), services)
            await ledger.mark_groups()
            workspace = (await api.create_workspace())["id"]
            spent = {"usage_limits": {"credit_limit": 50}, "initial_usage": 60}
            body = {"name": "app", "workspace_id": workspace, "scopes": ["completions.write"], **spent}
            await api.request_ok("POST", "api-keys/workspace/service", body)
            # Workers reject every request of the key, so no record causes the alert.
            await ledger._sync_counters()
            await ledger.mark_groups()
            async with services.database.read_connection() as connection:
                assert await connection.scalar(select(limit_usage.c.status)) == "exhausted"
                actions = (await connection.execute(select(audit_log.c.action))).scalars().all()
            assert len([action for action in actions if "exhaust" in action]) == 1, actions

    asyncio.run(run())


def test_webhook_is_tried_again_and_given_up_at_last(bootstrapped_url: Secret, receiver: Receiver, caplog: Any):
    async def run() -> None:
        async with management_client(bootstrapped_url) as api:
            services: Services = api.app.state["services"]
            key_id = await create_key(api)
            limit_id = f"api_key:{key_id}:usage:requests:"
            await set_usage(services, limit_id, 11)
            webhook = AlertWebhook(receiver.settings)
            webhook.retry_seconds = (0.0,) * 4
            alerts = await mark_all(services, limit_id)
            receiver.statuses = [500, 301]
            webhook.add(alerts)
            await webhook.send_next()
            assert (len(receiver.bodies), webhook.sent, webhook.dropped) == (3, 1, 0)
            body = receiver.bodies[0]
            assert (body["event"], body["owner_id"], body["current_usage"], body["credit_limit"]) == (
                "limit.exhausted",
                key_id,
                11,
                10,
            )
            receiver.statuses = [503] * 4
            webhook.add(alerts)
            await webhook.send_next()
            assert (len(receiver.bodies), webhook.dropped) == (7, 1)

    asyncio.run(run())
    # Checks the gateway's own messages only. It does not log those of the HTTP client.
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("penstock")]
    assert any("status 503" in line for line in logged)
    assert not any("secret" in line for line in logged)
