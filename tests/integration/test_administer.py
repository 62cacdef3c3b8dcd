"""Commands that call a running gateway, and copying the whole state of one store into another."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from penstock.ids import mask_secret
from tests.fork_server import run_penstock
from tests.integration.batch_provider import RecordingServer
from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock
    from tests.integration.conftest import StoreFactory


# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True


@pytest.fixture
def new_admin(provider: Mock, new_store: StoreFactory, tmp_path: Path) -> Iterator[Client]:
    """Runs a gateway with a new store."""
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=new_store(tmp_path)) as gateway:
        yield Client(gateway)


@pytest.fixture
def admin_pair(provider: Mock, new_store: StoreFactory, tmp_path: Path) -> Iterator[tuple[Client, Client]]:
    """Runs two gateways, each with its own store."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    envs = [new_store(folder, number) for number, folder in enumerate(folders)]
    tables = {"mock": {"host": provider.url}}
    with run_gateway(folders[0], tables, env=envs[0]) as first, run_gateway(folders[1], tables, env=envs[1]) as second:
        yield Client(first), Client(second)


def run_command(client: Client, *words: str, input_text: str | None = None, status: int = 0, **env: str) -> str:
    body = {"PENSTOCK_URL": client.gateway.base_url, "PENSTOCK_API_KEY": client.key, **env}
    done = run_penstock(*words, env=body, input_text=input_text or "")
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


# Secrets of the created objects, by the environment variable that a state file may read them from.
SECRETS = {
    "VIRTUAL_KEY": "sk-canary-of-the-virtual-key",
    "SHARED_KEY": "sk-canary-of-the-integration",
    "OWN_KEY": "sk-canary-of-a-workspace",
    "HEADER": "canary-of-a-header-field",
    "MODEL_HEADER": "canary-of-a-model-field",
    "VAULT": "hvs.canary-of-the-vault",
}
PRICE = {"pay_as_you_go": {"request_token": {"price": 0.5}}}


def create_one_of_each(admin: Client) -> dict[str, Any]:
    """Creates an object of each kind; returns the workspace."""
    user = admin.read("/v1/admin/users")["data"][0]["id"]
    rules = {"user_api_key_rotation_period": 9, "user_api_key_count": 5, "user_key_metadata": {"team": "a"}}
    workspace = admin.create(
        "/v1/workspaces",
        {
            "name": "Rockets",
            "settings": rules,
            "security_settings": {"managersWriteConfigs": False, "membersViewLogs": False},
            "users": [{"id": user, "role": "manager"}],
            "description": "up",
        },
    )
    create_organisation_objects(admin, workspace)
    in_workspace = {"workspace_id": workspace["id"]}
    admin.create(
        "/v1/virtual-keys",
        {"name": "the provider", "provider": "openai", "key": SECRETS["VIRTUAL_KEY"], **in_workspace},
    )
    inner = {"name": "inner", "ai_provider_id": "mock", "key": SECRETS["OWN_KEY"], "slug": "inner", **in_workspace}
    admin.create("/v1/integrations", {**inner, "create_default_provider": False})
    limits = {"usage_limits": {"credit_limit": 5, "periodic_reset": "weekly"}, "tags": {"a": "b"}}
    admin.create(
        "/v1/providers", {"name": "of ours", "integration_id": "inner", "slug": "ours", **limits, **in_workspace}
    )
    config = admin.create("/v1/configs", {"name": "main", "config": {"provider": "@ours"}, **in_workspace})
    admin.put(f"/v1/workspaces/{workspace['id']}", {"defaults": {"user_api_key_config": config["slug"]}})
    admin.create("/v1/labels", {"name": "pilot", "protected": True, **in_workspace})
    # `a-part` is created before `b-part`, which it includes.
    admin.create("/v1/prompts/partials", {"name": "a", "slug": "a-part", "string": "first", **in_workspace})
    admin.create("/v1/prompts/partials", {"name": "b", "slug": "b-part", "string": "b", **in_workspace})
    expect_ok(admin.put("/v1/prompts/partials/a-part", {"string": "{{>b-part}}"}))
    expect_ok(admin.put("/v1/prompts/partials/a-part/makeDefault", {"version": 2}))
    prompt = {"name": "greeting", "slug": "greeting", "string": "{{>a-part}} {{name}}", "parameters": {"max_tokens": 5}}
    created = admin.create("/v1/prompts", {**prompt, "virtual_key": "ours", "model": "mock", **in_workspace})
    for label in ("pilot", "staging"):
        admin.put(f"/v1/prompts/{created['id']}/versions/{created['version_id']}", {"label_id": label})
    defaults = {"config_id": config["slug"], "metadata": {"team": "a"}}
    body = {"name": "app", "scopes": ["completions.write"], "defaults": defaults, **in_workspace}
    admin.create("/v1/api-keys/workspace/service", {**body, "usage_limits": {"credit_limit": 5}})
    body = {"name": "mine", "scopes": ["completions.write"], "user_id": user, "expires_at": "2999-01-01T00:00:00Z"}
    admin.create("/v1/api-keys/workspace/user", {**body, **in_workspace})
    return workspace


