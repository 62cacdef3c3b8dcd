"""Bodies as the clients of `x-portkey-` write them: they repeat what the path says, in snake case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.managed import good, refused

if TYPE_CHECKING:
    from tests.integration.managed import Client


def test_what_a_path_says_may_be_said_again_and_names_may_be_spelt_otherwise(admin: Client):
    workspace = admin.made("/v1/admin/workspaces", {"name": "again"})["id"]
    key = {"name": "k", "scopes": ["completions.write"], "workspace_id": workspace}
    made = admin.made("/v1/api-keys/workspace/service", {**key, "type": "workspace", "sub-type": "service"})
    good(admin.put(f"/v1/api-keys/{made['id']}", {"id": made["id"], "name": "other"}))
    refused(admin.put(f"/v1/api-keys/{made['id']}", {"id": "another", "name": "other"}), 400, "AB01", "id")
    config = {"name": "c", "config": {"retry": {"attempts": 1}}, "workspace_id": workspace, "is_default": 1}
    slug = admin.made("/v1/configs", config)["slug"]
    good(admin.put(f"/v1/configs/{slug}", {"slug": slug, "name": "renamed"}))
    azure = {"resource_name": "res", "deployment_name": "dep", "api_version": "2024-10-21"}
    given = {"name": "v", "provider": "azure-openai", "key": "sk-0123456789abcdef", "workspace_id": workspace, **azure}
    admin.made("/v1/virtual-keys", given)


def test_workspaces_and_their_members_are_kept_as_the_clients_do_it(admin: Client):
    """They say in each body what the path says too."""
    user = admin.shown("/v1/admin/users")["data"][0]["id"]
    made = admin.made("/v1/admin/workspaces", {"name": "mine", "description": "d", "defaults": {}, "users": [user]})
    for named in (made["id"], made["slug"]):
        path = f"/v1/admin/workspaces/{named}"
        refused(
            admin.post(f"{path}/users", {"workspace_id": named, "users": [{"id": user, "role": "admin"}]}), 409, "AB07"
        )
        good(admin.delete(f"{path}/users/{user}"))
        good(admin.post(f"{path}/users", {"workspace_id": named, "users": [{"id": user, "role": "member"}]}))
        good(admin.put(f"{path}/users/{user}", {"user_id": user, "role": "manager"}))
        assert admin.shown(f"{path}/users/{user}")["role"] == "manager"
        refused(admin.put(f"{path}/users/{user}", {"user_id": "another", "role": "member"}), 400, "AB01", "user_id")
    path = f"/v1/admin/workspaces/{made['slug']}"
    refused(admin.delete(path, {"workspace_id": made["slug"], "name": "another"}), 400, "AB01", "name")
    refused(admin.delete(path, {"workspace_id": "another", "name": "mine"}), 400, "AB01", "workspace_id")
    good(admin.delete(path, {"workspace_id": made["slug"], "name": "mine"}))
    assert admin.shown(path)["status"] == "archived"
