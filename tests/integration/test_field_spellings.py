"""Request bodies as the `x-portkey-` clients write them. They repeat values of the path and use snake case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.management_client import expect_error, expect_ok

if TYPE_CHECKING:
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True


def test_accepts_path_values_in_the_body_and_field_aliases(admin: Client):
    workspace = admin.create("/v1/admin/workspaces", {"name": "again"})["id"]
    key = {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
    created = admin.create("/v1/api-keys/workspace/service", {**key, "type": "workspace", "sub-type": "service"})
    expect_ok(admin.put(f"/v1/api-keys/{created['id']}", {"id": created["id"], "name": "other"}))
    expect_error(admin.put(f"/v1/api-keys/{created['id']}", {"id": "another", "name": "other"}), 400, "AB01", "id")
    config = {"name": "c", "config": {"retry": {"attempts": 1}}, "workspace_id": workspace, "is_default": 1}
    slug = admin.create("/v1/configs", config)["slug"]
    expect_ok(admin.put(f"/v1/configs/{slug}", {"slug": slug, "name": "renamed"}))
    azure = {"resource_name": "res", "deployment_name": "dep", "api_version": "2024-10-21"}
    body = {"name": "v", "provider": "azure-openai", "key": "sk-0123456789abcdef", "workspace_id": workspace, **azure}
    admin.create("/v1/virtual-keys", body)


def test_clients_manage_workspaces_and_members_with_path_values(admin: Client):
    """The clients repeat the values of the path in each body."""
    user = admin.read("/v1/admin/users")["data"][0]["id"]
    workspace = admin.create(
        "/v1/admin/workspaces", {"name": "mine", "description": "d", "defaults": {}, "users": [user]}
    )
    for names in (workspace["id"], workspace["slug"]):
        path = f"/v1/admin/workspaces/{names}"
        expect_error(
            admin.post(f"{path}/users", {"workspace_id": names, "users": [{"id": user, "role": "admin"}]}), 409, "AB07"
        )
        expect_ok(admin.delete(f"{path}/users/{user}"))
        expect_ok(admin.post(f"{path}/users", {"workspace_id": names, "users": [{"id": user, "role": "member"}]}))
        expect_ok(admin.put(f"{path}/users/{user}", {"user_id": user, "role": "manager"}))
        assert admin.read(f"{path}/users/{user}")["role"] == "manager"
        expect_error(
            admin.put(f"{path}/users/{user}", {"user_id": "another", "role": "member"}), 400, "AB01", "user_id"
        )
    path = f"/v1/admin/workspaces/{workspace['slug']}"
    expect_error(admin.delete(path, {"workspace_id": workspace["slug"], "name": "another"}), 400, "AB01", "name")
    expect_error(admin.delete(path, {"workspace_id": "another", "name": "mine"}), 400, "AB01", "workspace_id")
    expect_ok(admin.delete(path, {"workspace_id": workspace["slug"], "name": "mine"}))
    assert admin.read(path)["status"] == "archived"
