"""Every field of the management API: answers hold what their tables say, and what is written is read back."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.app import describe
from penstock.kit.ids import mask
from tests.integration.managed import Client, good

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DESCRIPTION: dict[str, Any] = json.loads(describe())
NUMBERS = itertools.count(1)
TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "list": list,
    "table": dict,
    "null": type(None),
}

# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

DATES = {"created_at": "text", "last_updated_at": "text"}
LIST = {"object": "text", "total": "integer", "data": "list"}
MADE = {"id": "text", "slug": "text"}
LIMITS = {"usage_limits": "table|null", "rate_limits": "list|null"}
MANY_LIMITS = {"usage_limits": "list|null", "rate_limits": "list|null"}
KEY = {
    **dict.fromkeys(("id", "key", "name", "type", "organisation_id", "status", "creation_mode", "object"), "text"),
    **dict.fromkeys(("description", "workspace_id", "user_id", "expires_at", "last_rotated_at"), "text|null"),
    **dict.fromkeys(("last_reset_at", "next_usage_reset_at"), "text|null"),
    "reset_usage": "integer|null",
    "scopes": "list",
    "defaults": "table",
    "alert_emails": "list|null",
    "rotation_policy": "table|null",
    **LIMITS,
    **DATES,
}
CONFIG_ROW = {
    **dict.fromkeys(("id", "slug", "name", "organisation_id", "workspace_id", "status", "object"), "text"),
    "is_default": "integer",
    "owner_id": "text|null",
    "updated_by": "text|null",
    **DATES,
}
CONFIG = {**CONFIG_ROW, "config": "text", "format": "text", "type": "text", "version_id": "text"}
INTEGRATION_ROW = {
    **dict.fromkeys(("id", "slug", "name", "ai_provider_id", "organisation_id", "object", "status"), "text"),
    "description": "text|null",
    "workspace_id": "text|null",
    "configurations": "table",
    "tags": "table",
    **DATES,
}
INTEGRATION = {
    **INTEGRATION_ROW,
    "masked_key": "text|null",
    "owner_id": "text|null",
    "type": "text",
    "allow_all_models": "boolean",
    "global_workspace_access": "table",
    "global_workspace_access_settings": "table",
    "workspace_count": "integer",
    "secret_mappings": "list",
    "pricing_adjustments": "table|null",
}
PROVIDER = {
    **dict.fromkeys(("id", "slug", "name", "integration_id", "ai_provider_name", "workspace_id"), "text"),
    "note": "text|null",
    "status": "text",
    "reset_usage": "integer|null",
    "last_reset_at": "text|null",
    "expires_at": "text|null",
    "model_config": "table",
    "created_at": "text",
    "object": "text",
    **LIMITS,
}
VIRTUAL_KEY = {
    **PROVIDER,
    "key": "text",
    "masked_api_key": "text|null",
    "provider": "text",
    "workspace_name": "text",
    "tags": "table",
    "organisation_id": "text",
    "secret_mappings": "list",
}
PERSON = dict.fromkeys(("object", "id", "first_name", "last_name", "role", "email"), "text") | DATES
MEMBER = {
    **PERSON,
    "org_role": "text",
    "status": "text",
    "workspace_id": "text",
    "scopes": "list",
    "settings": "table",
}
INVITE = {
    **dict.fromkeys(("object", "id", "email", "role", "created_at", "expires_at", "status"), "text"),
    "accepted_at": "text|null",
    "invited_by": "text|null",
}
WORKSPACE = {
    **dict.fromkeys(("object", "id", "slug", "name", "organisation_id", "status", "creation_source"), "text"),
    "description": "text|null",
    "icon": "text|null",
    "created_by": "text|null",
    "is_default": "integer",
    "defaults": "table",
    "settings": "table",
    **MANY_LIMITS,
    **DATES,
}
REFERENCE_ROW = dict.fromkeys(("id", "name", "slug", "manager_type", "status", "object"), "text") | DATES
REFERENCE = {
    **REFERENCE_ROW,
    "organisation_id": "text",
    "description": "text|null",
    "secret_path": "text",
    "secret_key": "text|null",
    "auth_config": "table",
    "allow_all_workspaces": "boolean",
    "tags": "table",
    "created_by": "text|null",
}
RECORD = {
    **dict.fromkeys(("timestamp", "method", "uri", "request_id", "request_body", "query_params", "action"), "text"),
    **dict.fromkeys(("request_headers", "user_type", "organisation_id", "client_ip", "country"), "text"),
    "user_id": "text|null",
    "workspace_id": "text|null",
    "response_status_code": "integer",
    "resource_type": "text",
}


class Scene(NamedTuple):
    """One thing of each kind."""

    admin: Client
    place: str
    user: str
    key: str
    config: str
    integration: str
    provider: str
    virtual_key: str
    reference: str
    invite: str
    organisation: str


@pytest.fixture(scope="module")
def scene(admin: Client) -> Scene:
    workspace = admin.made("/v1/admin/workspaces", {"name": "Fields"})
    place = {"workspace_id": workspace["id"]}
    user = admin.shown("/v1/admin/users")["data"][0]["id"]
    good(admin.post(f"/v1/admin/workspaces/{workspace['id']}/users", {"users": [{"id": user, "role": "manager"}]}))
    whole = {"name": "i", "slug": "fields", "ai_provider_id": "openai", "key": "sk-0123456789"}
    integration = admin.made("/v1/integrations", {**whole, "create_default_provider": False})["slug"]
    spaces = {"workspaces": [{"id": workspace["id"], "enabled": True}], "create_default_provider": False}
    good(admin.put(f"/v1/integrations/{integration}/workspaces", spaces))
    models = {"models": [{"slug": "mine", "enabled": True, "is_custom": True}]}
    good(admin.put(f"/v1/integrations/{integration}/models", models))
    virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", **place}
    vault = {"vault_addr": "https://vault.test", "vault_auth_type": "token", "vault_token": "t-0123456789"}
    secret = {"name": "s", "manager_type": "hashicorp_vault", "auth_config": vault, "secret_path": "a/b"}
    invited = {"email": "fields@example.test", "role": "member", "workspaces": []}
    key = {"name": "k", "scopes": ["completions.write"], **place}
    return Scene(
        admin,
        workspace["id"],
        user,
        admin.made("/v1/api-keys/workspace/service", key)["id"],
        admin.made("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **place})["slug"],
        integration,
        admin.made("/v1/providers", {"name": "p", "integration_id": integration, **place})["slug"],
        admin.made("/v1/virtual-keys", virtual)["slug"],
        admin.made("/v1/secret-references", secret)["slug"],
        admin.made("/v1/admin/users/invites", invited)["id"],
        workspace["organisation_id"],
    )


SPAN = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
# Where each is answered, below which field a list has its rows, and what there is.
READS: list[tuple[str, str, dict[str, str]]] = [
    ("/v1/api-keys/{key}", "", KEY),
    ("/v1/api-keys?workspace_id={place}", "", LIST),
    ("/v2/api-keys?ids={key}", "data", KEY),
    ("/v1/configs/{config}", "", CONFIG),
    ("/v1/configs/{config}/versions", "data", CONFIG),
    ("/v1/configs?workspace_id={place}", "", LIST),
    ("/v1/configs?workspace_id={place}", "data", CONFIG_ROW),
    ("/v1/integrations/{integration}", "", INTEGRATION),
    ("/v2/integrations/{integration}", "", INTEGRATION),
    ("/v1/integrations", "", LIST),
    ("/v1/integrations", "data", INTEGRATION_ROW),
    (
        "/v1/integrations/{integration}/models",
        "",
        {"total": "integer", "models": "list", "allow_all_models": "boolean", "object": "text"},
    ),
    (
        "/v1/integrations/{integration}/integration-models",
        "models",
        {
            "slug": "text",
            "name": "text|null",
            "enabled": "boolean",
            "is_custom": "boolean",
            "is_finetune": "boolean",
            "base_model_slug": "text|null",
            "pricing_config": "table|null",
            "created_at": "text|null",
            "last_updated_at": "text|null",
        },
    ),
    (
        "/v1/integrations/{integration}/workspaces",
        "",
        {**LIST, "workspaces": "list", "global_workspace_access": "table"},
    ),
    (
        "/v1/integrations/{integration}/workspaces",
        "workspaces",
        {"id": "text", "enabled": "boolean", **MANY_LIMITS, **DATES},
    ),
    ("/v1/providers/{provider}?workspace_id={place}", "", PROVIDER | DATES),
    ("/v1/providers?workspace_id={place}", "", LIST),
    ("/v1/providers?workspace_id={place}", "data", PROVIDER | DATES),
    ("/v1/virtual-keys/{virtual_key}?workspace_id={place}", "", VIRTUAL_KEY),
    ("/v1/virtual-keys?workspace_id={place}", "", LIST),
    ("/v1/virtual-keys?workspace_id={place}", "data", VIRTUAL_KEY),
    ("/v1/admin/users/{user}", "", {**PERSON, "workspace_ids": "list"}),
    ("/v1/admin/users?pageSize=5&currentPage=0", "", LIST),
    ("/v1/admin/users", "data", {**PERSON, "workspace_ids": "list"}),
    ("/v1/admin/users/invites/{invite}", "", INVITE),
    ("/v1/admin/users/invites?pageSize=5", "", LIST),
    ("/v1/admin/users/invites", "data", INVITE),
    *(
        (f"{path}/{{place}}", "", {**WORKSPACE, "users": "list"})
        for path in ("/v1/admin/workspaces", "/v1/workspaces", "/v2/workspaces")
    ),
    ("/v1/admin/workspaces", "", LIST),
    ("/v1/workspaces", "data", WORKSPACE),
    ("/v1/admin/workspaces/{place}/users/{user}", "", MEMBER),
    ("/v1/admin/workspaces/{place}/users", "", LIST),
    ("/v1/workspaces/{place}/users", "data", MEMBER),
    ("/v1/secret-references/{reference}", "", REFERENCE),
    ("/v1/secret-references", "", LIST),
    ("/v1/secret-references", "data", REFERENCE_ROW),
    (f"/v1/audit-logs?{SPAN}&organisation_id={{organisation}}", "records", RECORD),
    (
        f"/v1/audit-logs?{SPAN}&organisation_id={{organisation}}",
        "",
        {"records": "list", "total": "integer", "object": "text"},
    ),
    ("/v1/models?workspace_id={place}", "", {"object": "text", "data": "list", "total_count": "integer"}),
    (
        "/v1/models?workspace_id={place}",
        "data",
        {"id": "text", "created": "integer", "object": "text", "owned_by": "text"},
    ),
    (
        "/v1/model-configs/pricing/openai/gpt-4o",
        "",
        {"pay_as_you_go": "table", "calculate": "table", "currency": "text"},
    ),
]


def differing(shown: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, object]:
    """The fields that are not there, or of another type."""
    return {
        name: shown.get(name, "is not there")
        for name, kinds in table.items()
        if name not in shown
        or not any(
            isinstance(shown[name], TYPES[kind]) and (kind == "boolean") == isinstance(shown[name], bool)
            for kind in kinds.split("|")
        )
    }


@pytest.mark.parametrize(("path", "below", "table"), READS, ids=[f"{path} {below}" for path, below, _ in READS])
def test_what_is_read_holds_each_field_in_its_type(scene: Scene, path: str, below: str, table: dict[str, str]):
    answer = scene.admin.shown(path.format(**scene._asdict()))
    rows: list[dict[str, Any]] = answer[below] if below else [answer]
    assert rows
    assert not [found for row in rows if (found := differing(row, table))]


def test_what_is_made_and_changed_answers_each_field_in_its_type(scene: Scene):
    admin, place = scene.admin, {"workspace_id": scene.place}
    inside = f"?workspace_id={scene.place}"
    key = {"name": "k", "scopes": ["completions.write"], **place}
    made = admin.made("/v1/api-keys/workspace/service", key)
    rotated = {"id": "text", "key": "text", "key_transition_expires_at": "text"}
    virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", **place}
    named = {"name": "renamed"}
    answers: list[tuple[dict[str, Any], dict[str, str]]] = [
        (made, {"id": "text", "key": "text", "object": "text"}),
        (good(admin.put(f"/v1/api-keys/{made['id']}", named)), {}),
        (good(admin.post(f"/v1/api-keys/{made['id']}/rotate", {})), rotated),
        (
            admin.made("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **place}),
            MADE | {"version_id": "text", "object": "text"},
        ),
        (good(admin.put(f"/v1/configs/{scene.config}", named)), {"version_id": "text", "object": "text"}),
        (admin.made("/v1/integrations", {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789"}), MADE),
        (good(admin.put(f"/v1/integrations/{scene.integration}", named)), {}),
        (admin.made("/v1/providers", {"name": "p", "integration_id": scene.integration, **place}), MADE),
        (good(admin.put(f"/v1/providers/{scene.provider}{inside}", named)), MADE),
        (admin.made("/v1/virtual-keys", virtual), {**MADE, "object": "text", "success": "boolean", "data": "table"}),
        (good(admin.put(f"/v1/virtual-keys/{scene.virtual_key}{inside}", named)), {**MADE, "object": "text"}),
        (
            admin.made(
                "/v1/admin/users/invites", {"email": "fields2@example.test", "role": "member", "workspaces": []}
            ),
            {"id": "text", "invite_link": "text"},
        ),
        (good(admin.post(f"/v1/admin/users/invites/{scene.invite}/resend", {})), {"inviteLink": "text"}),
        (admin.made("/v1/admin/workspaces", {"name": "w"}), {**WORKSPACE, "users": "list"}),
        (good(admin.put(f"/v1/admin/workspaces/{scene.place}", {"name": "Fields"})), WORKSPACE),
    ]
    assert not [found for answer, table in answers if (found := differing(answer, table))]
    # What was changed or deleted says nothing else, or nothing at all.
    assert [answers[1][0], answers[6][0]] == [{}, {}]
    assert good(admin.delete(f"/v1/api-keys/{made['id']}")) == {}


# ── what is written is read back ─────────────────────────────────────────────────────────────────────────────────────


class Sample(NamedTuple):
    """A value, and what of the answer it is found as, where that is not the field of its name."""

    value: Any
    read: Callable[[dict[str, Any]], Any]
    # Another value than the one that was written.
    as_shown: Any = None


USAGE = {"credit_limit": 7, "type": "tokens", "alert_threshold": 3, "periodic_reset": "weekly"}
RATES = [{"type": "tokens", "unit": "rph", "value": 9}]
LATER = "2998-07-06T05:04:03.000Z"
HEADERS = {"custom_host": "https://other.test/v1", "custom_headers": {"x-team": "a-secret-field"}}
FACTORS = {"multiplier": {"default": 2.0, "request_token": 0.5}}
DEPLOYMENT = {"apiVersion": "2024-06-01", "deploymentName": "d", "alias": "gpt-4o", "is_default": True}


def masked(value: str, field: str) -> Sample:
    return Sample(value, lambda shown: shown[field], mask(value))


def samples(scene: Scene) -> dict[str, dict[str, Any]]:
    """For each body by name: a value of each field."""
    limits = {"usage_limits": USAGE, "rate_limits": RATES, "expires_at": LATER}
    reset = Sample(True, lambda shown: bool(shown["last_reset_at"]))
    mapping = [{"target_field": "key", "secret_reference_id": scene.reference, "value_format": "string"}]
    reference = scene.admin.shown(f"/v1/secret-references/{scene.reference}")["id"]
    mappings = Sample(
        mapping, lambda shown: shown["secret_mappings"], [{**mapping[0], "secret_reference_id": reference}]
    )
    config = scene.admin.shown(f"/v1/configs/{scene.config}")
    defaults = {"metadata": {"team": "a"}, "config_id": config["id"], "allow_config_override": False}
    policy = {"rotation_period_days": 20, "key_transition_period_ms": 3_600_000}
    key = {
        "name": "other",
        "description": "for x",
        "scopes": ["configs.list", "logs.write"],
        "defaults": defaults,
        "alert_emails": ["a@b.test"],
        "rotation_policy": policy,
        "workspace_id": scene.place,
        **limits,
    }
    headers = Sample(
        HEADERS,
        lambda shown: shown["configurations"],
        {**HEADERS, "custom_headers": {"x-team": mask("a-secret-field")}},
    )
    integration = {
        "name": "other",
        "key": masked("sk-another-key", "masked_key"),
        "description": "for x",
        "tags": {"a": "b"},
        "configurations": headers,
        "secret_mappings": mappings,
        "pricing_adjustments": FACTORS,
    }
    provider = {"name": "other", "note": "for x", "tags": {"a": "b"}, **limits}
    virtual = {
        "name": "other",
        "note": "for x",
        "key": masked("sk-another-key", "masked_api_key"),
        "model_config": Sample({"custom_host": "https://a.test"}, lambda shown: shown["model_config"]),
        "deploymentConfig": Sample([DEPLOYMENT], lambda shown: shown["model_config"]["deploymentConfig"]),
        "secret_mappings": mappings,
        **limits,
    }
    place = {
        "name": "Other",
        "description": "for x",
        "usage_limits": [USAGE],
        "rate_limits": RATES,
        "settings": {"user_api_key_rotation_period": 30, "block_inline_config": True},
    }
    ours = {"metadata": {"team": "a"}, "input_guardrails": ["pg-1"], "output_guardrails": ["pg-2"]}
    vault = {"vault_addr": "https://b.test", "vault_auth_type": "token", "vault_token": "t-9876543210"}
    auth = Sample(vault, lambda shown: shown["auth_config"], {**vault, "vault_token": mask("t-9876543210")})
    secret = {
        "name": "other",
        "description": "for x",
        "secret_path": "c/d",
        "secret_key": "k",
        "tags": {"a": "b"},
        "allow_all_workspaces": False,
        "auth_config": auth,
        "allowed_workspaces": [scene.place],
    }
    own_slug = f"of-its-own-{next(NUMBERS)}"
    legacy = {
        name: Sample(value, lambda shown, name=name: shown["model_config"][name])
        for name, value in (("apiVersion", "2024-02-01"), ("resourceName", "r"), ("deploymentName", "d"))
    }
    return {
        "NewKey": {**key, "organisation_id": scene.organisation, "user_id": scene.user},
        "KeyChange": {**key, "reset_usage": reset},
        "NewConfig": {
            "name": "other",
            "workspace_id": scene.place,
            "config": Sample({"provider": "mock"}, lambda shown: json.loads(shown["config"])),
            "isDefault": Sample(1, lambda shown: shown["is_default"]),
        },
        "ConfigChange": {
            "name": "other",
            "status": "archived",
            "config": Sample({"provider": "openai"}, lambda shown: json.loads(shown["config"])),
        },
        "NewIntegration": {
            **integration,
            "slug": own_slug,
            "ai_provider_id": "openai",
            "workspace_id": scene.place,
            # They are seen in the workspace; a test of integrations looks there.
            "create_default_provider": Sample(True, lambda _: True),
            "default_provider_slug": None,
        },
        "IntegrationChange": integration,
        "NewProvider": {
            **provider,
            "slug": own_slug,
            "workspace_id": scene.place,
            "integration_id": scene.integration,
        },
        "ProviderChange": {**provider, "reset_usage": reset},
        "NewVirtualKey": {
            **virtual,
            **legacy,
            "slug": own_slug,
            "workspace_id": scene.place,
            "provider": "azure-openai",
        },
        "VirtualKeyChange": {**virtual, "reset_usage": reset},
        "NewWorkspace": {
            **place,
            "defaults": ours,
            "users": Sample(
                [{"id": scene.user, "role": "manager"}],
                lambda shown: [{"id": shown["users"][0]["id"], "role": "manager"}],
            ),
        },
        "WorkspaceChange": {**place, "defaults": {**ours, "user_api_key_config": scene.config}},
        "NewReference": {
            **secret,
            "slug": own_slug,
            "organisation_id": scene.organisation,
            "manager_type": "hashicorp_vault",
        },
        "ReferenceChange": secret,
        "NewInvite": {
            "email": f"invited{next(NUMBERS)}@example.test",
            "role": "admin",
            "workspaces": [{"id": scene.place, "role": "manager"}],
            "workspace_api_key_details": {"scopes": ["completions.write", "logs.write"]},
        },
        "SettingsChange": {
            "user_api_key_rotation_period": 11,
            "block_inline_config": True,
            "session_settings": {"max_session_ttl": 1234},
        },
        "OrganisationDefaults": {"input_guardrails": ["pg-1"], "output_guardrails": ["pg-2"]},
        "RoleChange": {"role": "admin"},
    }


def fields_of(path: str, verb: str) -> tuple[str, set[str]]:
    """The name of a body, and the fields that the description says it has."""
    body = DESCRIPTION["paths"][path][verb]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    return name, set(DESCRIPTION["components"]["schemas"][name]["properties"])


def holds(shown: Any, wanted: Any) -> bool:  # noqa: ANN401
    """Whether what is shown has all that was written; it may say more."""
    if isinstance(wanted, dict):
        return isinstance(shown, dict) and all(holds(shown.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(shown, list) and len(shown) == len(wanted) and all(map(holds, shown, wanted))
    if isinstance(wanted, str) and isinstance(shown, str) and wanted[:1].isdigit() and "T" in wanted:
        return datetime.fromisoformat(shown) == datetime.fromisoformat(wanted)
    return shown == wanted


def unread(shown: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields that are not read back as they were written."""
    lost: list[str] = []
    for name, sample in given.items():
        read, wanted = (lambda row, name=name: row[name]), sample
        if isinstance(sample, Sample):
            read, wanted = sample.read, sample.value if sample.as_shown is None else sample.as_shown
        if wanted is not None and not holds(read(shown), wanted):
            lost.append(f"{name}: {read(shown)!r} instead of {wanted!r}")
    return lost


