"""Catalogue of scopes: every scope, the key types that may have it, and the routes that accept it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.authorization import ALL_SCOPES
from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret


def test_every_scope_is_listed_with_its_routes(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        key = await api.with_key("").request_ok("GET", "scopes")
        by_id = {item["id"]: item for item in key["data"]}
        assert by_id.keys() == ALL_SCOPES
        assert key["total"] == len(by_id)
        assert by_id["configs.create"]["routes"] == ["POST /v1/configs"]
        assert (by_id["configs.create"]["resource"], by_id["configs.create"]["action"]) == ("configs", "create")
        assert by_id["organisation_users.list"]["routes"] == ["GET /v1/admin/users", "GET /v1/admin/users/invites"]
        assert by_id["completions.write"]["key_types"] == ["workspace-service", "workspace-user"]

    run_scenario(bootstrapped_url, scenario)