def create_organisation_objects(admin: Client, workspace: dict[str, Any]) -> None:
    """Creates the objects that belong to the organisation."""
    vault = {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": SECRETS["VAULT"]}
    reference = {"name": "kept", "slug": "kept", "manager_type": "hashicorp_vault", "secret_path": "a/b"}
    allowed = {"allowed_workspaces": [workspace["id"]]}
    admin.create("/v1/secret-references", {**reference, "auth_config": vault, **allowed})
    headers = {"custom_host": "https://models.test/v1", "custom_headers": {"x-team": SECRETS["HEADER"]}}
    shared = {"name": "shared", "slug": "shared", "ai_provider_id": "openai", "key": SECRETS["SHARED_KEY"]}
    admin.create("/v1/integrations", {**shared, "configurations": headers, "tags": {"a": "b"}, "description": "all"})
    options = {"custom_host": "https://one.test", "custom_headers": {"x-model": SECRETS["MODEL_HEADER"]}}
    models = [
        {"slug": "custom", "enabled": True, "is_custom": True, "pricing_config": PRICE, "configurations": options},
        {"slug": "gpt-4o", "enabled": False},
    ]
    # Adding a model with its own host requires sending the credentials of its integration again.
    sent = {"key": SECRETS["SHARED_KEY"], "configurations": {"custom_headers": headers["custom_headers"]}}
    expected = {"models": models, "allow_all_models": False, **sent}
    expect_ok(admin.put("/v1/integrations/shared/models", expected))
    limits = {"rate_limits": [{"type": "requests", "unit": "rpm", "value": 9}]}
    accesses = [{"id": workspace["id"], "enabled": True, **limits}]
    # Access settings of a deleted workspace must not appear in an exported state.
    gone = admin.create("/v1/workspaces", {"name": "Gone"})
    accesses.append({"id": gone["id"], "enabled": True})
    default_access = {"enabled": True, "usage_limits": [{"credit_limit": 3}]}
    expect_ok(
        admin.put(
            "/v1/integrations/shared/workspaces", {"workspaces": accesses, "global_workspace_access": default_access}
        )
    )
    expect_ok(admin.put("/v1/secret-references/kept", {"allowed_workspaces": [workspace["id"], gone["id"]]}))
    expect_ok(admin.delete(f"/v1/workspaces/{gone['id']}", {"name": "Gone", "force_delete": True}))
    admin.create("/v1/api-keys/organisation/service", {"name": "of all", "scopes": ["workspaces.list"]})
    workspaces = [{"id": workspace["id"], "role": "manager"}]
    details = {"workspace_api_key_details": {"scopes": ["completions.write"]}}
    admin.create(
        "/v1/admin/users/invites", {"email": "new@x.test", "role": "member", "workspaces": workspaces, **details}
    )
    admin.put("/v1/admin/organisation/settings", {"session_settings": {"max_session_ttl": 3600}})


def replace_masks(value: Any) -> Any:
    """Replaces masked secrets with references to environment variables."""
    if isinstance(value, dict):
        return {name: replace_masks(item) for name, item in value.items() if name != "masked"}
    if isinstance(value, list):
        return [replace_masks(item) for item in value]
    items = [name for name, secret in SECRETS.items() if value == mask_secret(secret)]
    return f"${{{items[0]}}}" if items else value


def write_yaml(document: dict[str, Any], file: Path) -> None:
    with file.open("w") as opened:
        YAML(typ="safe").dump(document, opened)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("foo", "'foo' is no address of a gateway: expected http://"),
        ("http://[::1", "is no address of a gateway"),
        ("http://127.0.0.1:1", "cannot be reached: [Errno 111] Connection refused; hint: is it running?"),
        ("{mock}", "answers, but is no gateway"),
        ("{page}", "answers, but is no gateway"),
    ],
)
def test_unreachable_gateway_is_reported_with_the_cause(admin: Client, provider: Mock, url: str, words: str, page: str):
    where = url.format(mock=provider.url, page=page)
    output = run_command(admin, "keys", "list", "--url", where, status=1)
    assert words in output
    assert output.startswith("penstock: ")


