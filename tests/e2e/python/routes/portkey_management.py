"""Manages a gateway with the portkey-ai SDK, which parses responses strictly. Prints one line of JSON for each call."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import portkey_ai

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = portkey_ai.Portkey(api_key=os.environ["KEY"], base_url=os.environ["GATEWAY"] + "/v1")
USAGE_LIMIT = {"type": "cost", "credit_limit": 10, "alert_threshold": 5, "periodic_reset": "monthly"}
RATE_LIMIT = {"type": "requests", "unit": "rpm", "value": 7}
SCOPES = ["completions.write"]
CREATED: dict[str, Any] = {}


def store_created(name: str, created: Any) -> object:
    CREATED[name] = created
    return getattr(created, "slug", None) or getattr(created, "id", None)


def created_workspace_id() -> str:
    return CREATED["workspace"].id


def workspace_access() -> dict[str, Any]:
    return {
        "id": CREATED["workspace"].slug,
        "enabled": True,
        "usage_limits": [USAGE_LIMIT],
        "rate_limits": [RATE_LIMIT],
    }


# The order matters: each call depends on those before it.
CALLS: dict[str, Callable[[], object]] = {
    "workspaces.create": lambda: bool(
        store_created("workspace", CLIENT.admin.workspaces.create(name="Sdk", description="d", defaults={}, users=[]))
    ),
    "workspaces.retrieve": lambda: CLIENT.admin.workspaces.retrieve(workspace_id=created_workspace_id()).name,
    "workspaces.list": lambda: bool(CLIENT.admin.workspaces.list().data),
    "workspaces.update": lambda: bool(
        CLIENT.admin.workspaces.update(workspace_id=created_workspace_id(), description="e")
    ),
    "workspaces.users.list": lambda: CLIENT.admin.workspaces.users.list(workspace_id=created_workspace_id()).total,
    "users.list": lambda: CLIENT.admin.users.list().total,
    "users.retrieve": lambda: CLIENT.admin.users.retrieve(user_id=CLIENT.admin.users.list().data[0]["id"]).role,
    "invites.create": lambda: bool(
        store_created(
            "invite",
            CLIENT.admin.users.invites.create(
                email="sdk@example.test",
                role="member",
                workspaces=[{"id": CREATED["workspace"].slug, "role": "member"}],
                workspace_api_key_details={"scopes": SCOPES},
            ),
        )
    ),
    "invites.retrieve": lambda: CLIENT.admin.users.invites.retrieve(invite_id=CREATED["invite"].id).status,
    "invites.list": lambda: CLIENT.admin.users.invites.list().total,
    "integrations.create": lambda: store_created(
        "integration",
        CLIENT.integrations.create(name="Shared", slug="shared", ai_provider_id="openai", key="sk-0123456789abcdef"),
    ),
    "integrations.workspaces.update": lambda: bool(
        CLIENT.integrations.workspaces.update(
            slug="shared",
            workspaces=[workspace_access()],
            global_workspace_access={"enabled": True, "usage_limits": [USAGE_LIMIT]},
        )
    ),
    "integrations.workspaces.list": lambda: [
        [item.usage_limits["credit_limit"], item.rate_limits["value"]]
        for item in CLIENT.integrations.workspaces.list(slug="shared").workspaces
    ],
    "integrations.models.update": lambda: bool(
        CLIENT.integrations.models.update(
            slug="shared", models=[{"slug": "m", "enabled": True, "is_custom": True}], allow_all_models=True
        )
    ),
    "integrations.models.list": lambda: CLIENT.integrations.models.list(slug="shared").allow_all_models,
    "integrations.models.delete": lambda: bool(CLIENT.integrations.models.delete(slug="shared", slugs="m")),
    "integrations.list": lambda: [item.slug for item in CLIENT.integrations.list().data],
    "integrations.retrieve": lambda: CLIENT.integrations.retrieve(slug="shared").global_workspace_access["enabled"],
    "integrations.update": lambda: bool(CLIENT.integrations.update(slug="shared", description="d")),
    "providers.create": lambda: store_created(
        "provider",
        CLIENT.providers.create(
            name="P",
            integration_id="shared",
            workspace_id=created_workspace_id(),
            slug="p",
            usage_limits=USAGE_LIMIT,
            rate_limits=RATE_LIMIT,
        ),
    ),
    "providers.list": lambda: [
        [item.slug, item.rate_limits and item.rate_limits["value"]]
        for item in CLIENT.providers.list(workspace_id=created_workspace_id()).data
    ],
    "providers.retrieve": lambda: CLIENT.providers.retrieve(slug="p", workspace_id=created_workspace_id()).rate_limits[
        0
    ]["value"],
    "providers.update": lambda: (
        CLIENT.providers.update(slug="p", workspace_id=created_workspace_id(), rate_limits=RATE_LIMIT).slug
    ),
    "virtual_keys.create": lambda: store_created(
        "virtual",
        CLIENT.virtual_keys.create(
            name="V",
            provider="openai",
            key="sk-0123456789abcdef",
            workspace_id=created_workspace_id(),
            usage_limits=USAGE_LIMIT,
        ),
    ),
    "virtual_keys.list": lambda: bool(CLIENT.virtual_keys.list().data),
    "virtual_keys.retrieve": lambda: bool(CLIENT.virtual_keys.retrieve(slug=CREATED["virtual"].slug)),
    "virtual_keys.update": lambda: bool(CLIENT.virtual_keys.update(slug=CREATED["virtual"].slug, note="n")),
    "configs.create": lambda: bool(
        store_created(
            "config",
            CLIENT.configs.create(name="C", config={"retry": {"attempts": 1}}, workspace_id=created_workspace_id()),
        )
    ),
    "configs.list": lambda: CLIENT.configs.list(workspace_id=created_workspace_id()).total,
    "configs.retrieve": lambda: CLIENT.configs.retrieve(slug=CREATED["config"].slug).name,
    "configs.update": lambda: bool(CLIENT.configs.update(slug=CREATED["config"].slug, name="D").version_id),
    "api_keys.create": lambda: bool(
        store_created(
            "key",
            CLIENT.api_keys.create(
                type="workspace",
                sub_type="service",
                name="K",
                workspace_id=created_workspace_id(),
                scopes=SCOPES,
                rate_limits=[RATE_LIMIT],
                usage_limits=USAGE_LIMIT,
            ),
        )
    ),
    "api_keys.list": lambda: bool(CLIENT.api_keys.list(workspace_id=created_workspace_id()).data),
    "api_keys.retrieve": lambda: CLIENT.api_keys.retrieve(id=CREATED["key"].id).rate_limits[0]["value"],
    "api_keys.update": lambda: bool(CLIENT.api_keys.update(id=CREATED["key"].id, name="L")),
    "collections.create": lambda: bool(
        store_created("collection", CLIENT.collections.create(name="F", workspace_id=created_workspace_id()))
    ),
    "collections.retrieve": lambda: CLIENT.collections.retrieve(CREATED["collection"].slug).name,
    "collections.list": lambda: CLIENT.collections.list(workspace_id=created_workspace_id()).total,
    "collections.update": lambda: bool(CLIENT.collections.update(CREATED["collection"].id, name="G")),
    "labels.create": lambda: bool(
        store_created("label", CLIENT.labels.create(name="canary", workspace_id=created_workspace_id()))
    ),
    "labels.retrieve": lambda: CLIENT.labels.retrieve(CREATED["label"].id).name,
    "labels.list": lambda: CLIENT.labels.list(workspace_id=created_workspace_id()).total,
    "labels.update": lambda: bool(CLIENT.labels.update(CREATED["label"].id, description="d")),
    "prompts.partials.create": lambda: bool(
        store_created(
            "partial", CLIENT.prompts.partials.create(name="T", string="s", workspace_id=created_workspace_id())
        )
    ),
    "prompts.partials.update": lambda: bool(
        CLIENT.prompts.partials.update(CREATED["partial"].slug, string="t").prompt_partial_version_id
    ),
    "prompts.partials.publish": lambda: bool(CLIENT.prompts.partials.publish(CREATED["partial"].slug, version=2)),
    "prompts.partials.retrieve": lambda: CLIENT.prompts.partials.retrieve(CREATED["partial"].slug).string,
    "prompts.partials.list": lambda: len(CLIENT.prompts.partials.list().data),
    "prompts.partials.versions.list": lambda: len(CLIENT.prompts.partials.versions.list(CREATED["partial"].slug).data),
    "prompts.create": lambda: bool(
        store_created(
            "prompt",
            CLIENT.prompts.create(
                name="P",
                collection_id=CREATED["collection"].slug,
                string="{{a}}",
                parameters={"max_tokens": 5},
                virtual_key="v",
                model="m",
            ),
        )
    ),
    "prompts.update": lambda: bool(
        store_created(
            "version",
            CLIENT.prompts.update(CREATED["prompt"].slug, string="{{b}}", parameters={}, virtual_key="v", model="n"),
        )
    ),
    "prompts.publish": lambda: bool(CLIENT.prompts.publish(CREATED["prompt"].slug, version=2)),
    "prompts.retrieve": lambda: CLIENT.prompts.retrieve(CREATED["prompt"].slug).string,
    "prompts.list": lambda: CLIENT.prompts.list(workspace_id=created_workspace_id(), search="p").total,
    "prompts.versions.list": lambda: len(CLIENT.prompts.versions.list(CREATED["prompt"].slug).data),
    "prompts.versions.update": lambda: bool(
        CLIENT.prompts.versions.update(
            CREATED["prompt"].slug, CREATED["version"].prompt_version_id, label_id=CREATED["label"].id
        )
    ),
    "prompts.versions.retrieve": lambda: (
        CLIENT.prompts.versions.retrieve(
            CREATED["prompt"].slug, CREATED["version"].prompt_version_id
        ).prompt_version_label_name
    ),
    "prompts.delete": lambda: bool(CLIENT.prompts.delete(CREATED["prompt"].slug)),
    "prompts.partials.delete": lambda: bool(CLIENT.prompts.partials.delete(CREATED["partial"].slug)),
    "labels.delete": lambda: bool(CLIENT.labels.delete(CREATED["label"].id)),
    "collections.delete": lambda: bool(CLIENT.collections.delete(CREATED["collection"].slug)),
    "api_keys.delete": lambda: bool(CLIENT.api_keys.delete(id=CREATED["key"].id)),
    "configs.delete": lambda: bool(CLIENT.configs.delete(slug=CREATED["config"].slug)),
    "virtual_keys.delete": lambda: bool(CLIENT.virtual_keys.delete(slug=CREATED["virtual"].slug)),
    "providers.delete": lambda: bool(CLIENT.providers.delete(slug="p", workspace_id=created_workspace_id())),
    "integrations.delete": lambda: bool(CLIENT.integrations.delete(slug="shared")),
    "invites.delete": lambda: bool(CLIENT.admin.users.invites.delete(invite_id=CREATED["invite"].id)),
    "workspaces.delete": lambda: bool(CLIENT.admin.workspaces.delete(workspace_id=created_workspace_id(), name="Sdk")),
}

for name, call in CALLS.items():
    try:
        result: object = call()
    except Exception as error:  # noqa: BLE001 — it has several, of its own and of what it brings along
        result = f"{type(error).__name__}: {error}"
    print(json.dumps([name, result]))
sys.stderr.write(portkey_ai.__version__)
