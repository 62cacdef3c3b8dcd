"""Configs over HTTP. Requests are served by the saved config."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import ADMIN_KEY, Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock


# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

MOCK_TARGET = {"provider": "mock", "name": "a"}
CONDITIONAL_STRATEGY = {
    "mode": "conditional",
    "conditions": [{"query": {"params.model": "m"}, "then": "a"}],
    "default": "a",
}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/admin/workspaces", {"name": "Configs"})["id"]


@pytest.fixture
def config(admin: Client, workspace: str) -> dict[str, Any]:
    body = {"name": "My config", "config": {"provider": "mock"}, "workspace_id": workspace}
    return admin.create("/v1/configs", body)


def test_config_is_returned_as_a_json_string(admin: Client, workspace: str, config: dict[str, Any]):
    assert config["slug"].startswith("pc-my-con-")
    fetched = admin.read(f"/v1/configs/{config['slug']}")
    assert json.loads(fetched["config"]) == {"provider": "mock"}
    expected = {"name": "My config", "workspace_id": workspace, "is_default": 0, "status": "active", "format": "json"}
    assert expected.items() <= fetched.items()
    assert fetched == admin.read(f"/v1/configs/{config['id']}")
    assert fetched["version_id"] == config["version_id"]


def test_default_config_is_unique_and_not_applied_to_requests(admin: Client):
    target_workspace, other = (
        admin.create("/v1/workspaces", {"name": name})["id"] for name in ("defaults", "other defaults")
    )
    body = {"name": "d", "config": {"provider": "mock"}, "isDefault": 1}
    elsewhere = admin.create("/v1/configs", {**body, "workspace_id": other})["slug"]

    def default_slugs(workspace: str) -> list[str]:
        listed = admin.read(f"/v1/configs?workspace_id={workspace}")["data"]
        return [row["slug"] for row in listed if row["is_default"]]

    first, second = (admin.create("/v1/configs", {**body, "workspace_id": target_workspace})["slug"] for _ in range(2))
    assert default_slugs(target_workspace) == [second]
    version = expect_ok(admin.put(f"/v1/configs/{first}", {"isDefault": 1}))["version_id"]
    assert (default_slugs(target_workspace), default_slugs(other)) == ([first], [elsewhere])
    # Making a config the default creates no new version.
    assert admin.read(f"/v1/configs/{first}/versions")["total"] == 1
    assert admin.read(f"/v1/configs/{first}")["version_id"] == version
    row = admin.read(f"/v1/configs/{first}")
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    audit_query = (
        f"{span}&organisation_id={row['organisation_id']}&workspace_id={target_workspace}&resource_type=configs"
    )
    records = admin.read(f"/v1/audit-logs?{audit_query}")["records"]
    moved = admin.read(f"/v1/configs/{second}")["id"]
    assert {row["id"], moved} <= {record["resource_id"] for record in records if record["action"] == "update"}
    # A request that names neither config nor provider does not get the default config.
    key = admin.with_new_key(workspace_id=target_workspace, scopes=["completions.write"]).key
    fields = {"content-type": "application/json", "x-gateway-api-key": key}
    assert send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), fields).status == 400
    expect_ok(admin.put(f"/v1/configs/{first}", {"isDefault": 0}))
    assert default_slugs(target_workspace) == []
    expect_error(admin.put(f"/v1/configs/{first}", {"isDefault": 2}), 400, "AB01", "isDefault")


def test_versions_are_paged_by_number(admin: Client, config: dict[str, Any]):
    path = f"/v1/configs/{config['slug']}"
    for number in range(2, 6):
        config = {"provider": "mock", "override_params": {"seed": number}}
        expect_ok(admin.put(path, {"name": f"version {number}", "config": config}))

    def list_versions(query: str) -> tuple[int, list[str]]:
        listed = admin.read(f"{path}/versions?{query}")
        return listed["total"], [version["name"] for version in listed["data"]]

    newest = [*(f"version {number}" for number in (5, 4, 3, 2)), "My config"]
    assert list_versions("") == (5, newest)
    for size in (1, 2, 3, 5, 9):
        for order, expected in (("desc", newest), ("asc", newest[::-1])):
            pages = [list_versions(f"page_size={size}&current_page={page}&order={order}") for page in range(6)]
            assert {total for total, _ in pages} == {5}
            assert [name for _, page in pages for name in page] == expected
            assert all(len(page) <= size for _, page in pages)
    expect_error(admin.get(f"{path}/versions?sort=name"), 400, "AB01", "sort")


def test_dry_run_returns_the_version_and_changes_nothing(admin: Client, workspace: str):
    body = {"name": "dry", "config": {"provider": "openai", "api_key": "sk-0123456789"}, "workspace_id": workspace}
    config = admin.create("/v1/configs", body)
    path = f"/v1/configs/{config['slug']}"
    before = admin.read(path)
    for key, version in (
        ("sk-0123456789", config["version_id"]),
        ("sk-0000456789", ""),
        ("sk*****789", config["version_id"]),
    ):
        changed = {"config": {"provider": "openai", "api_key": key}}
        assert expect_ok(admin.put(f"{path}?dry_run=true", changed))["version_id"] == version
    assert expect_ok(admin.put(f"{path}?dry_run=true", {"name": "wet"}))["version_id"] == config["version_id"]
    expect_error(admin.put(f"{path}?dry_run=true", {"config": {"provider": 5}}), 400, "AB01", "config.provider")
    assert admin.read(path) == before
    assert admin.read(f"{path}/versions")["total"] == 1


def test_requests_are_served_by_the_saved_config(admin: Client, workspace: str, config: dict[str, Any], provider: Mock):
    key = admin.create(
        "/v1/api-keys/workspace/service", {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace}
    )["key"]
    headers = {"x-gateway-api-key": key, "x-gateway-config": config["slug"], "content-type": "application/json"}
    response = wait_for(
        "the key",
        lambda: (
            actual
            if (actual := send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers)).status == 200
            else None
        ),
        2,
    )
    assert response.status == 200
    assert len(provider.ledger()) == 1


def test_saves_many_targets_and_reports_every_error(admin: Client, workspace: str):
    target = {"provider": "mock", "retry": {"attempts": 2}}
    config = {"strategy": {"mode": "fallback"}, "targets": [target, {**target, "override_params": {"model": "m"}}]}
    created = admin.create("/v1/configs", {"name": "Fallback", "config": config, "workspace_id": workspace})
    assert json.loads(admin.read(f"/v1/configs/{created['slug']}")["config"]) == config
    config["targets"] = [{"provider": "mock", "retry": {"attempts": 6}}, {"weight": -1, "onStatusCodes": [429]}]
    body = {"name": "Bad", "config": config, "workspace_id": workspace}
    refused = admin.post("/v1/configs", body)
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == [
        "config.targets[0].retry.attempts",
        "config.targets[1].weight",
        "config.targets[1].onStatusCodes",
    ]


def test_rejects_configs_without_effect_or_with_unused_fields(admin: Client, workspace: str):
    targets = [{"provider": "mock", "name": "a"}]
    sticky = {"hash_fields": ["metadata.user"]}
    without = {name: value for name, value in CONDITIONAL_STRATEGY.items() if name != "default"}
    for config, path in (
        ({}, "config"),
        ({"name": "x"}, "config"),
        ({"strategy": {"mode": "fallback", "sticky": sticky}, "targets": targets}, "config.strategy.sticky"),
        ({"strategy": {**CONDITIONAL_STRATEGY, "mode": "single"}, "targets": targets}, "config.strategy.conditions"),
        ({"strategy": without, "targets": targets}, "config.strategy"),
    ):
        response = admin.post("/v1/configs", {"name": "Idle", "config": config, "workspace_id": workspace})
        assert (response.status, response.json()["data"]["errors"][0]["path"]) == (400, path)


SECRET, OTHER = "sk-canary-0123456789", "sk-canary-9876543789"


def fallback_config(*keys: str) -> dict[str, Any]:
    targets = [{"provider": "mock", "api_key": key, "weight": weight} for weight, key in enumerate(keys, 1)]
    return {"strategy": {"mode": "fallback"}, "targets": targets}


def save_config(admin: Client, path: str, config: dict[str, Any]) -> str:
    return expect_ok(admin.put(path, {"config": config}))["version_id"]


def sent_keys(provider: Mock) -> list[str]:
    return [line["headers"]["authorization"].removeprefix("Bearer ") for line in provider.ledger()]


def test_masked_credentials_round_trip_and_reach_the_provider(admin: Client, workspace: str, provider: Mock):
    config = admin.create(
        "/v1/configs", {"name": "Keys", "config": fallback_config(SECRET, OTHER), "workspace_id": workspace}
    )
    path = f"/v1/configs/{config['slug']}"
    fetched = json.loads(admin.read(path)["config"])
    assert [target["api_key"] for target in fetched["targets"]] == ["sk*****789"] * 2
    assert save_config(admin, path, fetched) == config["version_id"]
    app = admin.with_new_key(scopes=["completions.write"], workspace_id=workspace)
    headers = {"x-gateway-api-key": app.key, "x-gateway-config": config["slug"], "content-type": "application/json"}

    def first_sent_key() -> str | None:
        provider.clear_ledger()
        send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body(), headers)
        return next(iter(sent_keys(provider)), None)

    wait_for("the key", lambda: first_sent_key() == SECRET or None, 5)
    # The targets swap places, and their credentials are not sent again.
    turned = {**fetched, "targets": fetched["targets"][::-1]}
    version = save_config(admin, path, turned)
    assert version != config["version_id"]
    wait_for("the other target", lambda: first_sent_key() == OTHER or None, 5)
    save_config(admin, path, fallback_config("sk-a-third-credential"))
    # Saving an older version in its masked form restores its credentials.
    remaining = admin.read(f"{path}/versions")["data"][-1]
    save_config(admin, path, json.loads(remaining["config"]))
    wait_for("the first again", lambda: first_sent_key() == SECRET or None, 5)
    admin.put(path, {"name": "Renamed"})
    assert first_sent_key() == SECRET
    # Another credential with the same first and last characters is another version. Its mask is then ambiguous.
    version = admin.read(path)["version_id"]
    assert save_config(admin, path, fallback_config(OTHER, "sk-canary-another789")) != version
    save_config(admin, path, fallback_config("sk-a-third-credential"))
    expect_error(admin.put(path, {"config": fetched}), 400, "AB01", "config.targets[0].api_key", "is masked")
    content = json.dumps([admin.read(path), admin.read(f"{path}/versions"), read_audit_log(admin)])
    assert SECRET not in content
    assert OTHER not in content


def read_audit_log(admin: Client) -> dict[str, Any]:
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    return admin.read(f"/v1/audit-logs?{span}&organisation_id={organisation}&page_size=100")


def test_unknown_mask_is_rejected_with_its_path(admin: Client, workspace: str):
    body = {"name": "Masked", "config": fallback_config(SECRET, "sk*****789"), "workspace_id": workspace}
    expect_error(admin.post("/v1/configs", body), 400, "AB01", "config.targets[1].api_key", "is masked")
    config = admin.create("/v1/configs", {**body, "config": fallback_config(SECRET)})
    elsewhere = {"targets": [{"provider": "openai", "api_key": "sk*****789"}]}
    response = admin.put(f"/v1/configs/{config['slug']}", {"config": elsewhere})
    expect_error(response, 400, "AB01", "config.targets[0].api_key", "hint")


def test_masked_credential_is_bound_to_its_address_and_version(admin: Client, workspace: str):
    target = {"provider": "azure-ai", "azure_foundry_url": "https://good.test", "api_key": SECRET}
    config = admin.create("/v1/configs", {"name": "Foundry", "config": target, "workspace_id": workspace})
    path = f"/v1/configs/{config['slug']}"
    fetched = json.loads(admin.read(path)["config"])
    moved = {**fetched, "azure_foundry_url": "https://elsewhere.test"}
    expect_error(admin.put(path, {"config": moved}), 400, "AB01", "config.api_key", "is masked")
    params = {"provider": "openai", "override_params": {"api_key": fetched["api_key"]}}
    expect_error(admin.put(path, {"config": params}), 400, "AB01", "config.override_params.api_key", "is masked")
    save_config(admin, path, fallback_config(SECRET, OTHER))
    # No older version shows which of the two credentials the mask stands for.
    both = json.loads(admin.read(path)["config"])["targets"]
    save_config(admin, path, fallback_config(SECRET))
    save_config(admin, path, fallback_config(SECRET, OTHER))
    changed = [{**item, "weight": 7 + index} for index, item in enumerate(both)]
    response = admin.put(path, {"config": {**fallback_config(), "targets": changed}})
    expect_error(response, 400, "AB01", "config.targets[0].api_key", "several credentials")


def test_only_changed_values_create_a_version(admin: Client, config: dict[str, Any]):
    path = f"/v1/configs/{config['slug']}"
    texts = {"author": "Somebody Else", "tools": [{"server_url": "https://mcp.test/?token=sk-canary"}]}
    actual = {config["version_id"]}
    for value in (1, True, 1.0, 1):
        version = save_config(admin, path, {"provider": "mock", "override_params": {"n": value, **texts}})
        assert version not in actual
        actual.add(version)
        fetched = admin.read(path)["config"]
        assert expect_ok(admin.put(path, {"config": fetched}))["version_id"] == version
    assert "Somebody Else" in fetched
    assert "https://mcp.test/?*****" in fetched


def test_limits_the_credentials_of_a_config(admin: Client, workspace: str):
    headers = {f"x-{index}": "secret" for index in range(1001)}
    config = {"provider": "mock", "override_params": {"tools": [{"headers": headers}]}}
    body = {"name": "Many", "config": config, "workspace_id": workspace}
    expect_error(admin.post("/v1/configs", body), 400, "AB01", "config", "at most 1000 credentials, not 1001")
    del headers["x-0"]
    path = f"/v1/configs/{admin.create('/v1/configs', body)['slug']}"
    fetched = admin.read(path)
    assert expect_ok(admin.put(path, {"config": fetched["config"]}))["version_id"] == fetched["version_id"]


def test_rejects_more_targets_than_allowed(admin: Client, workspace: str):
    config = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "mock"}] * 101}
    refused = admin.post("/v1/configs", {"name": "Many", "config": config, "workspace_id": workspace})
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == ["config.targets"]


def test_operator_limits_apply_when_saving(tmp_path: Path, provider: Mock):
    limits = {
        "MAX_ROOT_CONFIG_TARGETS": "2",
        "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS": "3",
        "MAX_NESTED_CONFIG_TARGETS": "1",
    }
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", **limits}
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        body = {"name": "Config", "workspace_id": workspace["id"]}

        def error_paths(strategy: dict[str, Any], *targets: dict[str, Any]) -> list[str]:
            """Saves the config and returns the paths of its errors."""
            response = admin.post("/v1/configs", {**body, "config": {"strategy": strategy, "targets": targets}})
            assert response.status in {200, 201, 400}, response
            return [error["path"] for error in response.json()["data"]["errors"]] if response.status == 400 else []

        single, falls = {"mode": "single"}, {"mode": "fallback"}
        assert (error_paths(falls, *[MOCK_TARGET] * 2), error_paths(falls, *[MOCK_TARGET] * 3)) == (
            [],
            ["config.targets"],
        )
        assert (
            error_paths(CONDITIONAL_STRATEGY, *[MOCK_TARGET] * 3),
            error_paths(CONDITIONAL_STRATEGY, *[MOCK_TARGET] * 4),
        ) == ([], ["config.targets"])
        small, large = ({"strategy": falls, "targets": [MOCK_TARGET] * count} for count in (1, 2))
        assert (error_paths(single, small), error_paths(single, large)) == ([], ["config.targets[0]"])