@pytest.fixture
def page() -> Iterator[str]:
    """Runs a server that answers every request with an HTML page."""

    class PageHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """Suppresses the access log."""

    with RecordingServer(PageHandler) as listening:
        yield listening.url


def test_commands_accept_v1_urls_and_escape_names_in_paths(admin: Client):
    assert "admin" in run_command(admin, "keys", "list", "--url", f"{admin.gateway.base_url}/v1")
    for name in ("../..", "..", "a/../b", "ä?x"):
        assert "penstock: GET /v1/configs/" in run_command(admin, "config", "show", name, status=1)
    assert "env var: 'PENSTOCK_ADMIN_KEY'" in run_command(Client(admin.gateway, ""), "keys", "list", status=2)
    assert "the key is not allowed: expected ASCII" in run_command(
        Client(admin.gateway, "schlüssel"), "keys", "list", status=1
    )


def test_changes_nothing_without_confirmation(admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"
    write_yaml({"version": 1, "workspaces": [{"name": "nobody wants it"}]}, file)
    before = admin.read("/v1/workspaces")["total"]
    for words, output in (((str(file),), "n\n"), ((str(file),), ""), (("-",), file.read_text())):
        assert "nothing was done" in run_command(admin, "apply", *words, input_text=output, status=1)
    assert admin.read("/v1/workspaces")["total"] == before


def test_commands_create_list_rotate_and_delete_keys(admin: Client):
    workspace = admin.read("/v1/workspaces")["data"][0]["slug"]
    text = run_command(admin, "keys", "create", "app", "--workspace", workspace, "--scope", "completions.write").strip()
    headers = {**MOCK_HEADERS, "x-gateway-api-key": text}
    wait_for(
        "the key",
        lambda: send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers).status == 200 or None,
        3,
    )
    heads, line = run_command(admin, "keys", "list", "--workspace", workspace).splitlines()
    assert heads.split() == ["id", "key", "type", "status", "name"]
    key_id, masked, kind, status, name = line.split("  ")
    assert (masked, kind, status, name) == (f"{text[:2]}*****{text[-3:]}", "workspace-service", "active", "app")
    assert run_command(admin, "keys", "rotate", key_id).strip() not in {"", text}
    assert "in transition" in run_command(admin, "keys", "rotate", key_id, status=1)
    run_command(admin, "keys", "delete", key_id)
    assert json.loads(run_command(admin, "keys", "list", "--workspace", workspace, "--json")) == []
    assert "scopes[0] 'fly' is not known" in run_command(
        admin, "keys", "create", "x", "--workspace", workspace, "--scope", "fly", status=1
    )
    assert "AB05" not in run_command(Client(admin.gateway, "nobody"), "keys", "list", status=1)


def test_commands_save_show_and_update_configs(admin: Client, tmp_path: Path):
    workspace = admin.read("/v1/workspaces")["data"][0]["slug"]
    file = tmp_path / "config.json"
    file.write_text('{"provider": "mock"}')
    slug = run_command(admin, "config", "save", str(file), "--name", "main", "--workspace", workspace).strip()
    assert json.loads(run_command(admin, "config", "show", slug)) == {"provider": "mock"}
    run_command(admin, "config", "save", "-", "--slug", slug, input_text='{"provider": "openai"}')
    assert json.loads(run_command(admin, "config", "show", slug)) == {"provider": "openai"}
    (listed,) = json.loads(run_command(admin, "config", "list", "--workspace", workspace, "--json"))
    assert (listed["slug"], listed["status"]) == (slug, "active")
    assert "provider" in run_command(
        admin, "config", "save", "-", "--slug", slug, input_text='{"provider": 1}', status=1
    )
    assert "is not JSON" in run_command(admin, "config", "save", "-", "--slug", slug, input_text="{", status=1)
    run_command(admin, "config", "save", str(file), status=2)


