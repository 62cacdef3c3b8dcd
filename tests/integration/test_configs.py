"""Configs over HTTP, on both databases; and that what is saved is what requests are served by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.managed import ADMIN_KEY, Client, good, refused
from tests.integration.serving import running
from tests.integration.wire import CHAT, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock


MOCKED = {"provider": "mock", "name": "a"}
NAMED = {"mode": "conditional", "conditions": [{"query": {"params.model": "m"}, "then": "a"}], "default": "a"}


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.made("/v1/admin/workspaces", {"name": "Configs"})["id"]


@pytest.fixture
def config(admin: Client, workspace: str) -> dict[str, Any]:
    body = {"name": "My config", "config": {"provider": "mock"}, "workspace_id": workspace}
    return admin.made("/v1/configs", body)


def test_a_config_is_read_back_as_json_in_a_text(admin: Client, workspace: str, config: dict[str, Any]):
    assert config["slug"].startswith("pc-my-con-")
    shown = admin.shown(f"/v1/configs/{config['slug']}")
    assert json.loads(shown["config"]) == {"provider": "mock"}
    expected = {"name": "My config", "workspace_id": workspace, "is_default": 0, "status": "active", "format": "json"}
    assert expected.items() <= shown.items()
    assert shown == admin.shown(f"/v1/configs/{config['id']}")
    assert shown["version_id"] == config["version_id"]


def test_a_workspace_has_one_default_which_moves_and_is_noted_and_says_nothing_to_requests(admin: Client):
    place, other = (admin.made("/v1/workspaces", {"name": name})["id"] for name in ("defaults", "other defaults"))
    body = {"name": "d", "config": {"provider": "mock"}, "isDefault": 1}
    elsewhere = admin.made("/v1/configs", {**body, "workspace_id": other})["slug"]

    def defaults(workspace: str) -> list[str]:
        listed = admin.shown(f"/v1/configs?workspace_id={workspace}")["data"]
        return [row["slug"] for row in listed if row["is_default"]]

    one, two = (admin.made("/v1/configs", {**body, "workspace_id": place})["slug"] for _ in range(2))
    assert defaults(place) == [two]
    version = good(admin.put(f"/v1/configs/{one}", {"isDefault": 1}))["version_id"]
    assert (defaults(place), defaults(other)) == ([one], [elsewhere])
    # It is no other version.
    assert admin.shown(f"/v1/configs/{one}/versions")["total"] == 1
    assert admin.shown(f"/v1/configs/{one}")["version_id"] == version
    row = admin.shown(f"/v1/configs/{one}")
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    asked_for = f"{span}&organisation_id={row['organisation_id']}&workspace_id={place}&resource_type=configs"
    records = admin.shown(f"/v1/audit-logs?{asked_for}")["records"]
    moved = admin.shown(f"/v1/configs/{two}")["id"]
    assert {row["id"], moved} <= {record["resource_id"] for record in records if record["action"] == "update"}
    # Who names no config and no provider has none.
    key = admin.with_key(workspace_id=place, scopes=["completions.write"]).key
    fields = {"content-type": "application/json", "x-gateway-api-key": key}
    assert ask(admin.gateway.base_url, CHAT, asked(), fields).status == 400
    good(admin.put(f"/v1/configs/{one}", {"isDefault": 0}))
    assert defaults(place) == []
    refused(admin.put(f"/v1/configs/{one}", {"isDefault": 2}), 400, "AB01", "isDefault")


def test_versions_are_paged_by_their_numbers(admin: Client, config: dict[str, Any]):
    path = f"/v1/configs/{config['slug']}"
    for number in range(2, 6):
        good(admin.put(path, {"name": f"version {number}"}))

    def names(query: str) -> tuple[int, list[str]]:
        listed = admin.shown(f"{path}/versions?{query}")
        return listed["total"], [version["name"] for version in listed["data"]]

    newest = [*(f"version {number}" for number in (5, 4, 3, 2)), "My config"]
    assert names("") == (5, newest)
    for size in (1, 2, 3, 5, 9):
        for order, expected in (("desc", newest), ("asc", newest[::-1])):
            pages = [names(f"page_size={size}&current_page={page}&order={order}") for page in range(6)]
            assert {total for total, _ in pages} == {5}
            assert [name for _, page in pages for name in page] == expected
            assert all(len(page) <= size for _, page in pages)
    refused(admin.get(f"{path}/versions?sort=name"), 400, "AB01", "sort")


def test_what_a_config_would_become_is_told_and_nothing_changed(admin: Client, workspace: str):
    body = {"name": "dry", "config": {"provider": "openai", "api_key": "sk-0123456789"}, "workspace_id": workspace}
    made = admin.made("/v1/configs", body)
    path = f"/v1/configs/{made['slug']}"
    before = admin.shown(path)
    for key, version in (
        ("sk-0123456789", made["version_id"]),
        ("sk-0000456789", ""),
        ("sk*****789", made["version_id"]),
    ):
        changed = {"config": {"provider": "openai", "api_key": key}}
        assert good(admin.put(f"{path}?dry_run=true", changed))["version_id"] == version
    assert good(admin.put(f"{path}?dry_run=true", {"name": "wet"}))["version_id"] == ""
    refused(admin.put(f"{path}?dry_run=true", {"config": {"provider": 5}}), 400, "AB01", "config.provider")
    assert admin.shown(path) == before
    assert admin.shown(f"{path}/versions")["total"] == 1


def test_what_is_saved_is_what_requests_are_served_by(
    admin: Client, workspace: str, config: dict[str, Any], provider: Mock
):
    key = admin.made(
        "/v1/api-keys/workspace/service", {"name": "app", "scopes": ["completions.write"], "workspace_id": workspace}
    )["key"]
    headers = {"x-gateway-api-key": key, "x-gateway-config": config["slug"], "content-type": "application/json"}
    answer = wait(
        "the key",
        lambda: found if (found := ask(admin.gateway.base_url, CHAT, asked(), headers)).status == 200 else None,
        2,
    )
    assert answer.status == 200
    assert len(provider.ledger()) == 1


def test_a_config_of_many_targets_is_saved_and_every_problem_of_another_is_told(admin: Client, workspace: str):
    target = {"provider": "mock", "retry": {"attempts": 2}}
    config = {"strategy": {"mode": "fallback"}, "targets": [target, {**target, "override_params": {"model": "m"}}]}
    made = admin.made("/v1/configs", {"name": "Fallback", "config": config, "workspace_id": workspace})
    assert json.loads(admin.shown(f"/v1/configs/{made['slug']}")["config"]) == config
    config["targets"] = [{"provider": "mock", "retry": {"attempts": 6}}, {"weight": -1, "onStatusCodes": [429]}]
    body = {"name": "Bad", "config": config, "workspace_id": workspace}
    refused = admin.post("/v1/configs", body)
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == [
        "config.targets[0].retry.attempts",
        "config.targets[1].weight",
        "config.targets[1].onStatusCodes",
    ]


def test_a_config_that_does_nothing_or_has_what_its_mode_makes_nothing_of_is_not_saved(admin: Client, workspace: str):
    targets = [{"provider": "mock", "name": "a"}]
    sticky = {"hash_fields": ["metadata.user"]}
    without = {name: value for name, value in NAMED.items() if name != "default"}
    for config, path in (
        ({}, "config"),
        ({"name": "x"}, "config"),
        ({"strategy": {"mode": "fallback", "sticky": sticky}, "targets": targets}, "config.strategy.sticky"),
        ({"strategy": {**NAMED, "mode": "single"}, "targets": targets}, "config.strategy.conditions"),
        ({"strategy": without, "targets": targets}, "config.strategy"),
    ):
        answer = admin.post("/v1/configs", {"name": "Idle", "config": config, "workspace_id": workspace})
        assert (answer.status, answer.json()["data"]["errors"][0]["path"]) == (400, path)


SECRET, OTHER = "sk-canary-0123456789", "sk-canary-9876543789"


def pool(*keys: str) -> dict[str, Any]:
    targets = [{"provider": "mock", "api_key": key, "weight": weight} for weight, key in enumerate(keys, 1)]
    return {"strategy": {"mode": "fallback"}, "targets": targets}


def saved(admin: Client, path: str, config: dict[str, Any]) -> str:
    return good(admin.put(path, {"config": config}))["version_id"]


def sent_to(provider: Mock) -> list[str]:
    return [line["headers"]["authorization"].removeprefix("Bearer ") for line in provider.ledger()]


def test_credentials_in_a_config_are_shown_masked_mean_themselves_and_reach_the_provider(
    admin: Client, workspace: str, provider: Mock
):
    made = admin.made("/v1/configs", {"name": "Keys", "config": pool(SECRET, OTHER), "workspace_id": workspace})
    path = f"/v1/configs/{made['slug']}"
    shown = json.loads(admin.shown(path)["config"])
    assert [target["api_key"] for target in shown["targets"]] == ["sk*****789"] * 2
    assert saved(admin, path, shown) == made["version_id"]
    app = admin.with_key(scopes=["completions.write"], workspace_id=workspace)
    headers = {"x-gateway-api-key": app.key, "x-gateway-config": made["slug"], "content-type": "application/json"}

    def asks() -> str | None:
        provider.forget()
        ask(admin.gateway.base_url, CHAT, asked(), headers)
        return next(iter(sent_to(provider)), None)

    wait("the key", lambda: asks() == SECRET or None, 5)
    # The targets change places; nobody sends their credentials again.
    turned = {**shown, "targets": shown["targets"][::-1]}
    version = saved(admin, path, turned)
    assert version != made["version_id"]
    wait("the other target", lambda: asks() == OTHER or None, 5)
    saved(admin, path, pool("sk-a-third-credential"))
    # An older version, as it was shown, brings its credentials back.
    kept = admin.shown(f"{path}/versions")["data"][-1]
    saved(admin, path, json.loads(kept["config"]))
    wait("the first again", lambda: asks() == SECRET or None, 5)
    admin.put(path, {"name": "Renamed"})
    assert asks() == SECRET
    # Another credential whose ends are the same is another version; nobody knows any more which one a mask means.
    version = admin.shown(path)["version_id"]
    assert saved(admin, path, pool(OTHER, "sk-canary-another789")) != version
    saved(admin, path, pool("sk-a-third-credential"))
    refused(admin.put(path, {"config": shown}), 400, "AB01", "config.targets[0].api_key", "is masked")
    said = json.dumps([admin.shown(path), admin.shown(f"{path}/versions"), audit(admin)])
    assert SECRET not in said
    assert OTHER not in said


def audit(admin: Client) -> dict[str, Any]:
    organisation = admin.shown("/v1/workspaces")["data"][0]["organisation_id"]
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    return admin.shown(f"/v1/audit-logs?{span}&organisation_id={organisation}&page_size=100")


def test_a_mask_that_stands_for_nothing_is_refused_by_its_place(admin: Client, workspace: str):
    body = {"name": "Masked", "config": pool(SECRET, "sk*****789"), "workspace_id": workspace}
    refused(admin.post("/v1/configs", body), 400, "AB01", "config.targets[1].api_key", "is masked")
    made = admin.made("/v1/configs", {**body, "config": pool(SECRET)})
    elsewhere = {"targets": [{"provider": "openai", "api_key": "sk*****789"}]}
    answer = admin.put(f"/v1/configs/{made['slug']}", {"config": elsewhere})
    refused(answer, 400, "AB01", "config.targets[0].api_key", "hint")


def test_a_credential_stays_where_it_was_for_and_comes_back_from_the_last_version_that_knows_it(
    admin: Client, workspace: str
):
    target = {"provider": "azure-ai", "azure_foundry_url": "https://good.test", "api_key": SECRET}
    made = admin.made("/v1/configs", {"name": "Foundry", "config": target, "workspace_id": workspace})
    path = f"/v1/configs/{made['slug']}"
    shown = json.loads(admin.shown(path)["config"])
    moved = {**shown, "azure_foundry_url": "https://elsewhere.test"}
    refused(admin.put(path, {"config": moved}), 400, "AB01", "config.api_key", "is masked")
    params = {"provider": "openai", "override_params": {"api_key": shown["api_key"]}}
    refused(admin.put(path, {"config": params}), 400, "AB01", "config.override_params.api_key", "is masked")
    saved(admin, path, pool(SECRET, OTHER))
    # Which of two is meant no older version says.
    both = json.loads(admin.shown(path)["config"])["targets"]
    saved(admin, path, pool(SECRET))
    saved(admin, path, pool(SECRET, OTHER))
    changed = [{**one, "weight": 7 + index} for index, one in enumerate(both)]
    answer = admin.put(path, {"config": {**pool(), "targets": changed}})
    refused(answer, 400, "AB01", "config.targets[0].api_key", "several credentials")


def test_what_is_written_otherwise_is_another_version_and_what_is_not_is_none(admin: Client, config: dict[str, Any]):
    path = f"/v1/configs/{config['slug']}"
    texts = {"author": "Somebody Else", "tools": [{"server_url": "https://mcp.test/?token=sk-canary"}]}
    found = {config["version_id"]}
    for value in (1, True, 1.0, 1):
        version = saved(admin, path, {"provider": "mock", "override_params": {"n": value, **texts}})
        assert version not in found
        found.add(version)
        shown = admin.shown(path)["config"]
        assert good(admin.put(path, {"config": shown}))["version_id"] == version
    assert "Somebody Else" in shown
    assert "https://mcp.test/?*****" in shown


def test_a_config_holds_so_many_credentials_at_most(admin: Client, workspace: str):
    headers = {f"x-{index}": "secret" for index in range(1001)}
    config = {"provider": "mock", "override_params": {"tools": [{"headers": headers}]}}
    body = {"name": "Many", "config": config, "workspace_id": workspace}
    refused(admin.post("/v1/configs", body), 400, "AB01", "config", "at most 1000 credentials, not 1001")
    del headers["x-0"]
    path = f"/v1/configs/{admin.made('/v1/configs', body)['slug']}"
    shown = admin.shown(path)
    assert good(admin.put(path, {"config": shown["config"]}))["version_id"] == shown["version_id"]


def test_more_targets_than_allowed_are_not_saved(admin: Client, workspace: str):
    config = {"strategy": {"mode": "fallback"}, "targets": [{"provider": "mock"}] * 101}
    refused = admin.post("/v1/configs", {"name": "Many", "config": config, "workspace_id": workspace})
    assert refused.status == 400
    assert [error["path"] for error in refused.json()["data"]["errors"]] == ["config.targets"]


def test_the_operators_limits_hold_when_saving(tmp_path: Path, provider: Mock):
    limits = {
        "MAX_ROOT_CONFIG_TARGETS": "2",
        "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS": "3",
        "MAX_NESTED_CONFIG_TARGETS": "1",
    }
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", **limits}
    with running(tmp_path, {"mock": {"host": provider.url}}, env=env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.shown("/v1/workspaces")["data"]
        body = {"name": "Config", "workspace_id": workspace["id"]}

        def wrong(strategy: dict[str, Any], *targets: dict[str, Any]) -> list[str]:
            """Save it, and give the places of what is wrong."""
            answer = admin.post("/v1/configs", {**body, "config": {"strategy": strategy, "targets": targets}})
            assert answer.status in {200, 201, 400}, answer
            return [error["path"] for error in answer.json()["data"]["errors"]] if answer.status == 400 else []

        single, falls = {"mode": "single"}, {"mode": "fallback"}
        assert (wrong(falls, *[MOCKED] * 2), wrong(falls, *[MOCKED] * 3)) == ([], ["config.targets"])
        assert (wrong(NAMED, *[MOCKED] * 3), wrong(NAMED, *[MOCKED] * 4)) == ([], ["config.targets"])
        one, two = ({"strategy": falls, "targets": [MOCKED] * count} for count in (1, 2))
        assert (wrong(single, one), wrong(single, two)) == ([], ["config.targets[0]"])
