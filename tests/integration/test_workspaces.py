"""Workspaces and their members over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import expect_error, expect_ok

if TYPE_CHECKING:
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

PATH_PREFIXES = ["/v1/admin/workspaces", "/v1/workspaces", "/v2/workspaces", "/v1/v2/workspaces"]
WORKSPACE_BODY = {
    "name": "🚀 Rockets",
    "description": "up",
    "defaults": {"metadata": {"team": "a"}},
    "settings": {"user_api_key_rotation_period": "weekly"},
    "usage_limits": [{"type": "cost", "credit_limit": 10, "alert_threshold": 5, "periodic_reset": "monthly"}],
    "rate_limits": [{"type": "requests", "unit": "rpm", "value": 5}],
}
GUARDRAIL = {"name": "g", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
PROMPT = {"name": "p", "string": "{{a}}", "parameters": {}, "virtual_key": "v", "model": "m"}


@pytest.fixture
def workspace(admin: Client) -> dict[str, Any]:
    return admin.create("/v1/admin/workspaces", WORKSPACE_BODY)


@pytest.fixture(scope="module")
def owner(admin: Client) -> dict[str, Any]:
    (user,) = admin.read("/v1/admin/users?role=owner")["data"]
    return user


@pytest.mark.parametrize("prefix", PATH_PREFIXES)
def test_reads_a_workspace_by_id_and_slug_under_every_path(admin: Client, workspace: dict[str, Any], prefix: str):
    assert workspace["slug"].startswith("ws-rockets-")
    for key in (workspace["id"], workspace["slug"]):
        assert admin.read(f"{prefix}/{key}") == workspace


def test_reads_back_the_written_fields(workspace: dict[str, Any]):
    assert workspace["defaults"]["metadata"] == {"team": "a"}
    assert workspace["settings"] == {"user_api_key_rotation_period": 7}
    (limits,) = workspace["usage_limits"]
    assert WORKSPACE_BODY["usage_limits"][0].items() <= limits.items()
    assert limits["next_usage_reset_at"].endswith("-01T00:00:00.000Z")
    assert workspace["rate_limits"] == WORKSPACE_BODY["rate_limits"]
    assert (workspace["status"], workspace["is_default"], workspace["users"], workspace["object"]) == (
        "active",
        0,
        [],
        "workspace",
    )


def test_plain_name_format_omits_the_emoji(admin: Client, workspace: dict[str, Any]):
    assert workspace["icon"] == "🚀"
    assert admin.read(f"/v1/workspaces/{workspace['id']}?name_format=plain")["name"] == "Rockets"
    assert admin.read(f"/v1/workspaces/{workspace['id']}?name_format=display")["name"] == "🚀 Rockets"
    expect_error(admin.get(f"/v1/workspaces/{workspace['id']}?name_format=loud"), 400, "AB01", "name_format")


def test_update_keeps_omitted_fields_and_null_removes_limits(admin: Client, workspace: dict[str, Any]):
    path = f"/v1/admin/workspaces/{workspace['id']}"
    changed = expect_ok(admin.put(path, {"name": "Boats", "usage_limits": None, "defaults": {"metadata": {"b": "c"}}}))
    assert (changed["name"], changed["description"], changed["usage_limits"]) == ("Boats", "up", None)
    assert changed["rate_limits"] == WORKSPACE_BODY["rate_limits"]
    assert changed["defaults"]["metadata"] == {"b": "c"}
    assert admin.read(path)["name"] == "Boats"
    assert expect_ok(admin.put(path, {"rate_limits": []}))["rate_limits"] is None


def test_default_config_of_new_keys_is_shown_as_its_slug(admin: Client, workspace: dict[str, Any]):
    config = admin.create(
        "/v1/configs", {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["slug"]}
    )
    path = f"/v2/workspaces/{workspace['id']}"
    for key in (config["id"], config["slug"]):
        displayed = expect_ok(admin.put(path, {"defaults": {"user_api_key_config": key}}))
        assert displayed["defaults"]["user_api_key_config"] == config["slug"]
    expect_error(admin.delete(f"/v1/configs/{config['slug']}"), 409, "AB07")
    expect_error(
        admin.put(path, {"defaults": {"user_api_key_config": "pc-none-1"}}), 404, "AB02", "user_api_key_config"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": "x", "nmae": "y"}, "nmae"),
        ({"name": "x", "settings": {"user_api_key_rotation_period": 366}}, "user_api_key_rotation_period"),
        ({"name": "x", "rate_limits": [{"type": "requests", "unit": "rps", "value": 1}]}, "rate_limits[0].unit"),
        ({"name": "x", "rate_limits": [WORKSPACE_BODY["rate_limits"][0]] * 2}, "rate_limits"),
        ({"name": "x", "usage_limits": [{"credit_limit": 2, "alert_threshold": 2}]}, "usage_limits[0].alert_threshold"),
        (
            {"name": "x", "usage_limits": [{"credit_limit": 1, "periodic_reset": "weekly", "periodic_reset_days": 3}]},
            "periodic_reset_days",
        ),
        ({"name": "x", "defaults": {"metadata": {"a": 1}}}, "metadata"),
    ],
)
def test_rejects_an_invalid_workspace_with_its_json_path(admin: Client, body: dict[str, Any], words: str):
    expect_error(admin.post("/v1/admin/workspaces", body), 400, "AB01", words)


def test_pages_filters_and_sorts_lists(admin: Client):
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        admin.create("/v1/workspaces", {"name": name})
    first = admin.read("/v1/workspaces?name=page-&page_size=2&current_page=0")
    assert (first["object"], first["total"]) == ("list", 5)
    assert [row["name"] for row in first["data"]] == ["page-4", "page-3"]
    pages = [admin.read(f"/v1/admin/workspaces?name=page-&pageSize=2&currentPage={n}")["data"] for n in range(4)]
    assert [row["name"] for page in pages for row in page] == names[::-1]
    ordered = admin.read("/v1/workspaces?name=PAGE-&sort=name&order=asc&page_size=3&current_page=1")["data"]
    assert [row["name"] for row in ordered] == names[3:]
    assert admin.read("/v1/workspaces?exact_name=page-3")["total"] == 1
    assert admin.read("/v1/workspaces?exact_name=page-")["total"] == 0
    assert admin.read("/v1/workspaces?name=%25")["total"] == 0
    for query in ("page_size=0", "current_page=-1", "page_size=x", "sort=secret", "status=gone"):
        expect_error(admin.get(f"/v1/workspaces?{query}"), 400, "AB01")


def test_archiving_requires_the_name_and_an_empty_workspace(admin: Client, workspace: dict[str, Any]):
    path = f"/v1/admin/workspaces/{workspace['id']}"
    admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, "workspace_id": workspace["id"]})
    expect_error(admin.delete(path, {"name": "Other"}), 400, "AB01", "name")
    expect_error(admin.delete(path, {"name": workspace["name"]}), 409, "AB07", "1 configs")
    assert expect_ok(admin.delete(path, {"name": workspace["name"], "force_delete": True})) == {}
    assert admin.read(path)["status"] == "archived"
    listed = {
        status: admin.read(f"/v1/workspaces?status={status}") for status in ("active", "archived", "active,archived")
    }
    there = {status: workspace["id"] in [row["id"] for row in actual["data"]] for status, actual in listed.items()}
    assert there == {"active": False, "archived": True, "active,archived": True}


def test_archiving_deletes_the_content_and_logs_each_deletion(admin: Client):
    workspace = admin.create("/v1/workspaces", {"name": "Full"})
    inside = {"workspace_id": workspace["id"]}
    owner = admin.read("/v1/admin/users?role=owner")["data"][0]["id"]
    expect_ok(admin.post(f"/v1/workspaces/{workspace['id']}/users", {"users": [{"id": owner, "role": "admin"}]}))
    own = {"ai_provider_id": "openai", "key": "sk-0123456789", **inside}
    body = {
        "integrations": admin.create("/v1/integrations", {"name": "full", **own})["id"],
        "configs": admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **inside})["id"],
        "providers": admin.create("/v1/virtual-keys", {"name": "v", "provider": "openai", "key": "sk-1", **inside})[
            "id"
        ],
        "workspace_service_api_keys": admin.create(
            "/v1/api-keys/workspace/service", {"name": "k", "scopes": ["completions.write"], **inside}
        )["id"],
        "guardrails": admin.create("/v1/guardrails", {**GUARDRAIL, **inside})["id"],
        "prompts": admin.create("/v1/prompts", {**PROMPT, **inside})["id"],
        "prompt_partials": admin.create("/v1/prompts/partials", {"name": "p", "string": "text", **inside})["id"],
        # Not those that every workspace has.
        "collections": admin.create("/v1/collections", {"name": "c", **inside})["id"],
        "labels": admin.create("/v1/labels", {"name": "canary", **inside})["id"],
    }
    path = f"/v1/workspaces/{workspace['id']}"
    body["workspaces"] = workspace["id"]
    counts = (
        "1 integrations",
        "2 providers",
        "1 configs",
        "1 api_keys",
        "1 prompts",
        "1 prompt_partials",
        "1 guardrails",
    )
    expect_error(admin.delete(path, {"name": "Full"}), 409, "AB07", *counts)
    expect_ok(admin.delete(path, {"name": "Full", "force_delete": True}))
    span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
    request = f"{span}&organisation_id={workspace['organisation_id']}&workspace_id={workspace['id']}&action=delete"
    gone = [(row["resource_type"], row["resource_id"]) for row in admin.read(f"/v1/audit-logs?{request}")["records"]]
    assert set(body.items()) <= set(gone)
    # Includes the hidden integration of the virtual key, the default provider of the integration, and the membership.
    kinds = sorted(kind for kind, _ in gone)
    assert kinds == sorted([*body, "integrations", "providers", "workspace_users"])
    assert (
        admin.create("/v1/integrations", {"name": "full", "slug": "full", **own, "workspace_id": None})["slug"]
        == "full"
    )
    expect_error(admin.post("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **inside}), 403, "AB03")
    expect_error(admin.put(path, {"name": "Again"}), 403, "AB03")


def test_default_workspace_cannot_be_deleted(admin: Client):
    (default,) = [row for row in admin.read("/v1/workspaces")["data"] if row["is_default"]]
    expect_error(
        admin.delete(f"/v1/workspaces/{default['id']}", {"name": default["name"], "force_delete": True}), 409, "AB07"
    )


def test_adds_updates_and_removes_members(admin: Client, workspace: dict[str, Any], owner: dict[str, Any]):
    path = f"/v1/admin/workspaces/{workspace['slug']}/users"
    assert expect_ok(admin.post(path, {"users": [{"id": owner["id"], "role": "manager"}]})) == {}
    expect_error(admin.post(path, {"users": [{"id": owner["id"], "role": "member"}]}), 409, "AB07")
    expect_error(admin.post(path, {"users": [{"id": workspace["id"], "role": "member"}]}), 404, "AB02", "users[0].id")
    listed = admin.read(path)
    assert (listed["total"], listed["object"]) == (1, "list")
    (member,) = listed["data"]
    assert (member["email"], member["org_role"], member["role"]) == (owner["email"], "owner", "manager")
    assert admin.read(f"{path}/{owner['id']}") == member
    assert [user["id"] for user in admin.read(f"/v1/admin/workspaces/{workspace['id']}")["users"]] == [owner["id"]]
    assert (admin.read(f"{path}?role=member")["total"], admin.read(f"{path}?role=manager")["total"]) == (0, 1)
    assert admin.read(f"{path}?email=nobody@x.test")["total"] == 0
    assert expect_ok(admin.put(f"{path}/{owner['id']}", {"role": "member"})) == {}
    assert admin.read(f"{path}/{owner['id']}")["role"] == "member"
    assert workspace["id"] in admin.read(f"/v1/admin/users/{owner['id']}")["workspace_ids"]
    assert expect_ok(admin.delete(f"{path}/{owner['id']}")) == {}
    expect_error(admin.get(f"{path}/{owner['id']}"), 404, "AB08")


def test_creates_a_workspace_with_members(admin: Client, owner: dict[str, Any]):
    for body in (owner["id"], {"id": owner["id"], "role": "admin"}):
        workspace = admin.create("/v1/workspaces", {"name": "with people", "users": [body]})
        assert [(user["id"], user["role"]) for user in workspace["users"]] == [
            (owner["id"], "member" if body == owner["id"] else "admin")
        ]


def test_owner_is_listed_and_cannot_be_changed_or_deleted(admin: Client, owner: dict[str, Any]):
    path = f"/v1/admin/users/{owner['id']}"
    assert (admin.read(path)["id"], admin.read(path)["role"]) == (owner["id"], "owner")
    assert admin.read(f"/v1/admin/users?email={owner['email'].upper()}&pageSize=1&currentPage=0")["total"] == 1
    expect_error(admin.put(path, {"role": "member"}), 409, "AB07")
    expect_error(admin.put(path, {"role": "owner"}), 400, "AB01", "role")
    expect_error(admin.delete(path), 409, "AB07")
    expect_error(admin.get(f"/v1/admin/users/{unknown_id()}"), 404, "AB08")


def unknown_id() -> str:
    return "01900000-0000-7000-8000-000000000000"


def test_workspace_key_sees_only_its_own_workspace(admin: Client, workspace: dict[str, Any]):
    other = admin.create("/v1/workspaces", {"name": "other"})
    scopes = [
        "workspaces.read",
        "workspaces.list",
        "workspaces.update",
        "workspace_users.list",
        "workspace_users.create",
    ]
    inside = admin.with_new_key(workspace_id=workspace["id"], scopes=scopes)
    assert [row["id"] for row in inside.read("/v1/workspaces")["data"]] == [workspace["id"]]
    assert inside.read(f"/v1/workspaces/{workspace['slug']}")["id"] == workspace["id"]
    for key in (other["id"], other["slug"], unknown_id()):
        expect_error(inside.get(f"/v1/workspaces/{key}"), 403, "AB03")
        expect_error(inside.put(f"/v1/workspaces/{key}", {"name": "mine"}), 403, "AB03")
        expect_error(inside.get(f"/v1/workspaces/{key}/users"), 403, "AB03")
    expect_error(inside.post("/v1/workspaces", {"name": "new"}), 403, "AB03", "workspaces.create")
    expect_error(inside.delete(f"/v1/workspaces/{workspace['id']}", {"name": workspace["name"]}), 403, "AB03")
    expect_error(inside.get("/v1/workspaces?status=archived"), 403, "AB03")
