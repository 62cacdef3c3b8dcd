"""Audit entries of refused requests: their id, and their number for each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from penstock.kit import refusals
from penstock.kit.refusals import MAX_PENDING_PER_CLIENT
from penstock.store.tables import audit_log
from tests.unit.asgi import send_request
from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    import pytest

    from penstock.settings.secret import Secret


async def read_refusals(api: ManagementClient) -> list[Any]:
    await api.app.state["refusals"].flush()
    async with api.database.read_connection() as connection:
        query = select(audit_log).where(audit_log.c.action == "refuse").order_by(audit_log.c.id)
        return list((await connection.execute(query)).mappings())


def test_entry_and_response_have_the_same_request_id(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        other_client = api.with_key("wrong")
        displayed: list[str] = []
        for sent in ({}, {"x_request_id": "not usable"}, {"x_request_id": "own"}):
            status, _, headers = await other_client("GET", "workspaces", **sent)
            assert status == 401
            displayed.append(headers["x-request-id"])
        assert [row["request_id"] for row in await read_refusals(api)] == displayed
        assert displayed[2] == "own"

    run_scenario(bootstrapped_url, scenario)


def test_one_client_does_not_crowd_out_others(bootstrapped_url: Secret, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(refusals, "MAX_STORED_PER_CALLER", 5)

    async def scenario(api: ManagementClient) -> None:
        other_client = api.with_key("wrong")
        for _ in range(MAX_PENDING_PER_CLIENT + 10):
            await other_client("GET", "workspaces", x_forwarded_for="192.0.2.1")
        await other_client("GET", "workspaces", x_forwarded_for="192.0.2.2")
        addresses = [row["client_ip"] for row in await read_refusals(api)]
        assert addresses == ["192.0.2.1"] * MAX_PENDING_PER_CLIENT + ["192.0.2.2"]
        keys = [await api.create_key("organisation/service", scopes=["workspaces.list"]) for _ in range(2)]
        (loud_id, frequent_client), (quiet_id, rare_client) = keys
        await rare_client.expect_error(403, "", "GET", "admin/users")
        for _ in range(8):
            await frequent_client.expect_error(403, "", "GET", "admin/users")
        callers = [row["user_id"] for row in await read_refusals(api) if row["user_id"]]
        assert callers == [quiet_id] + [loud_id] * 5

    run_scenario(bootstrapped_url, scenario)


def test_refusal_of_a_client_whose_body_is_not_read_yet_is_recorded(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        headers = {
            "x-gateway-api-key": "wrong",
            "x-penstock-request": "POST /v1/configs",
            "x-penstock-forwarded-for": "192.0.2.7",
        }
        response = await send_request(api.app, "GET", "/internal/identity", b"", headers)
        assert response.status == 401
        rows = [(row["method"], row["uri"], row["resource_type"], row["client_ip"]) for row in await read_refusals(api)]
        assert rows == [("POST", "/v1/configs", "configs", "192.0.2.7")]

    run_scenario(bootstrapped_url, scenario)


def test_visits_of_the_sign_in_page_leave_no_entry(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        visitor = api.with_key("")
        for headers in ({}, {"authorization": "Basic eA=="}):
            status, _, _ = await visitor("GET", "auth/self", **headers)
            assert status == 401
        assert await read_refusals(api) == []
        # An attempt with a credential is recorded, and so is another path without one.
        for path, headers in (
            ("auth/self", {"x-gateway-api-key": "wrong"}),
            ("auth/self", {"cookie": "penstock_session=wrong"}),
            ("workspaces", {}),
        ):
            status, _, _ = await visitor("GET", path, **headers)
            assert status == 401
        assert [row["uri"] for row in await read_refusals(api)] == ["/v1/auth/self", "/v1/auth/self", "/v1/workspaces"]

    run_scenario(bootstrapped_url, scenario)


def test_malformed_origin_is_rejected(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for origin in ("http://[", "http://[::1", "://", "null"):
            status, response, _ = await api.with_key("")("POST", "auth/sessions", {"api_key": api.key}, origin=origin)
            assert (status, response["data"]["errorCode"], origin in response["data"]["message"]) == (403, "AB03", True)

    run_scenario(bootstrapped_url, scenario)
