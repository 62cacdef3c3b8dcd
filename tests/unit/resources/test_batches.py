"""Creation of batches that a provider runs: whose metadata budgets see, and which callers are rejected."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import insert, select

from penstock.batches.budgets import BatchBudgets, BatchSubject
from penstock.batches.files import FILE, new_file_row
from penstock.store.job_tables import batches, files
from tests.unit.resources.logged import open_workspace
from tests.unit.resources.management_api import JWT_SETTINGS, ManagementClient, run_scenario, sign_token

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True
ENDPOINT = "/v1/chat/completions"
SCOPES = ["completions.write"]


async def insert_input_file(api: ManagementClient, home: dict[str, str]) -> str:
    """Inserts the row of an input file without its content; returns its id."""
    owner = {name: home[name] for name in ("organisation_id", "workspace_id")}
    row = new_file_row("batch", "a.jsonl", 3600, **owner, created_by=None)
    async with api.database.write_transaction() as connection:
        await connection.execute(insert(files).values(row))
    return FILE + row["id"]


async def create_batch(client: ManagementClient, file: str, **metadata: str) -> tuple[int, Any]:
    body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
    headers = {"x-gateway-provider": "openai"}
    if metadata:
        headers["x-gateway-metadata"] = msgspec.json.encode(metadata).decode()
    status, response, _ = await client("POST", "batches", body, **headers)
    return status, response


async def read_job(api: ManagementClient, batch_id: str) -> dict[str, Any]:
    async with api.database.read_connection() as connection:
        query = select(batches.c.job).where(batches.c.id == batch_id.removeprefix("gw_batch_"))
        return await connection.scalar(query) or {}


async def create_user_policy(api: ManagementClient, home: dict[str, str], user: str, enforcement: str) -> str:
    condition = {"key": "metadata._user", "value": user}
    body: dict[str, Any] = {
        "workspace_id": home["workspace_id"],
        "conditions": [condition],
        "group_by": [{"key": "metadata._user"}],
    }
    body |= {"name": f"{user} {enforcement}", "type": "tokens", "credit_limit": 1000, "enforcement": enforcement}
    return (await api.request_ok("POST", "policies/usage-limits", body))["id"]


def test_budgets_see_the_metadata_of_the_key_and_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = await open_workspace(api)
        workspace = home["workspace_id"]
        await api.request_ok("PUT", f"workspaces/{workspace}", {"defaults": {"metadata": {"team": "red"}}})
        defaults = {"metadata": {"_user": "ann", "team": "blue"}}
        key_id, client = await api.create_key(
            "workspace/service", workspace_id=workspace, scopes=SCOPES, defaults=defaults
        )
        file = await insert_input_file(api, home)
        soft = await create_user_policy(api, home, "ann", "soft")
        await create_user_policy(api, home, "bob", "hard")
        status, batch = await create_batch(client, file, _user="bob", team="green", job="nightly")
        assert status == 200, batch
        job = await read_job(api, batch["id"])
        assert job["metadata"] == {"_user": "ann", "team": "red", "job": "nightly"}
        subject = BatchSubject(workspace, key_id, None, "openai", None, ENDPOINT, job["metadata"])
        async with api.database.read_connection() as connection:
            uses = (await BatchBudgets.load(connection, subject)).list_uses("gpt-4o")
        assert [(use["id"], use["group"]) for use in uses] == [(soft, "ann")]
        await create_user_policy(api, home, "ann", "hard")
        status, refused = await create_batch(client, file, _user="carl")
        assert (status, "hard budget" in str(refused)) == (412, True)

    run_scenario(bootstrapped_url, scenario)


def test_dry_run_budgets_count_lines_and_reject_no_batch(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = await open_workspace(api)
        workspace = home["workspace_id"]
        key_id, client = await api.create_key("workspace/service", workspace_id=workspace, scopes=SCOPES)
        policy = {"workspace_id": workspace, "type": "cost", "credit_limit": 5, "enforcement": "hard", "dry_run": True}
        policy |= {"conditions": [{"key": "metadata.team", "value": "red"}], "group_by": [{"key": "metadata.team"}]}
        spent = {"initial_usage": {"red": 6}}
        policy_id = (await api.request_ok("POST", "policies/usage-limits", {**policy, **spent}))["id"]
        status, batch = await create_batch(client, await insert_input_file(api, home), team="red")
        assert status == 200, batch
        subject = BatchSubject(workspace, key_id, None, "openai", None, ENDPOINT, {"team": "red"})
        async with api.database.read_connection() as connection:
            uses = (await BatchBudgets.load(connection, subject)).list_uses("gpt-4o")
        assert [(use["id"], use["group"]) for use in uses] == [(policy_id, "red")]

    run_scenario(bootstrapped_url, scenario)


def test_budgets_of_models_are_only_checked_if_they_are_hard(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = await open_workspace(api)
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=SCOPES)
        file = await insert_input_file(api, home)
        spent: dict[str, Any] = {"workspace_id": home["workspace_id"], "type": "cost", "credit_limit": 5}
        by_model: dict[str, Any] = {
            "conditions": [{"key": "model", "value": "gpt-*"}],
            "group_by": [{"key": "metadata.team"}],
        }
        by_team = {**by_model, "conditions": [{"key": "metadata.team", "value": "red|%"}]}
        by_team["group_by"] = [{"key": "metadata.team"}, {"key": "metadata._user"}]
        for body in ({**by_model, "initial_usage": {"": 5}}, {**by_team, "initial_usage": {"red%7C%25|ann": 5}}):
            await api.request_ok("POST", "policies/usage-limits", {**spent, **body})
        assert (await create_batch(client, file))[0] == 200
        assert (await create_batch(client, file, team="red|%", _user="bob"))[0] == 200
        status, refused = await create_batch(client, file, team="red|%", _user="ann")
        assert (status, "usage_limit_exceeded" in str(refused)) == (412, True)
        await api.request_ok("POST", "policies/usage-limits", {**spent, **by_model, "enforcement": "hard"})
        status, refused = await create_batch(client, file)
        assert (status, "usage_not_bounded" in str(refused)) == (412, True)

    run_scenario(bootstrapped_url, scenario)


def test_tokens_with_budgets_create_no_provider_batches(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = await open_workspace(api)
        file = await insert_input_file(api, home)
        claims: dict[str, Any] = {"organisation_id": home["organisation_id"], "workspace_slug": home["workspace_slug"]}
        claims |= {"sub": "ci@idp.example", "exp": time.time() + 600, "scope": " ".join(SCOPES)}

        def client_with_token(**more: Any) -> ManagementClient:
            return api.with_key(sign_token(**claims, **more))

        limits = [{"type": "tokens", "credit_limit": 1000}]
        status, refused = await create_batch(client_with_token(usage_limits=limits), file)
        assert (status, "tokens with usage_limits" in str(refused)) == (412, True)
        plain = client_with_token(defaults={"metadata": {"_user": "ann", "size": 3}})
        status, batch = await create_batch(plain, file, _user="bob")
        assert status == 200, batch
        assert (await read_job(api, batch["id"]))["metadata"] == {"_user": "ann", "size": "3"}
        await create_user_policy(api, home, "ann", "hard")
        assert (await create_batch(plain, file))[0] == 412

    run_scenario(bootstrapped_url, scenario, JWT_SETTINGS)