def test_commands_set_up_a_workspace_with_a_provider(admin: Client, provider: Mock):
    workspace = run_command(admin, "workspaces", "create", "Commands").strip()
    options = ("--provider", "mock", "--key-file", "-", "--workspace", workspace)
    slug = run_command(admin, "integrations", "create", "Mock", *options, input_text="sk-canary-of-a-command\n").strip()
    created = run_command(admin, "providers", "create", "of-commands", "--integration", slug, "--workspace", workspace)
    assert created.strip() == "@of-commands"
    assert "of-commands" in run_command(admin, "providers", "list", "--workspace", workspace)
    key = run_command(admin, "keys", "create", "app", "--workspace", workspace, "--scope", "completions.write").strip()
    headers = {**MOCK_HEADERS, "x-gateway-provider": "@of-commands", "x-gateway-api-key": key}
    provider.clear_ledger()
    wait_for(
        "the provider",
        lambda: send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers).status == 200 or None,
    )
    assert provider.ledger()[-1]["headers"]["authorization"] == "Bearer sk-canary-of-a-command"
    link = run_command(admin, "users", "invite", "new@example.com", "--workspace", workspace).strip()
    assert link.startswith("http")
    audited = json.loads(run_command(admin, "audit", "--resource", "integrations", "--limit", "1", "--json"))
    assert [(row["action"], row["resource_type"]) for row in audited] == [("create", "integrations")]
    assert "canary" not in json.dumps(audited)
    run_command(admin, "providers", "delete", "of-commands", "--workspace", workspace)


def test_exported_state_recreates_a_store_and_is_idempotent(admin_pair: tuple[Client, Client], tmp_path: Path):
    source, target = admin_pair
    create_one_of_each(source)
    file = tmp_path / "state.yaml"
    run_command(source, "export", "-o", str(file))
    written = file.read_text()
    assert "canary" not in written
    assert written.startswith("# Credentials are masked.")
    assert run_command(source, "apply", str(file)).strip() == "nothing to do"
    refusal = run_command(target, "apply", str(file), "--yes", status=1)
    for workspace in (
        "workspaces[1].virtual_keys[0].key",
        "organisation.integrations[0].key",
        "organisation.integrations[0].configurations.custom_headers.x-team",
        "organisation.integrations[0].models[0].configurations.custom_headers.x-model",
        "organisation.secret_references[0].auth_config.vault_token",
    ):
        assert f"{workspace}: is masked, and there is nothing yet" in refusal
    document = replace_masks(YAML(typ="safe").load(written))
    write_yaml(document, file)
    assert "'HEADER' is not set" in run_command(target, "apply", str(file), "--yes", status=1)
    planned = run_command(target, "apply", str(file), "--dry-run", status=2, **SECRETS)
    listed = json.loads(run_command(target, "apply", str(file), "--plan", "--json", status=2, **SECRETS))["changes"]
    assert [f"{change['sign']} {change['summary']}" for change in listed] == planned.splitlines()
    assert "--json needs --plan" in run_command(target, "apply", str(file), "--yes", "--json", status=2, **SECRETS)
    for line in (
        "+ workspace Rockets",
        "+ secret_references kept",
        "+ integrations shared",
        "+ Rockets / integrations inner",
        "+ Rockets / providers of ours",
        "+ Rockets / configs main",
        "+ Rockets / labels pilot",
        "+ Rockets / prompt_partials a",
        "+ Rockets / prompts greeting",
        "+ Rockets / api_keys app",
        "+ api_keys of all",
        "+ invites new@x.test",
        "~ organisation settings",
    ):
        assert line in planned
    assert target.read("/v1/workspaces")["total"] == 1
    done = run_command(target, "apply", str(file), input_text="y\n", **SECRETS)
    assert "canary" not in done
    assert "link of invites new@x.test (it is shown this once): http" in done
    text = next(line for line in done.splitlines() if "key of Rockets / api_keys app" in line).split()[-1]
    # The key's default config names a saved provider.
    headers = {"content-type": "application/json", "x-gateway-api-key": text}
    wait_for(
        "the key",
        lambda: send_raw_request(target.gateway.base_url, CHAT_PATH, chat_body(), headers).status == 200 or None,
        3,
    )
    assert run_command(target, "apply", str(file), "--yes", "--prune", **SECRETS).splitlines() == ["nothing to do"]
    again = replace_masks(YAML(typ="safe").load(run_command(target, "export")))
    assert without_generated_ids(again) == without_generated_ids(document)