def sent(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sample.value if isinstance(sample, Sample) else sample for name, sample in given.items()}


# What the description calls it, where one is made, and where it is read.
CREATES = [
    ("/v1/api-keys/{kind}/{sub_kind}", "/v1/api-keys/workspace/user", "/v1/api-keys/{id}"),
    ("/v1/configs", "/v1/configs", "/v1/configs/{id}"),
    ("/v1/integrations", "/v1/integrations", "/v1/integrations/{id}"),
    ("/v1/providers", "/v1/providers", "/v1/providers/{id}?workspace_id={place}"),
    ("/v1/virtual-keys", "/v1/virtual-keys", "/v1/virtual-keys/{id}?workspace_id={place}"),
    ("/v1/admin/workspaces", "/v1/admin/workspaces", "/v1/admin/workspaces/{id}"),
    ("/v1/secret-references", "/v1/secret-references", "/v1/secret-references/{id}"),
    ("/v1/admin/users/invites", "/v1/admin/users/invites", "/v1/admin/users/invites/{id}"),
]


@pytest.mark.parametrize(("described", "path", "reading"), CREATES, ids=[row[0] for row in CREATES])
def test_each_field_that_one_is_made_with_is_read_back(scene: Scene, described: str, path: str, reading: str):
    name, fields = fields_of(described, "post")
    given = samples(scene)[name]
    assert fields == set(given), "each field has its sample"
    given = {field: sample for field, sample in given.items() if sample is not None}
    made = scene.admin.made(path, sent(given))
    assert not unread(scene.admin.shown(reading.format(id=made["id"], place=scene.place)), given)


