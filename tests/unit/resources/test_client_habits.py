"""Request and response habits of management clients: the SDKs, the Terraform provider and the MCP server of another
gateway. Each test has the body that the client sends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.app import openapi_json
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import TEMPLATE, create_partial, create_prompt

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True

DESCRIPTION: dict[str, Any] = json.loads(openapi_json())

VIRTUAL_KEY = {"provider": "openai", "key": "sk-0123456789"}


def test_workspace_in_the_body_of_an_update_selects_it(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        homes = [await api.create_workspace(name) for name in ("a", "b")]
        for home in homes:
            body = {"name": "k", "slug": "same", **VIRTUAL_KEY, "workspace_id": home["id"]}
            await api.request_ok("POST", "virtual-keys", body)
        for path in ("providers/same", "virtual-keys/same"):
            for names in (homes[1]["id"], homes[1]["slug"]):
                await api.request_ok("PUT", path, {"name": f"new {path}", "workspace_id": names})
            fetched = await api.request_ok("GET", f"{path}?workspace_id={homes[1]['id']}")
            assert fetched["name"] == f"new {path}"
        assert (await api.request_ok("GET", f"providers/same?workspace_id={homes[0]['id']}"))["name"] == "k"
        body = {"name": "c", "config": {"provider": "openai"}, "workspace_id": homes[0]["id"]}
        config = await api.request_ok("POST", "configs", body)
        await api.request_ok("PUT", f"configs/{config['slug']}", {"name": "d", "workspace_id": homes[0]["id"]})
        await api.request_ok("DELETE", "providers/same", {"workspace_id": homes[0]["id"]})
        both = f"providers/same?workspace_id={homes[0]['id']}"
        await api.expect_error(400, "send one of them", "PUT", both, {"name": "x", "workspace_id": homes[1]["id"]})
        await api.expect_error(400, "workspace_id", "PUT", "providers/same", {"name": "x", "workspace_id": 7})
        await api.expect_error(403, "not open", "PUT", "providers/same", {"name": "x", "workspace_id": "ws-none"})

    run_scenario(bootstrapped_url, scenario)


def test_objects_can_be_written_back_as_they_were_read(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        inside = f"?workspace_id={home}"
        limits = {"usage_limits": {"credit_limit": 500, "periodic_reset": "weekly"}}
        virtual = await api.request_ok(
            "POST", "virtual-keys", {"name": "v", **VIRTUAL_KEY, "workspace_id": home, **limits}
        )
        config = await api.request_ok(
            "POST", "configs", {"name": "c", "config": {"provider": "openai"}, "workspace_id": home}
        )
        key, _ = await api.create_key("workspace/service", workspace_id=home, scopes=["logs.write"], **limits)
        user = await api.create_user("u@example.com", workspaces=[{"id": home, "role": "member"}])
        await api.request_ok(
            "POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "sk-012345"}
        )
        await api.request_ok(
            "PUT", "integrations/i/models", {"models": [{"slug": "m", "enabled": True, "is_custom": True}]}
        )
        await api.request_ok("PUT", "integrations/i/workspaces", {"workspaces": [{"id": home, "enabled": True}]})
        reference = {"name": "r", "slug": "r", "manager_type": "hashicorp_vault", "secret_path": "p"}
        auth = {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": "t-0123456789"}
        await api.request_ok("POST", "secret-references", {**reference, "auth_config": auth})
        await create_prompt(api, home, slug="p", **TEMPLATE)
        await create_partial(api, home, "p")
        folder, label = [(await api.request_ok("GET", name))["data"][0] for name in ("collections", "labels")]
        for path in (
            f"virtual-keys/{virtual['slug']}{inside}",
            f"providers/{virtual['slug']}{inside}",
            f"configs/{config['slug']}",
            f"api-keys/{key}",
            f"admin/users/{user}",
            f"workspaces/{home}",
            f"workspaces/{home}/users/{user}",
            "integrations/i",
            "integrations/i/models",
            "integrations/i/workspaces",
            "secret-references/r",
            "prompts/p",
            "prompts/partials/p",
            f"collections/{folder['id']}",
            f"labels/{label['id']}",
            "admin/organisation/settings",
            "admin/organisation/defaults",
        ):
            read = await api.request_ok("GET", path)
            await api.request_ok("PUT", path, read)
            again = await api.request_ok("GET", path)
            assert without_times(again) == without_times(read), path

    run_scenario(bootstrapped_url, scenario)


def without_times(value: Any) -> Any:
    # A model of the provider's list has no creation time until it is written.
    if isinstance(value, dict):
        return {
            name: without_times(item)
            for name, item in value.items()
            if name not in {"created_at", "last_updated_at", "updated_by"}
        }
    return sorted(map(without_times, value), key=str) if isinstance(value, list) else value


def test_fields_that_can_only_be_read_are_not_changed_silently(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        key, _ = await api.create_key("workspace/service", workspace_id=home, scopes=["logs.write"])
        await api.expect_error(400, "cannot be changed here", "PUT", f"api-keys/{key}", {"type": "workspace-user"})
        await api.expect_error(400, "created_by cannot", "PUT", f"workspaces/{home}", {"created_by": "someone"})
        other = (await api.create_workspace("o"))["id"]
        await api.expect_error(400, "workspace_id", "PUT", f"api-keys/{key}", {"workspace_id": other})
        await api.expect_error(400, "unknown field", "PUT", f"api-keys/{key}", {"colour": "red"})

    run_scenario(bootstrapped_url, scenario)


def test_fields_of_updates_can_be_sent_at_creation():
    schemas = DESCRIPTION["components"]["schemas"]

    def fields(content: dict[str, Any] | None) -> set[str]:
        schema = (content or {}).get("content", {}).get("application/json", {}).get("schema", {})
        named_values = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        # Bodies may have another spelling: `isDefault` is shown as `is_default`.
        return {name.replace("_", "").lower() for name in named_values.get("properties", ())}

    compared = 0
    missing: dict[str, set[str]] = {}
    for path, operations in DESCRIPTION["paths"].items():
        parent, _, last = path.rpartition("/")
        creation = DESCRIPTION["paths"].get(parent, {}).get("post", {}).get("requestBody")
        if path.startswith("/v1/") and last.startswith("{") and creation and {"get", "put"} <= operations.keys():
            response_fields = fields(operations["get"]["responses"]["200"])
            compared += bool(response_fields)
            if rest := (response_fields & fields(operations["put"].get("requestBody"))) - fields(creation):
                missing[parent] = rest
    assert compared > 10
    # Members are added as a list `users`; resetting the usage of a new object has no effect.
    members = {path for path in missing if path.endswith("/workspaces/{workspace}/users")}
    assert {path: rest for path, rest in missing.items() if path not in members} == {
        "/v1/providers": {"resetusage"},
        "/v1/virtual-keys": {"resetusage"},
    }


def test_objects_can_be_created_archived(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        folder = (await api.request_ok("GET", "collections"))["data"][0]["id"]
        checks = [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]
        archived = {"name": "x", "workspace_id": home, "status": "archived"}
        bodies: dict[str, dict[str, Any]] = {
            "configs": {**archived, "config": {"provider": "openai"}},
            "guardrails": {**archived, "checks": checks},
            "prompts": {"name": "x", "status": "archived", "collection_id": folder, **TEMPLATE},
            "prompts/partials": {"name": "x", "status": "archived", "collection_id": folder, "string": "hello"},
        }
        for path, body in bodies.items():
            slug = (await api.request_ok("POST", path, body))["slug"]
            assert (await api.request_ok("GET", f"{path}/{slug}"))["status"] == "archived", path
        inactive = await api.request_ok("POST", "configs", {**bodies["configs"], "status": "inactive"})
        assert (await api.request_ok("GET", f"configs/{inactive['slug']}"))["status"] == "archived"
        await api.expect_error(
            400, "active, archived or inactive", "POST", "configs", {**bodies["configs"], "status": ""}
        )

    run_scenario(bootstrapped_url, scenario)


def test_creation_says_which_fields_can_only_be_read(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        body = {"name": "c", "config": {"provider": "openai"}, "workspace_id": home}
        read = await api.request_ok("GET", f"configs/{(await api.request_ok('POST', 'configs', body))['slug']}")
        await api.expect_error(400, "owner_id can only be read", "POST", "configs", {**body, "owner_id": "someone"})
        await api.expect_error(400, "colour is an unknown field", "POST", "configs", {**body, "colour": "red"})
        await api.expect_error(400, "id can only be read", "POST", "configs", read)

    run_scenario(bootstrapped_url, scenario)


def test_amounts_that_are_sent_as_integers_come_back_as_integers(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        fields = {"credit_limit": 500, "alert_threshold": 400}
        workspace = await api.request_ok("POST", "workspaces", {"name": "w", "usage_limits": [fields]})
        home = workspace["id"]
        key, _ = await api.create_key(
            "workspace/service", workspace_id=home, scopes=["logs.write"], usage_limits=fields
        )
        virtual = await api.request_ok(
            "POST", "virtual-keys", {"name": "v", **VIRTUAL_KEY, "workspace_id": home, "usage_limits": fields}
        )
        await api.request_ok("POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"})
        price = {"type": "static", "pay_as_you_go": {"request_token": {"price": 3}, "response_token": {"price": 0.5}}}
        await api.request_ok(
            "PUT", "integrations/i/models", {"models": [{"slug": "m", "enabled": True, "pricing_config": price}]}
        )
        await api.request_ok("PUT", "integrations/i", {"pricing_adjustments": {"multiplier": {"default": 2}}})
        access = {"enabled": True, "usage_limits": [{"credit_limit": 50, "alert_threshold": 75}]}
        body = {"workspaces": [{"id": home, **access}], "global_workspace_access": access}
        await api.request_ok("PUT", "integrations/i/workspaces", body)
        usage_limits_lists: list[Any] = [workspace["usage_limits"][0]]
        for path in (f"workspaces/{home}", f"api-keys/{key}", f"providers/{virtual['slug']}?workspace_id={home}"):
            limits = (await api.request_ok("GET", path))["usage_limits"]
            usage_limits_lists.append(limits[0] if isinstance(limits, list) else limits)
        for limits in usage_limits_lists:
            assert [repr(limits[name]) for name in ("credit_limit", "alert_threshold")] == ["500", "400"]
            # Limits that were not sent are null.
            assert {name: limits[name] for name in limits if name not in fields} == dict.fromkeys(
                limits.keys() - fields.keys()
            )
        read = await api.request_ok("GET", "integrations/i/workspaces")
        assert repr(read["workspaces"][0]["usage_limits"][0]["alert_threshold"]) == "75"
        models = (await api.request_ok("GET", "integrations/i/models"))["models"]
        assert repr(models[0]["pricing_config"]["pay_as_you_go"]["request_token"]["price"]) == "3"
        assert {item["slug"]: item["pricing_config"] for item in models[1:]} == {
            item["slug"]: None for item in models[1:]
        }
        factors = (await api.request_ok("GET", "integrations/i"))["pricing_adjustments"]["multiplier"]
        assert repr(factors["default"]) == "2"
        await api.expect_error(
            400,
            "less than credit_limit",
            "PUT",
            f"api-keys/{key}",
            {"usage_limits": {"credit_limit": 5, "alert_threshold": 7}},
        )

    run_scenario(bootstrapped_url, scenario)


def test_a_changed_period_begins_at_the_next_reset(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        monthly = {"credit_limit": 5, "periodic_reset": "monthly"}
        key, _ = await api.create_key(
            "workspace/service", workspace_id=home, scopes=["logs.write"], usage_limits=monthly
        )
        due = (await api.request_ok("GET", f"api-keys/{key}"))["next_usage_reset_at"]
        await api.request_ok(
            "PUT", f"api-keys/{key}", {"usage_limits": {"credit_limit": 5, "periodic_reset": "weekly"}}
        )
        fetched = await api.request_ok("GET", f"api-keys/{key}")
        assert (due is not None, fetched["next_usage_reset_at"], fetched["usage_limits"]["periodic_reset"]) == (
            True,
            due,
            "weekly",
        )

    run_scenario(bootstrapped_url, scenario)


def test_workspace_creation_returns_members_as_strings(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        user = await api.create_user("u@example.com")
        for users in ([user], [{"id": user, "role": "manager"}]):
            workspace = await api.request_ok("POST", "admin/workspaces", {"name": "w", "users": users})
            assert [type(value) for member in workspace["users"] for value in member.values()] == [str] * len(
                workspace["users"][0]
            )
            assert [member["id"] for member in workspace["users"]] == [user]

    run_scenario(bootstrapped_url, scenario)


def test_workspace_icon_is_shown_before_the_name(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        def name_and_icon(read: Any) -> tuple[str, str | None]:
            return read["name"], read["icon"]

        workspace = await api.request_ok("POST", "admin/workspaces", {"name": "i", "icon": "🧪"})
        path = f"admin/workspaces/{workspace['id']}"
        assert name_and_icon(workspace) == name_and_icon(await api.request_ok("GET", path)) == ("🧪 i", "🧪")
        assert (await api.request_ok("GET", f"{path}?name_format=plain"))["name"] == "i"
        assert (await api.request_ok("GET", "admin/workspaces?exact_name=%F0%9F%A7%AA%20i"))["total"] == 1
        for change, expected in (
            ({"name": "🧪 i", "icon": "🧪"}, ("🧪 i", "🧪")),
            ({"name": "j"}, ("🧪 j", "🧪")),
            ({"icon": "🔬"}, ("🔬 j", "🔬")),
            ({"icon": ""}, ("j", None)),
            ({"name": "🎯 t"}, ("🎯 t", "🎯")),
            ({"name": "t", "icon": "🎯"}, ("🎯 t", "🎯")),
            ({"name": "u", "icon": None}, ("u", None)),
            ({"name": "🎯 t"}, ("🎯 t", "🎯")),
            ({"name": "plain"}, ("plain", None)),
        ):
            assert name_and_icon(await api.request_ok("PUT", path, change)) == expected, change

    run_scenario(bootstrapped_url, scenario)


def test_slugs_are_kept_and_generated_ones_are_unique_in_the_organisation(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        homes = [
            await api.request_ok("POST", "workspaces", {"name": slug, "slug": slug}) for slug in ("team-a", "team-b")
        ]
        assert [home["slug"] for home in homes] == ["team-a", "team-b"]
        await api.expect_error(409, "taken", "POST", "workspaces", {"name": "x", "slug": "team-a"})
        await api.expect_error(400, "letters", "POST", "workspaces", {"name": "x", "slug": "a b"})
        slugs = [
            (
                await api.request_ok(
                    "POST", "virtual-keys", {"name": "py va", **VIRTUAL_KEY, "workspace_id": home["id"]}
                )
            )["slug"]
            for home in homes
        ]
        assert slugs[0] == "py-va" != slugs[1]
        await api.request_ok("DELETE", f"virtual-keys/{slugs[0]}")
        body = {"name": "c", "slug": "main", "config": {"provider": "openai"}, "workspace_id": "team-a"}
        assert (await api.request_ok("POST", "configs", body))["slug"] == "main"
        await api.expect_error(409, "taken", "POST", "configs", body)
        assert (await api.request_ok("PUT", "workspaces/team-a", {"slug": "team-c"}))["slug"] == "team-c"
        await api.request_ok("GET", "workspaces/team-c")
        await api.expect_error(409, "taken", "PUT", "workspaces/team-c", {"slug": "team-b"})
        scopes = ["workspaces.update", "workspaces.read"]
        _, member = await api.create_key("workspace/service", workspace_id="team-c", scopes=scopes)
        await member.expect_error(403, "slug", "PUT", "workspaces/team-c", {"slug": "mine"})

    run_scenario(bootstrapped_url, scenario)


def test_config_responses_have_both_documented_shapes(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        config = await api.request_ok(
            "POST", "configs", {"name": "c", "config": {"provider": "openai"}, "workspace_id": home}
        )
        changed = await api.request_ok("PUT", f"configs/{config['slug']}", {"config": {"provider": "anthropic"}})
        for response in (config, changed):
            assert response["data"] == {name: response[name] for name in ("id", "slug", "version_id")}
            assert (response["success"], response["object"], "warnings" in response) == (True, "config", False)
        assert changed["version_id"] != config["version_id"]
        # A new name is no new version.
        assert (await api.request_ok("PUT", f"configs/{config['slug']}", {"name": "d"}))["version_id"] == changed[
            "version_id"
        ]
        versions = await api.request_ok("GET", f"configs/{config['slug']}/versions")
        assert [item["version_id"] for item in versions["data"]] == [changed["version_id"], config["version_id"]]
        await api.request_ok("PUT", f"configs/{config['slug']}", {"status": "inactive"})
        assert (await api.request_ok("GET", f"configs/{config['slug']}"))["status"] == "archived"

    run_scenario(bootstrapped_url, scenario)


def test_config_with_a_missing_provider_is_saved_with_a_warning(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        await api.request_ok("POST", "virtual-keys", {"name": "open a", **VIRTUAL_KEY, "workspace_id": home})
        config = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "@open-a"}, {"virtual_key": "opne-a"}]}
        created = await api.request_ok("POST", "configs", {"name": "c", "config": config, "workspace_id": home})
        assert [item["path"] for item in created["warnings"]] == ["config.targets[1].virtual_key"]
        assert "did you mean '@open-a'" in created["warnings"][0]["message"]

    run_scenario(bootstrapped_url, scenario)


def test_requests_without_optional_fields_are_accepted(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        invited = await api.request_ok("POST", "admin/users/invites", {"email": "a@example.com", "role": "admin"})
        fetched = await api.request_ok("GET", f"admin/users/invites/{invited['id']}")
        assert fetched["workspaces"] == []
        assert (await api.request_ok("GET", "audit-logs"))["records"][0]["resource_type"] == "organisation_users"
        full = await api.create_workspace("full")
        await api.create_key("workspace/service", workspace_id=full["id"], scopes=["logs.write"])
        empty = await api.create_workspace("empty")
        await api.request_ok("DELETE", f"admin/workspaces/{empty['id']}")
        await api.expect_error(409, "not empty", "DELETE", f"admin/workspaces/{full['id']}")
        await api.expect_error(400, "name", "DELETE", f"admin/workspaces/{full['id']}", {"force_delete": True})

    run_scenario(bootstrapped_url, scenario)


def test_invitation_proposes_names_and_describes_the_keys(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        details = {
            "scopes": ["logs.write"],
            "name": "my key",
            "metadata": {"team": "a"},
            "expiry": "2999-01-01T00:00:00Z",
        }
        body = {"email": "a@example.com", "role": "member", "first_name": "Ann", "last_name": "Lee"}
        body |= {"workspaces": [{"id": home, "role": "member"}], "workspace_api_key_details": details}
        invite = await api.request_ok("POST", "admin/users/invites", body)
        fetched = await api.request_ok("GET", f"admin/users/invites/{invite['id']}")
        assert {name: fetched[name] for name in body} == body
        token = invite["invite_link"].partition("token=")[2]
        response = await api.with_key("").request_ok(
            "POST", "auth/invites", {"token": token, "password": "a password of twelve"}
        )
        user = await api.request_ok("GET", f"admin/users/{response['id']}")
        assert (user["first_name"], user["last_name"]) == ("Ann", "Lee")
        key = await api.request_ok("GET", f"api-keys/{response['api_keys'][0]['id']}")
        assert (key["name"], key["expires_at"], key["defaults"]["metadata"]) == (
            "my key",
            "2999-01-01T00:00:00.000Z",
            {"team": "a"},
        )
        await api.request_ok("PUT", f"admin/users/{response['id']}", {"first_name": "Anna"})
        renamed = await api.request_ok("GET", f"admin/users/{response['id']}")
        assert (renamed["first_name"], renamed["role"]) == ("Anna", "member")

    run_scenario(bootstrapped_url, scenario)


def test_key_of_the_organisation_may_have_the_config_of_a_workspace(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        config = await api.request_ok(
            "POST", "configs", {"name": "c", "config": {"provider": "openai"}, "workspace_id": home}
        )
        defaults = {"config_id": config["slug"], "allow_config_override": False}
        key, _ = await api.create_key("organisation/service", scopes=["configs.list"], defaults=defaults)
        assert (await api.request_ok("GET", f"api-keys/{key}"))["defaults"]["config_id"] == config["id"]
        await api.expect_error(409, "default", "DELETE", f"configs/{config['slug']}")
        await api.request_ok("PUT", f"api-keys/{key}", {"defaults": {"config_id": None}})
        await api.request_ok("DELETE", f"configs/{config['slug']}")

    run_scenario(bootstrapped_url, scenario)


def test_secret_reference_lists_its_workspaces_apart(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        home = (await api.create_workspace())["id"]
        body = {
            "name": "r",
            "slug": "r",
            "manager_type": "hashicorp_vault",
            "secret_path": "p",
            "allowed_workspaces": [home],
        }
        auth = {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": "t-0123456789"}
        await api.request_ok("POST", "secret-references", {**body, "auth_config": auth})
        assert set(await api.request_ok("GET", "secret-references/r")) == {
            *("id", "organisation_id", "name", "slug", "description", "manager_type", "secret_path", "secret_key"),
            *(
                "allow_all_workspaces",
                "tags",
                "status",
                "created_by",
                "created_at",
                "last_updated_at",
                "auth_config",
                "object",
            ),
        }
        access = await api.request_ok("GET", "secret-references/r/workspaces")
        assert (access["allow_all_workspaces"], access["allowed_workspaces"]) == (False, [home])

    run_scenario(bootstrapped_url, scenario)
