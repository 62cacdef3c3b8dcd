"""Statements that a list sends to the database: their number does not grow with the number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.settings.secret import Secret

SCOPES = ["completions.write"]
CONFIG = {"provider": "openai"}
CHECK = {"id": "default.wordCount", "parameters": {"maxWords": 9}}


class StatementCounter:
    """Counts the statements of an application."""

    def __init__(self, api: ManagementClient) -> None:
        self.statements: list[str] = []
        engine = api.app.state["services"].database._engine
        event.listen(engine.sync_engine, "before_cursor_execute", self._record)

    def _record(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        self.statements.append(statement)

    async def count(self, api: ManagementClient, path: str) -> tuple[int, list[str]]:
        """Returns the number of rows and the statements of a list."""
        # Otherwise the number would depend on how long ago the caller was authenticated.
        api.clear_caller_cache()
        self.statements.clear()
        response = await api.request_ok("GET", path)
        rows = next(response[name] for name in ("data", "models", "records", "workspaces") if name in response)
        return len(rows), list(self.statements)


class Shelf:
    """Creates objects that lists show, with everything that their rows refer to."""

    def __init__(self, api: ManagementClient, organisation: str, workspace: str) -> None:
        self.api, self.organisation, self.workspace = api, organisation, workspace
        self.parents: dict[str, str] = {}

    async def post(self, path: str, **body: Any) -> Any:
        return await self.api.request_ok("POST", path, body)

    async def config(self, name: str) -> None:
        await self.post("configs", name=name, config=CONFIG, workspace_id=self.workspace)

    async def config_version(self, name: str) -> None:
        if "config" not in self.parents:
            created = await self.post("configs", name=name, config=CONFIG, workspace_id=self.workspace)
            self.parents["config"] = created["slug"]
        content = {**CONFIG, "override_params": {"user": name}}
        await self.api.request_ok("PUT", f"configs/{self.parents['config']}", {"config": content})

    async def key(self, name: str) -> None:
        await self.post("api-keys/workspace/service", name=name, workspace_id=self.workspace, scopes=SCOPES)

    async def integration(self, name: str) -> Any:
        body = {"name": name, "ai_provider_id": "openai", "key": "sk-1"}
        created = await self.post("integrations", **body)
        enabled = {"workspaces": [{"id": self.workspace, "enabled": True}]}
        await self.api.request_ok("PUT", f"integrations/{created['slug']}/workspaces", enabled)
        return created

    async def provider(self, name: str) -> None:
        created = await self.integration(name)
        await self.post("providers", name=name, integration_id=created["slug"], workspace_id=self.workspace)

    async def integration_workspace(self, name: str) -> None:
        if "integration" not in self.parents:
            self.parents["integration"] = (await self.integration(name))["slug"]
        workspace = (await self.api.create_workspace(name))["id"]
        enabled = {"workspaces": [{"id": workspace, "enabled": True}]}
        await self.api.request_ok("PUT", f"integrations/{self.parents['integration']}/workspaces", enabled)

    async def integration_model(self, name: str) -> None:
        if "models" not in self.parents:
            self.parents["models"] = (await self.integration(name))["slug"]
        models = [{"slug": f"custom-{name}", "enabled": True, "is_custom": True, "base_model_slug": "gpt-4o"}]
        await self.api.request_ok("PUT", f"integrations/{self.parents['models']}/models", {"models": models})

    async def virtual_key(self, name: str) -> None:
        await self.post("virtual-keys", name=name, provider="openai", key="sk-1", workspace_id=self.workspace)

    async def user(self, name: str) -> None:
        await self.api.create_user(f"{name}@x.test", workspaces=[{"id": self.workspace, "role": "member"}])

    async def invite(self, name: str) -> None:
        await self.api.invite_user(f"{name}@x.test", workspaces=[{"id": self.workspace, "role": "member"}])

    async def workspace_of_users(self, name: str) -> None:
        await self.api.create_workspace(name)

    async def guardrail(self, name: str) -> None:
        await self.post("guardrails", name=name, checks=[CHECK], workspace_id=self.workspace)

    async def guardrail_version(self, name: str) -> None:
        if "guardrail" not in self.parents:
            created = await self.post("guardrails", name=name, checks=[CHECK], workspace_id=self.workspace)
            self.parents["guardrail"] = created["slug"]
        check = {"id": CHECK["id"], "parameters": {"maxWords": 10 + len(name) + int(name[1:])}}
        await self.api.request_ok("PUT", f"guardrails/{self.parents['guardrail']}", {"checks": [check]})

    async def secret_reference(self, name: str) -> None:
        auth = {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": "t"}
        await self.post(
            "secret-references", name=name, manager_type="hashicorp_vault", auth_config=auth, secret_path="a/b"
        )

    async def rate_limit(self, name: str) -> None:
        body = {"conditions": [{"key": "metadata.team", "value": name}], "group_by": [{"key": "api_key"}]}
        limit = {"type": "requests", "unit": "rpm", "value": 10}
        await self.post("policies/rate-limits", name=name, workspace_id=self.workspace, **body, **limit)

    async def usage_limit(self, name: str) -> None:
        body = {"conditions": [{"key": "metadata.team", "value": name}], "group_by": [{"key": "api_key"}]}
        limit = {"type": "cost", "credit_limit": 10}
        await self.post("policies/usage-limits", name=name, workspace_id=self.workspace, **body, **limit)

    async def collection(self, name: str) -> Any:
        return await self.post("collections", name=name, workspace_id=self.workspace)

    async def label(self, name: str) -> None:
        await self.post("labels", name=name, workspace_id=self.workspace)

    def prompt_body(self, name: str) -> dict[str, Any]:
        return {"name": name, "string": f"Say {name} {{{{x}}}}", "parameters": {"x": "y"}, "virtual_key": "v"}

    async def prompt(self, name: str) -> Any:
        collection = await self.collection(name)
        body = {**self.prompt_body(name), "collection_id": collection["id"]}
        return await self.post("prompts", **body, model="gpt-4o", workspace_id=self.workspace)

    async def prompt_version(self, name: str) -> None:
        if "prompt" not in self.parents:
            self.parents["prompt"] = (await self.prompt(name))["slug"]
        body = {"string": f"Say {name} again", "model": "gpt-4o", "virtual_key": "v", "parameters": {}}
        await self.api.request_ok("PUT", f"prompts/{self.parents['prompt']}", body)

    async def partial(self, name: str) -> None:
        await self.post("prompts/partials", name=name, string=f"partial {name}", workspace_id=self.workspace)

    async def partial_version(self, name: str) -> None:
        if "partial" not in self.parents:
            created = await self.post("prompts/partials", name=name, string="first", workspace_id=self.workspace)
            self.parents["partial"] = created["slug"]
        await self.api.request_ok("PUT", f"prompts/partials/{self.parents['partial']}", {"string": f"next {name}"})

    async def audit_log(self, name: str) -> None:
        await self.config(name)


# List routes by the method of `Shelf` that creates their rows. Braces stand for the id of a parent or of the workspace.
LISTS: dict[str, str] = {
    "config": "configs",
    "config_version": "configs/{config}/versions",
    "key": "api-keys",
    "integration": "integrations",
    "integration_workspace": "integrations/{integration}/workspaces",
    "integration_model": "integrations/{models}/models",
    "provider": "providers?workspace_id={workspace}",
    "virtual_key": "virtual-keys",
    "user": "admin/users",
    "invite": "admin/users/invites",
    "workspace_of_users": "admin/workspaces",
    "guardrail": "guardrails?workspace_id={workspace}",
    "guardrail_version": "guardrails/{guardrail}/versions",
    "secret_reference": "secret-references",
    "rate_limit": "policies/rate-limits?workspace_id={workspace}",
    "usage_limit": "policies/usage-limits?workspace_id={workspace}",
    "collection": "collections?workspace_id={workspace}",
    "label": "labels?workspace_id={workspace}",
    "prompt": "prompts?workspace_id={workspace}",
    "prompt_version": "prompts/{prompt}/versions",
    "partial": "prompts/partials?workspace_id={workspace}",
    "partial_version": "prompts/partials/{partial}/versions",
    "audit_log": "audit-logs",
}
# Other lists that these methods of `Shelf` fill too: method and list route.
MORE_LISTS = {"members": ("user", "admin/workspaces/{workspace}/users"), "models": ("provider", "models")}


@pytest.mark.parametrize("name", [*LISTS, *MORE_LISTS])
def test_statements_of_a_list_do_not_grow_with_its_rows(bootstrapped_url: Secret, name: str):
    creation, template = MORE_LISTS.get(name, (name, LISTS.get(name, "")))

    async def scenario(api: ManagementClient) -> None:
        first = (await api.request_ok("GET", "workspaces"))["data"][0]
        shelf = Shelf(api, first["organisation_id"], first["id"])
        create: Callable[[str], Awaitable[Any]] = getattr(shelf, creation)
        counter, counts = StatementCounter(api), []
        for numbers in (range(2), range(2, 8)):
            for number in numbers:
                await create(f"n{number}")
            path = template.format(workspace=shelf.workspace, **shelf.parents)
            counts.append(await counter.count(api, path))
        (few, before), (many, after) = counts
        assert many >= few + 6, "the list shows the created rows"
        assert len(after) == len(before), "\n".join(after)

    run_scenario(bootstrapped_url, scenario)