def without_generated_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Removes generated ids, which differ between two stores. Slugs are the same, because clients send them."""
    slugs = {workspace["slug"] for workspace in document["workspaces"]}

    def remove_ids(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: remove_ids(item) for name, item in value.items() if name != "id" or item in slugs}
        return [remove_ids(item) for item in value] if isinstance(value, list) else value

    return remove_ids(document)


def test_apply_keeps_slugs_or_rejects_them(admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"
    configs = [{"slug": "by-hand", "name": "mine", "config": {"provider": "mock"}}]
    workspace = {"name": "By hand", "slug": "team-by-hand", "configs": configs}
    write_yaml({"version": 1, "workspaces": [workspace]}, file)
    assert "2 done" in run_command(admin, "apply", str(file), "--yes")
    assert admin.read("/v1/configs/by-hand")["name"] == "mine"
    assert admin.read("/v1/workspaces/team-by-hand")["name"] == "By hand"
    assert run_command(admin, "apply", str(file), "--yes").strip() == "nothing to do"
    write_yaml({"version": 1, "workspaces": [{**workspace, "slug": "other"}]}, file)
    output = run_command(admin, "apply", str(file), "--yes", status=1)
    assert "workspaces[0].slug: is not 'team-by-hand', the slug of the workspace with this name" in output


def test_apply_updates_changed_fields_in_place(new_admin: Client, tmp_path: Path):
    admin = new_admin
    workspace = create_one_of_each(admin)
    document = YAML(typ="safe").load(run_command(admin, "export"))
    complete, rockets = document["organisation"], document["workspaces"][1]
    shared = complete["integrations"][0]
    shared["description"] = "some"
    shared["key"] = "${SHARED_KEY}"
    shared["allow_all_models"] = True
    shared["models"][1]["enabled"] = True
    del shared["models"][0]
    shared["workspaces"][0]["enabled"] = False
    # Changing an address requires sending its credential again.
    complete["secret_references"][0]["auth_config"] |= {
        "vault_addr": "https://other.example",
        "vault_token": "${VAULT}",
    }
    rockets["members"][0]["role"] = "admin"
    next(row for row in rockets["providers"] if row["slug"] == "ours")["note"] = "noted"
    rockets["settings"] = {"block_inline_config": True}
    rockets["security_settings"] = {"membersViewLogs": True}
    rockets["configs"][0]["config"]["retry"] = {"attempts": 2}
    file = tmp_path / "state.yaml"
    write_yaml(document, file)
    secrets = {"SHARED_KEY": "sk-another-key-0123456789", "VAULT": SECRETS["VAULT"]}
    planned = run_command(admin, "apply", str(file), "--yes", "--prune", **secrets)
    assert set(planned.splitlines()) == {
        "~ integrations shared: key, description, allow_all_models, models, workspaces",
        "~ secret_references kept: auth_config",
        "~ workspace Rockets: settings, security_settings",
        "~ Rockets / members owner@localhost: role",
        "~ Rockets / providers of ours: note",
        "~ Rockets / configs main: config",
        "6 done",
    }
    assert admin.read("/v1/integrations/shared")["masked_key"] == "sk*****789"
    models = {row["slug"]: row for row in admin.read("/v1/integrations/shared/models")["models"]}
    assert ("custom" in models, models["gpt-4o"]["enabled"]) == (False, True)
    access, gone = admin.read("/v1/integrations/shared/workspaces")["workspaces"]
    assert (access["workspace_id"], access["enabled"], gone["enabled"]) == (workspace["id"], False, True)
    assert admin.read("/v1/secret-references/kept")["auth_config"]["vault_addr"] == "https://other.example"
    row = admin.read(f"/v1/workspaces/{workspace['id']}")
    assert row["settings"] == {"block_inline_config": True}
    # Flags that the file omits keep their values.
    assert (row["security_settings"]["membersViewLogs"], row["security_settings"]["managersWriteConfigs"]) == (
        True,
        False,
    )
    again = run_command(admin, "apply", str(file), "--yes", "--prune", **secrets)
    assert again == "nothing to do\n"
    # A list that the file omits stays as it is.
    write_yaml({"version": 1, "organisation": {"settings": {}}}, file)
    assert run_command(admin, "apply", str(file), "--yes", "--prune") == "nothing to do\n"


def test_opened_section_and_its_flags_are_applied_in_one_run(new_admin: Client, tmp_path: Path):
    """A section that the organisation opens starts with the organisation's values. The workspace's flags override them
    in the same run.
    """
    admin = new_admin
    workspace = admin.create("/v1/workspaces", {"name": "Rockets", "security_settings": {"membersViewLogs": True}})
    settings = "/v1/admin/organisation/settings"
    closed = {"security_settings_overrides": {"logs": False, "configs": False}}
    expect_ok(admin.put(settings, {**closed, "block_inline_config": False}))
    file = tmp_path / "state.yaml"
    document = YAML(typ="safe").load(run_command(admin, "export"))
    complete, rockets = document["organisation"]["settings"], document["workspaces"][1]
    # All flags of the organisation change; those of the workspace stay as before or change.
    complete["security_settings"] |= {"membersViewLogs": False, "membersViewConfigs": False}
    complete["security_settings_overrides"] |= {"logs": True, "configs": True, "data_plane_security_settings": True}
    complete["block_inline_config"] = True
    rockets["security_settings"] |= {"membersViewLogs": True, "membersViewConfigs": True, "membersWriteConfigs": True}
    rockets["settings"] = {"block_inline_config": False}
    write_yaml(document, file)
    assert (
        "~ workspace Rockets: settings, security_settings"
        in run_command(admin, "apply", str(file), "--yes").splitlines()
    )
    fetched = admin.read(f"/v1/workspaces/{workspace['id']}")
    names = ("membersViewLogs", "membersViewConfigs", "membersWriteConfigs")
    assert [fetched["security_settings"][name] for name in names] == [True] * 3
    assert fetched["settings"] == {"block_inline_config": False}
    assert run_command(admin, "apply", str(file), "--yes") == "nothing to do\n"


def test_model_moves_to_another_host_only_with_credentials(admin: Client, tmp_path: Path):
    other = admin.with_new_key(
        kind="organisation/service",
        scopes=[f"organisation_integrations.{verb}" for verb in ("create", "update", "read")],
    )
    body = {"name": "moving", "slug": "moving", "ai_provider_id": "openai", "key": SECRETS["SHARED_KEY"]}
    other.create("/v1/integrations", {**body, "configurations": {"custom_headers": {"x-team": SECRETS["HEADER"]}}})
    there = YAML(typ="safe").load(run_command(admin, "export"))["organisation"]["integrations"]
    moving = next(row for row in there if row["slug"] == "moving")
    host = {"custom_host": "https://one.test"}
    moving["models"] = [{"slug": "custom", "enabled": True, "is_custom": True, "configurations": host}]
    file = tmp_path / "state.yaml"
    write_yaml({"version": 1, "organisation": {"integrations": [moving]}}, file)
    output = run_command(admin, "apply", str(file), "--yes", status=1)
    assert "organisation.integrations[0]: integrations moving: models: " in output
    assert "key must be sent again" in output
    moving["configurations"] = {"custom_headers": {"x-team": "${HEADER}"}}
    write_yaml({"version": 1, "organisation": {"integrations": [moving]}}, file)
    assert "key must be sent again" in run_command(admin, "apply", str(file), "--yes", status=1, **SECRETS)
    moving["key"] = "${SHARED_KEY}"
    write_yaml({"version": 1, "organisation": {"integrations": [moving]}}, file)
    done = run_command(admin, "apply", str(file), "--yes", **SECRETS).splitlines()
    assert done == ["~ integrations moving: key, configurations, models", "1 done"]
    assert run_command(admin, "apply", str(file), "--yes", **SECRETS) == "nothing to do\n"


def test_apply_reports_error_paths_and_still_shows_new_keys(admin: Client, tmp_path: Path):
    slug = admin.read("/v1/workspaces")["data"][0]["slug"]
    keys = [{"name": "good", "scopes": ["completions.write"]}, {"name": "bad", "scopes": ["fly"]}]
    write_yaml({"version": 1, "workspaces": [{"slug": slug, "name": "x", "api_keys": keys}]}, tmp_path / "state.yaml")
    output = run_command(admin, "apply", str(tmp_path / "state.yaml"), "--yes", status=1)
    assert "workspaces[0].api_keys[1]: x / api_keys bad: " in output
    assert "scopes[0] 'fly' is not known" in output
    assert "key of x / api_keys good (it is shown this once): " in output


def test_apply_rejects_changes_of_immutable_fields(admin: Client, tmp_path: Path):
    workspace = admin.create("/v1/workspaces", {"name": "chosen"})
    of_all = admin.create(
        "/v1/integrations", {"name": "one", "slug": "once", "ai_provider_id": "openai", "key": "sk-1"}
    )
    access = {"workspaces": [{"id": workspace["id"], "enabled": True}]}
    expect_ok(admin.put("/v1/integrations/once/workspaces", access))
    body = {"name": "p", "slug": "chosen", "integration_id": "once", "workspace_id": workspace["id"]}
    admin.create("/v1/providers", body)
    file = tmp_path / "state.yaml"

    def apply_state(provider: str, integration: str, status: int) -> str:
        complete = {"integrations": [{"slug": "once", "name": "one", "ai_provider_id": provider}]}
        providers = [{"slug": "chosen", "name": "p", "integration_id": integration}]
        workspaces = [{"slug": workspace["slug"], "name": "chosen", "providers": providers}]
        write_yaml({"version": 1, "organisation": complete, "workspaces": workspaces}, file)
        return run_command(admin, "apply", str(file), "--yes", status=status)

    for provider, integration in (("openai", "once"), ("openai", of_all["id"]), ("open-ai", "once")):
        assert apply_state(provider, integration, 0) == "nothing to do\n"
    output = apply_state("mock", "another", 1)
    assert "organisation.integrations[0].ai_provider_id: is chosen once" in output
    assert "workspaces[0].providers[0].integration_id: is chosen once" in output


def test_apply_accepts_reordered_scopes_and_a_moved_default(new_admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"
    workspace = new_admin.create("/v1/workspaces", {"name": "words"})
    scopes = ["logs.list", "completions.write", "logs.list"]
    invite = {"email": "later@x.test", "role": "member", "workspace_api_key_details": {"scopes": scopes}}

    def apply_defaults(*defaults: int) -> list[str]:
        configs = [
            {"name": f"c{number}", "config": {"retry": {"attempts": number}}, "is_default": is_default}
            for number, is_default in enumerate(defaults)
        ]
        workspaces = [{"slug": workspace["slug"], "name": "words", "configs": configs}]
        write_yaml({"version": 1, "organisation": {"invites": [invite]}, "workspaces": workspaces}, file)
        return run_command(new_admin, "apply", str(file), "--yes").splitlines()

    assert "+ invites later@x.test" in apply_defaults(1)
    assert apply_defaults(1) == ["nothing to do"]
    assert {"~ words / configs c0: is_default", "+ words / configs c1"} < set(apply_defaults(0, 1))
    assert apply_defaults(0, 1) == ["nothing to do"]
    for defaults in ((1, 0), (0, 1)):
        assert {f"~ words / configs c{number}: is_default" for number in (0, 1)} < set(apply_defaults(*defaults))
        assert apply_defaults(*defaults) == ["nothing to do"]
        second_workspace = new_admin.read(f"/v1/configs?workspace_id={workspace['id']}")["data"]
        assert {row["name"]: row["is_default"] for row in second_workspace} == {"c0": defaults[0], "c1": defaults[1]}


def test_rejects_two_default_configs_before_any_change(new_admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"
    configs = [{"name": name, "config": {}, "is_default": first} for name, first in (("a", 1), ("b", 0), ("c", True))]
    write_yaml({"version": 1, "workspaces": [{"name": "other"}, {"name": "words", "configs": configs}]}, file)
    refusal = run_command(new_admin, "apply", str(file), "--yes", status=1)
    assert "workspaces[1].configs[2].is_default: makes 'c' the default beside workspaces[1].configs[0] ('a')" in refusal
    assert new_admin.read("/v1/workspaces")["total"] == 1


def test_apply_shows_progress_on_a_terminal(admin: Client, tmp_path: Path):
    write_yaml(
        {"version": 1, "workspaces": [{"name": f"place {number}"} for number in range(12)]}, tmp_path / "state.yaml"
    )
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "penstock", "apply", str(tmp_path / "state.yaml"), "--yes"]
    env = {"PENSTOCK_URL": admin.gateway.base_url, "PENSTOCK_API_KEY": admin.key, "TERM": "xterm"}
    before = admin.read("/v1/workspaces")["total"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=terminal, env=env, timeout=30)
    os.close(terminal)
    fetched = os.read(controller, 65536).decode()
    os.close(controller)
    assert ("applying" in fetched, "100%" in fetched) == (True, True)
    assert admin.read("/v1/workspaces")["total"] == before + 12


def test_apply_deletes_missing_objects_only_with_prune(new_admin: Client, tmp_path: Path):
    admin = new_admin
    workspace = create_one_of_each(admin)
    document = YAML(typ="safe").load(run_command(admin, "export"))
    rockets = next(actual for actual in document["workspaces"] if actual["name"] == "Rockets")
    rockets["virtual_keys"] = []
    rockets["description"] = "down"
    file = tmp_path / "state.yaml"
    write_yaml(document, file)
    run_command(admin, "apply", str(file), "--yes")
    assert admin.read(f"/v1/workspaces/{workspace['id']}")["description"] == "down"
    keys = f"/v1/virtual-keys?workspace_id={workspace['id']}"
    names = {row["name"] for row in admin.read(keys)["data"]}
    assert "the provider" in names
    assert "- Rockets / virtual_keys the provider" in run_command(admin, "apply", str(file), "--prune", "--yes")
    assert {row["name"] for row in admin.read(keys)["data"]} == names - {"the provider"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML expected the node content, but found '<stream end>' in line 1"),
        ("\udcff", "is not YAML 'utf-8' codec can't decode"),
        ("- a", "mapping"),
        ("version: 2", "version must be 1"),
        ("{version: 1, colour: red}", "colour is not known; allowed version, organisation, workspaces"),
        ("{version: 1, organisation: []}", "nothing to do"),
        ("{version: 1, organisation: [1]}", "organisation must be a mapping"),
        ("{version: 1, workspaces: {a: b}}", "workspaces must be a list"),
        ("{version: 1, workspaces: [{slug: a}]}", "workspaces[0].name is needed"),
        ("{version: 1, workspaces: [{name: a, keys: []}]}", "workspaces[0].keys is not known"),
        ("{version: 1, workspaces: [{name: a, configs: [{}]}]}", "workspaces[0].configs[0].name is needed"),
        ("{version: 1, workspaces: [{name: a, configs: [5]}]}", "workspaces[0].configs[0] must be a mapping"),
        ("{version: 1, workspaces: [{name: a, configs: [{name: b, x: 1}]}]}", "configs[0].x is not known"),
        ("{version: 1, organisation: {users: [{email: a@b.test}]}}", "'a@b.test' is no user here"),
        ("{version: 1, workspaces: [{name: a, members: [{email: a@b.test}]}]}", "members[0].email 'a@b.test' is no"),
    ],
)
def test_rejects_invalid_state_files(admin: Client, tmp_path: Path, text: str, words: str):
    (tmp_path / "state.yaml").write_text(text, errors="surrogateescape")
    status = 0 if words == "nothing to do" else 1
    assert words in run_command(admin, "apply", str(tmp_path / "state.yaml"), status=status).replace(":", "")


def test_applying_again_finishes_an_interrupted_apply(admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"
    configs = [{"name": "good", "config": {"provider": "mock"}}, {"name": "bad", "config": {"provider": 5}}]
    write_yaml({"version": 1, "workspaces": [{"name": "broken off", "configs": configs}]}, file)
    output = run_command(admin, "apply", str(file), "--yes", status=1)
    assert "workspaces[0].configs[1]: broken off / configs bad: " in output
    configs[1]["config"] = {"provider": "openai"}
    write_yaml({"version": 1, "workspaces": [{"name": "broken off", "configs": configs}]}, file)
    assert run_command(admin, "apply", str(file), "--yes").splitlines() == ["+ broken off / configs bad", "1 done"]
    assert run_command(admin, "apply", str(file), "--yes") == "nothing to do\n"


def test_plain_value_replaces_a_masked_config_value(admin: Client, tmp_path: Path):
    file = tmp_path / "state.yaml"

    def apply_team(team: str) -> str:
        config = {"provider": "mock", "override_params": {"metadata": {"api_key": team}}}
        write_yaml(
            {"version": 1, "workspaces": [{"name": "teams", "configs": [{"name": "main", "config": config}]}]}, file
        )
        return run_command(admin, "apply", str(file), "--yes")

    def config_version() -> str:
        (workspace,) = (row for row in admin.read("/v1/workspaces")["data"] if row["name"] == "teams")
        (row,) = admin.read(f"/v1/configs?workspace_id={workspace['id']}")["data"]
        return admin.read(f"/v1/configs/{row['slug']}")["version_id"]

    apply_team("free")
    first = config_version()
    assert apply_team("gold").splitlines() == ["~ teams / configs main: config", "1 done"]
    assert (second := config_version()) != first
    # The command cannot see that the value is unchanged; only the gateway can.
    assert apply_team("gold") == "nothing to do\n"
    assert config_version() == second
    assert apply_team("*****") == "nothing to do\n"