# Where each kind is changed, and where it is read if that is elsewhere.
CHANGES = [
    ("/v1/api-keys/{key_id}", "/v1/api-keys/{key}"),
    ("/v1/configs/{key}", "/v1/configs/{config}"),
    ("/v1/integrations/{key}", "/v1/integrations/{integration}"),
    ("/v1/providers/{key}", "/v1/providers/{provider}?workspace_id={place}"),
    ("/v1/virtual-keys/{key}", "/v1/virtual-keys/{virtual_key}?workspace_id={place}"),
    ("/v1/admin/workspaces/{workspace}", "/v1/admin/workspaces/{place}"),
    ("/v2/workspaces/{workspace}", "/v2/workspaces/{place}"),
    ("/v1/secret-references/{key}", "/v1/secret-references/{reference}"),
    ("/v1/admin/organisation/settings", "/v1/admin/organisation/settings"),
    ("/v1/admin/organisation/defaults", "/v1/admin/organisation/defaults"),
    ("/v1/admin/workspaces/{workspace}/users/{user_id}", "/v1/admin/workspaces/{place}/users/{user}"),
]


@pytest.mark.parametrize(("described", "path"), CHANGES, ids=[row[0] for row in CHANGES])
def test_each_field_that_is_changed_alone_is_read_back_and_others_stay(scene: Scene, described: str, path: str):
    name, fields = fields_of(described, "put")
    given = samples(scene)[name]
    assert fields == set(given) - ({"workspace_id"} - fields), "each field has its sample"
    where = path.format(**scene._asdict())
    for field in sorted(fields):
        before = scene.admin.shown(where)
        good(scene.admin.put(where, sent({field: given[field]})))
        after = scene.admin.shown(where)
        assert not unread(after, {field: given[field]})
        others = fields - {field} - {"reset_usage", "allow_all_workspaces", "allowed_workspaces", "deploymentConfig"}
        same = [other for other in others if other in before and other != "model_config"]
        assert {other: after[other] for other in same} == {other: before[other] for other in same}


