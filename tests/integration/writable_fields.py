"""Sample values for every writable field of the management API, and how each is read back."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.ids import mask_secret
from tests.integration.management_client import Client, expect_ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SAMPLE_NUMBERS = itertools.count(1)


class SampleObjects(NamedTuple):
    """One object of each kind."""

    admin: Client
    workspace_id: str
    user: str
    key: str
    config: str
    # A config that no other object uses.
    unused_config: str
    integration: str
    provider: str
    virtual_key: str
    reference: str
    # A secret reference that no other object uses.
    unused_reference: str
    invite: str
    organisation: str
    # Slug of a guardrail of the organisation.
    guardrail: str


def create_sample_objects(admin: Client, name: str = "fields") -> SampleObjects:
    """Creates one object of each kind; `name` distinguishes several sets in one database."""
    workspace = admin.create("/v1/admin/workspaces", {"name": "Fields"})
    target_workspace = {"workspace_id": workspace["id"]}
    user = admin.read("/v1/admin/users")["data"][0]["id"]
    expect_ok(admin.post(f"/v1/admin/workspaces/{workspace['id']}/users", {"users": [{"id": user, "role": "manager"}]}))
    complete = {"name": "i", "slug": name, "ai_provider_id": "openai", "key": "sk-0123456789"}
    integration = admin.create("/v1/integrations", {**complete, "create_default_provider": False})["slug"]
    spaces = {"workspaces": [{"id": workspace["id"], "enabled": True}], "create_default_provider": False}
    expect_ok(admin.put(f"/v1/integrations/{integration}/workspaces", spaces))
    models = {"models": [{"slug": "mine", "enabled": True, "is_custom": True}]}
    expect_ok(admin.put(f"/v1/integrations/{integration}/models", models))
    virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", **target_workspace}
    vault = {"vault_addr": "https://vault.example", "vault_auth_type": "token", "vault_token": "t-0123456789"}
    secret = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
    invited = {"email": f"{name}@example.test", "role": "member", "workspaces": []}
    key = {"name": "k", "scopes": ["completions.write"], **target_workspace}
    config = {"name": "c", "config": {"provider": "mock"}, **target_workspace}
    guardrail = {"name": "g", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
    return SampleObjects(
        admin,
        workspace["id"],
        user,
        admin.create("/v1/api-keys/workspace/service", key)["id"],
        admin.create("/v1/configs", config)["slug"],
        admin.create("/v1/configs", config)["slug"],
        integration,
        admin.create("/v1/providers", {"name": "p", "integration_id": integration, **target_workspace})["slug"],
        admin.create("/v1/virtual-keys", virtual)["slug"],
        admin.create("/v1/secret-references", secret)["slug"],
        admin.create("/v1/secret-references", secret)["slug"],
        admin.create("/v1/admin/users/invites", invited)["id"],
        workspace["organisation_id"],
        admin.create("/v1/guardrails", {**guardrail, "organisation_id": workspace["organisation_id"]})["slug"],
    )


class SampleValue(NamedTuple):
    """A value to write and how to find it in the response, where the field of the same name does not hold it."""

    value: Any
    read_back: Callable[[dict[str, Any]], Any]
    # Value that the response shows, if it differs from the written one.
    shown_value: Any = None


USAGE_LIMITS = {"credit_limit": 7, "type": "tokens", "alert_threshold": 3, "periodic_reset": "weekly"}
RATE_LIMITS = [{"type": "tokens", "unit": "rph", "value": 9}]
FUTURE_TIMESTAMP = "2998-07-06T05:04:03.000Z"
CUSTOM_HEADERS_OPTIONS = {"custom_host": "https://other.example/v1", "custom_headers": {"x-team": "a-secret-field"}}
PRICING_ADJUSTMENTS = {"multiplier": {"default": 2.0, "request_token": 0.5}}
AZURE_DEPLOYMENT = {"apiVersion": "2024-06-01", "deploymentName": "d", "alias": "gpt-4o", "is_default": True}


def masked_sample(value: str, field: str) -> SampleValue:
    return SampleValue(value, lambda displayed: displayed[field], mask_secret(value))


def sample_bodies(scenario: SampleObjects) -> dict[str, dict[str, Any]]:
    """Returns a value for each field of each request body, by the name of the body's schema."""
    limits = {"usage_limits": USAGE_LIMITS, "rate_limits": RATE_LIMITS, "expires_at": FUTURE_TIMESTAMP}
    reset = SampleValue(True, lambda displayed: bool(displayed["last_reset_at"]))
    mapping = [{"target_field": "key", "secret_reference_id": scenario.reference, "value_format": "string"}]
    reference = scenario.admin.read(f"/v1/secret-references/{scenario.reference}")["id"]
    mappings = SampleValue(
        mapping, lambda displayed: displayed["secret_mappings"], [{**mapping[0], "secret_reference_id": reference}]
    )
    config = scenario.admin.read(f"/v1/configs/{scenario.config}")
    guardrail = [scenario.admin.read(f"/v1/guardrails/{scenario.guardrail}")["id"]]
    guarded = {"input_guardrails": guardrail, "output_guardrails": guardrail}
    defaults = {"metadata": {"team": "a"}, "config_id": config["id"], "allow_config_override": False, **guarded}
    policy = {"rotation_period_days": 20, "key_transition_period_ms": 3_600_000}
    key = {
        "name": "other",
        "description": "for x",
        "scopes": ["configs.list", "logs.write"],
        "defaults": defaults,
        "alert_emails": ["a@b.test"],
        "rotation_policy": policy,
        "workspace_id": scenario.workspace_id,
        **limits,
    }
    headers = SampleValue(
        CUSTOM_HEADERS_OPTIONS,
        lambda displayed: displayed["configurations"],
        {**CUSTOM_HEADERS_OPTIONS, "custom_headers": {"x-team": mask_secret("a-secret-field")}},
    )
    integration = {
        "name": "other",
        "key": masked_sample("sk-another-key", "masked_key"),
        "description": "for x",
        "tags": {"a": "b"},
        "configurations": headers,
        "secret_mappings": mappings,
        "pricing_adjustments": PRICING_ADJUSTMENTS,
    }
    provider = {"name": "other", "note": "for x", "tags": {"a": "b"}, **limits}
    virtual = {
        "name": "other",
        "note": "for x",
        "key": masked_sample("sk-another-key", "masked_api_key"),
        "model_config": SampleValue({"custom_host": "https://a.test"}, lambda displayed: displayed["model_config"]),
        "deploymentConfig": SampleValue(
            [AZURE_DEPLOYMENT], lambda displayed: displayed["model_config"]["deploymentConfig"]
        ),
        "secret_mappings": mappings,
        **limits,
    }
    location = {
        "name": "Other",
        # An icon would change the name that is shown; a test of client habits sets some.
        "icon": SampleValue("", lambda displayed: displayed["icon"] or ""),
        "description": "for x",
        "usage_limits": [USAGE_LIMITS],
        "rate_limits": RATE_LIMITS,
        "settings": {
            "user_api_key_rotation_period": 30,
            "block_inline_config": True,
            "user_api_key_ttl": 3600,
            "user_api_key_count": 1000,
            "user_key_metadata": {"floor": "3"},
            "user_key_metadata_override": 1,
            "debug_log": 1,
            "user_api_key_auto_create": True,
        },
        "security_settings": {"managersWritePrompts": False, "membersWriteGuardrails": True},
    }
    names = [scenario.guardrail]
    ours = {"metadata": {"team": "a"}, "input_guardrails": names, "output_guardrails": names}
    vault = {"vault_addr": "https://b.example", "vault_auth_type": "token", "vault_token": "t-9876543210"}
    auth = SampleValue(
        vault, lambda displayed: displayed["auth_config"], {**vault, "vault_token": mask_secret("t-9876543210")}
    )
    secret = {
        "name": "other",
        "description": "for x",
        "secret_path": "c/d",
        "secret_key": "k",
        "tags": {"a": "b"},
        "allow_all_workspaces": False,
        "auth_config": auth,
        "allowed_workspaces": SampleValue(
            [scenario.workspace_id],
            lambda fetched: scenario.admin.read(f"/v1/secret-references/{fetched['id']}/workspaces")[
                "allowed_workspaces"
            ],
        ),
    }
    # A test of imports reads these back.
    new = {"key_sha256": None, "initial_usage": None}
    own_slug = f"of-its-own-{next(SAMPLE_NUMBERS)}"
    legacy = {
        name: SampleValue(value, lambda displayed, name=name: displayed["model_config"][name])
        for name, value in (("apiVersion", "2024-02-01"), ("resourceName", "r"), ("deploymentName", "d"))
    }
    return {
        "CreateApiKey": {**key, "organisation_id": scenario.organisation, "user_id": scenario.user, **new},
        "UpdateApiKey": {**key, "reset_usage": reset},
        "CreateConfig": {
            "name": "other",
            "status": "archived",
            "slug": own_slug,
            "workspace_id": scenario.workspace_id,
            "config": SampleValue({"provider": "mock"}, lambda displayed: json.loads(displayed["config"])),
            "isDefault": SampleValue(1, lambda displayed: displayed["is_default"]),
        },
        "UpdateConfig": {
            "name": "other",
            "status": "archived",
            "config": SampleValue({"provider": "openai"}, lambda displayed: json.loads(displayed["config"])),
            "isDefault": SampleValue(1, lambda displayed: displayed["is_default"]),
        },
        "CreateIntegration": {
            **integration,
            "slug": own_slug,
            "ai_provider_id": "openai",
            "workspace_id": scenario.workspace_id,
            # The response does not show these fields; an integrations test checks them in the workspace.
            "create_default_provider": SampleValue(True, lambda _: True),
            "default_provider_slug": None,
        },
        "UpdateIntegration": integration,
        "CreateProvider": {
            **provider,
            "slug": own_slug,
            "workspace_id": scenario.workspace_id,
            "integration_id": scenario.integration,
            "model_config": {},
        },
        "UpdateProvider": {**provider, "reset_usage": reset},
        "NewVirtualKey": {
            **virtual,
            **legacy,
            "slug": own_slug,
            "workspace_id": scenario.workspace_id,
            "provider": "azure-openai",
        },
        "VirtualKeyUpdate": {**virtual, "reset_usage": reset},
        "NewWorkspace": {
            **location,
            "slug": own_slug,
            "defaults": ours,
            "initial_usage": None,
            "users": SampleValue(
                [{"id": scenario.user, "role": "manager"}],
                lambda displayed: [{"id": displayed["users"][0]["id"], "role": "manager"}],
            ),
        },
        "WorkspaceUpdate": {
            **location,
            "slug": own_slug,
            "defaults": {**ours, "user_api_key_config": scenario.config},
            "reset_usage": reset,
        },
        "CreateSecretReference": {
            **secret,
            "slug": own_slug,
            "organisation_id": scenario.organisation,
            "manager_type": "hashicorp_vault",
        },
        "UpdateSecretReference": secret,
        "NewInvite": {
            "email": f"invited{next(SAMPLE_NUMBERS)}@example.test",
            "role": "admin",
            "first_name": "Ann",
            "last_name": "Lee",
            "workspaces": [{"id": scenario.workspace_id, "role": "manager"}],
            "workspace_api_key_details": {"scopes": ["completions.write", "logs.write"]},
        },
        "UpdateOrganisationSettings": {
            "user_api_key_rotation_period": 11,
            "block_inline_config": True,
            "session_settings": {"max_session_ttl": 1234},
            "user_api_key_ttl": 7200,
            "security_settings": {"managersWritePrompts": False, "membersWriteGuardrails": True},
            "security_settings_overrides": {
                "prompts": False,
                "guardrails": False,
                "data_plane_security_settings": False,
            },
            "user_api_key_auto_create": True,
            "default_workspace_user_api_key_auto_create": True,
            "export_settings": {"deniedFields": ["request", "response"]},
            "data_visibility": {"managersViewAllData": True, "membersViewAllData": False},
            "disable_auto_provision_user": True,
        },
        "UpdateOrganisationDefaults": {
            name: SampleValue(names, lambda displayed, name=name: [item["slug"] for item in displayed[name]])
            for name in ("input_guardrails", "output_guardrails")
        },
        "UpdateMember": {"role": "admin"},
    }


def contains_value(displayed: Any, expected: Any) -> bool:
    """Returns true if the shown value contains everything that was written; it may have more fields."""
    if isinstance(expected, dict):
        return isinstance(displayed, dict) and all(
            contains_value(displayed.get(name), value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(displayed, list)
            and len(displayed) == len(expected)
            and all(map(contains_value, displayed, expected))
        )
    if isinstance(expected, str) and isinstance(displayed, str) and expected[:1].isdigit() and "T" in expected:
        return datetime.fromisoformat(displayed) == datetime.fromisoformat(expected)
    return displayed == expected


def find_mismatches(displayed: dict[str, Any], body: Mapping[str, Any]) -> list[str]:
    """Returns a description of each field that is not read back as it was written."""
    lost: list[str] = []
    for name, sample in body.items():
        read, expected = (lambda row, name=name: row[name]), sample
        if isinstance(sample, SampleValue):
            read, expected = sample.read_back, sample.value if sample.shown_value is None else sample.shown_value
        if expected is not None and not contains_value(read(displayed), expected):
            lost.append(f"{name}: {read(displayed)!r} instead of {expected!r}")
    return lost


def to_request_body(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sample.value if isinstance(sample, SampleValue) else sample for name, sample in body.items()}
