"""Manages a gateway with the portkey-ai SDK, which is strict about what it is answered; a line of JSON for each call."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import portkey_ai

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = portkey_ai.Portkey(api_key=os.environ["KEY"], base_url=os.environ["GATEWAY"] + "/v1")
USAGE = {"type": "cost", "credit_limit": 10, "alert_threshold": 5, "periodic_reset": "monthly"}
RATE = {"type": "requests", "unit": "rpm", "value": 7}
SCOPES = ["completions.write"]
MADE: dict[str, Any] = {}


def keep(name: str, made: Any) -> object:
    MADE[name] = made
    return made.get("slug") or made.get("id")


def place() -> str:
    return MADE["workspace"].id


def allowed() -> dict[str, Any]:
    return {"id": MADE["workspace"].slug, "enabled": True, "usage_limits": [USAGE], "rate_limits": [RATE]}


# In this order: each stands on those before it.
CALLS: dict[str, Callable[[], object]] = {
    "workspaces.create": lambda: bool(
        keep("workspace", CLIENT.admin.workspaces.create(name="Sdk", description="d", defaults={}, users=[]))
    ),
    "workspaces.retrieve": lambda: CLIENT.admin.workspaces.retrieve(workspace_id=place()).name,
    "workspaces.list": lambda: bool(CLIENT.admin.workspaces.list().data),
    "workspaces.update": lambda: bool(CLIENT.admin.workspaces.update(workspace_id=place(), description="e")),
    "workspaces.users.list": lambda: CLIENT.admin.workspaces.users.list(workspace_id=place()).total,
    "users.list": lambda: CLIENT.admin.users.list().total,
    "users.retrieve": lambda: CLIENT.admin.users.retrieve(user_id=CLIENT.admin.users.list().data[0]["id"]).role,
    "invites.create": lambda: bool(
        keep(
            "invite",
            CLIENT.admin.users.invites.create(
                email="sdk@example.test",
                role="member",
                workspaces=[{"id": MADE["workspace"].slug, "role": "member"}],
                workspace_api_key_details={"scopes": SCOPES},
            ),
        )
    ),
    "invites.retrieve": lambda: CLIENT.admin.users.invites.retrieve(invite_id=MADE["invite"].id).status,
    "invites.list": lambda: CLIENT.admin.users.invites.list().total,
    "integrations.create": lambda: keep(
        "integration",
        CLIENT.integrations.create(name="Shared", slug="shared", ai_provider_id="openai", key="sk-0123456789abcdef"),
    ),
    "integrations.workspaces.update": lambda: bool(
        CLIENT.integrations.workspaces.update(
            slug="shared", workspaces=[allowed()], global_workspace_access={"enabled": True, "usage_limits": [USAGE]}
        )
    ),
    "integrations.workspaces.list": lambda: [
        [one.usage_limits["credit_limit"], one.rate_limits["value"]]
        for one in CLIENT.integrations.workspaces.list(slug="shared").workspaces
    ],
    "integrations.models.update": lambda: bool(
        CLIENT.integrations.models.update(
            slug="shared", models=[{"slug": "m", "enabled": True, "is_custom": True}], allow_all_models=True
        )
    ),
    "integrations.models.list": lambda: CLIENT.integrations.models.list(slug="shared").allow_all_models,
    "integrations.models.delete": lambda: bool(CLIENT.integrations.models.delete(slug="shared", slugs="m")),
    "integrations.list": lambda: [one.slug for one in CLIENT.integrations.list().data],
    "integrations.retrieve": lambda: CLIENT.integrations.retrieve(slug="shared").global_workspace_access["enabled"],
    "integrations.update": lambda: bool(CLIENT.integrations.update(slug="shared", description="d")),
    "providers.create": lambda: keep(
        "provider",
        CLIENT.providers.create(
            name="P", integration_id="shared", workspace_id=place(), slug="p", usage_limits=USAGE, rate_limits=RATE
        ),
    ),
    "providers.list": lambda: [
        [one.slug, one.rate_limits and one.rate_limits["value"]]
        for one in CLIENT.providers.list(workspace_id=place()).data
    ],
    "providers.retrieve": lambda: CLIENT.providers.retrieve(slug="p", workspace_id=place()).rate_limits[0]["value"],
    "providers.update": lambda: CLIENT.providers.update(slug="p", workspace_id=place(), rate_limits=RATE).slug,
    "virtual_keys.create": lambda: keep(
        "virtual",
        CLIENT.virtual_keys.create(
            name="V", provider="openai", key="sk-0123456789abcdef", workspace_id=place(), usage_limits=USAGE
        ),
    ),
    "virtual_keys.list": lambda: bool(CLIENT.virtual_keys.list().data),
    "virtual_keys.retrieve": lambda: bool(CLIENT.virtual_keys.retrieve(slug=MADE["virtual"].slug)),
    "virtual_keys.update": lambda: bool(CLIENT.virtual_keys.update(slug=MADE["virtual"].slug, note="n")),
    "configs.create": lambda: bool(
        keep("config", CLIENT.configs.create(name="C", config={"retry": {"attempts": 1}}, workspace_id=place()))
    ),
    "configs.list": lambda: CLIENT.configs.list(workspace_id=place()).total,
    "configs.retrieve": lambda: CLIENT.configs.retrieve(slug=MADE["config"].slug).name,
    "configs.update": lambda: bool(CLIENT.configs.update(slug=MADE["config"].slug, name="D").version_id),
    "api_keys.create": lambda: bool(
        keep(
            "key",
            CLIENT.api_keys.create(
                type="workspace",
                sub_type="service",
                name="K",
                workspace_id=place(),
                scopes=SCOPES,
                rate_limits=[RATE],
                usage_limits=USAGE,
            ),
        )
    ),
    "api_keys.list": lambda: bool(CLIENT.api_keys.list(workspace_id=place()).data),
    "api_keys.retrieve": lambda: CLIENT.api_keys.retrieve(id=MADE["key"].id).rate_limits[0]["value"],
    "api_keys.update": lambda: bool(CLIENT.api_keys.update(id=MADE["key"].id, name="L")),
    "api_keys.delete": lambda: bool(CLIENT.api_keys.delete(id=MADE["key"].id)),
    "configs.delete": lambda: bool(CLIENT.configs.delete(slug=MADE["config"].slug)),
    "virtual_keys.delete": lambda: bool(CLIENT.virtual_keys.delete(slug=MADE["virtual"].slug)),
    "providers.delete": lambda: bool(CLIENT.providers.delete(slug="p", workspace_id=place())),
    "integrations.delete": lambda: bool(CLIENT.integrations.delete(slug="shared")),
    "invites.delete": lambda: bool(CLIENT.admin.users.invites.delete(invite_id=MADE["invite"].id)),
    "workspaces.delete": lambda: bool(CLIENT.admin.workspaces.delete(workspace_id=place(), name="Sdk")),
}

for name, call in CALLS.items():
    try:
        came: object = call()
    except Exception as error:  # noqa: BLE001 — it has several, of its own and of what it brings along
        came = f"{type(error).__name__}: {error}"
    print(json.dumps([name, came]))
sys.stderr.write(portkey_ai.__version__)