def test_models_and_workspaces_of_an_integration_are_read_back(scene: Scene):
    own = {"custom_host": "https://one.test", "custom_headers": {"x-model": "a-secret-field"}}
    model = {
        "slug": "finer",
        "enabled": False,
        "name": "Finer",
        "is_custom": True,
        "is_finetune": True,
        "base_model_slug": "gpt-4o",
        "configurations": own,
        "pricing_config": {"pay_as_you_go": {"request_token": {"price": 0.5}}, "currency": "USD"},
    }
    schemas = DESCRIPTION["components"]["schemas"]
    assert set(schemas["ModelGiven"]["properties"]) == set(model)
    path = f"/v1/integrations/{scene.integration}"
    good(scene.admin.put(f"{path}/models", {"models": [model], "allow_all_models": False}))
    shown = scene.admin.shown(f"{path}/models")
    (row,) = [row for row in shown["models"] if row["slug"] == "finer"]
    hidden = {**own, "custom_headers": {"x-model": mask("a-secret-field")}}
    assert (holds(row, {**model, "configurations": hidden}), shown["allow_all_models"]) == (True, False)
    access = {
        "id": scene.place,
        "enabled": False,
        "usage_limits": [USAGE],
        "rate_limits": RATES,
        "reset_usage": True,
        "create_default_provider": False,
        "default_provider_slug": None,
    }
    assert set(schemas["AccessGiven"]["properties"]) == set(access)
    everybody = {"enabled": True, "usage_limits": [USAGE], "rate_limits": RATES}
    assert set(schemas["GlobalAccess"]["properties"]) == set(everybody)
    rules = {"global_workspace_access": everybody, "create_default_provider": False}
    good(scene.admin.put(f"{path}/workspaces", {"workspaces": [access], **rules}))
    shown = scene.admin.shown(f"{path}/workspaces")
    (row,) = shown["workspaces"]
    read_back = ("enabled", "usage_limits", "rate_limits")
    assert holds(row, {name: access[name] for name in read_back})
    assert (row["workspace_id"], bool(row["last_reset_at"])) == (scene.place, True)
    assert holds(shown["global_workspace_access"], everybody)
    good(scene.admin.put(f"{path}/workspaces", {"workspaces": [{**access, "enabled": True}]}))
