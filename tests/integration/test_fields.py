"""Round trips of every management API field. Responses match their documented types, and written values are read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.app import openapi_json
from penstock.ids import mask_secret
from tests.integration.management_client import Client, expect_ok
from tests.integration.response_fields import CREATED_FIELDS, READ_ROUTES, WORKSPACE_FIELDS, mismatched_fields
from tests.integration.writable_fields import (
    RATE_LIMITS,
    USAGE_LIMITS,
    SampleObjects,
    contains_value,
    create_sample_objects,
    find_mismatches,
    sample_bodies,
    to_request_body,
)

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

DESCRIPTION: dict[str, Any] = json.loads(openapi_json())


@pytest.fixture(scope="module")
def scenario(admin: Client) -> SampleObjects:
    # Somebody who can be added to the workspace.
    invited = admin.create("/v1/admin/users/invites", {"email": "ann@example.test", "role": "member", "workspaces": []})
    person = {"first_name": "Ann", "last_name": "Lee", "password": "a password that is long"}
    token = invited["invite_link"].rpartition("=")[2]
    expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", {"token": token, **person}))
    return create_sample_objects(admin)


@pytest.mark.parametrize(
    ("path", "below", "table"), READ_ROUTES, ids=[f"{path} {below}" for path, below, _ in READ_ROUTES]
)
def test_read_fields_have_their_documented_types(scenario: SampleObjects, path: str, below: str, table: dict[str, str]):
    response = scenario.admin.read(path.format(**scenario._asdict()))
    rows: list[dict[str, Any]] = response[below] if below else [response]
    assert rows
    assert not [result for row in rows if (result := mismatched_fields(row, table))]


def test_create_and_update_responses_have_documented_types(scenario: SampleObjects):
    admin, workspace = scenario.admin, {"workspace_id": scenario.workspace_id}
    inside = f"?workspace_id={scenario.workspace_id}"
    key = {"name": "k", "scopes": ["completions.write"], **workspace}
    created = admin.create("/v1/api-keys/workspace/service", key)
    rotated = {"id": "text", "key": "text", "key_transition_expires_at": "text"}
    virtual = {"name": "v", "provider": "openai", "key": "sk-0123456789", **workspace}
    names = {"name": "renamed"}
    responses: list[tuple[dict[str, Any], dict[str, str]]] = [
        (created, {"id": "text", "key": "text", "object": "text"}),
        (expect_ok(admin.put(f"/v1/api-keys/{created['id']}", names)), {}),
        (expect_ok(admin.post(f"/v1/api-keys/{created['id']}/rotate", {})), rotated),
        (
            admin.create("/v1/configs", {"name": "c", "config": {"provider": "mock"}, **workspace}),
            CREATED_FIELDS | {"version_id": "text", "object": "text"},
        ),
        (expect_ok(admin.put(f"/v1/configs/{scenario.config}", names)), {"version_id": "text", "object": "text"}),
        (
            admin.create("/v1/integrations", {"name": "i", "ai_provider_id": "openai", "key": "sk-0123456789"}),
            CREATED_FIELDS,
        ),
        (expect_ok(admin.put(f"/v1/integrations/{scenario.integration}", names)), {}),
        (
            admin.create("/v1/providers", {"name": "p", "integration_id": scenario.integration, **workspace}),
            CREATED_FIELDS,
        ),
        (expect_ok(admin.put(f"/v1/providers/{scenario.provider}{inside}", names)), CREATED_FIELDS),
        (
            admin.create("/v1/virtual-keys", virtual),
            {**CREATED_FIELDS, "object": "text", "success": "boolean", "data": "table"},
        ),
        (
            expect_ok(admin.put(f"/v1/virtual-keys/{scenario.virtual_key}{inside}", names)),
            {**CREATED_FIELDS, "object": "text"},
        ),
        (
            admin.create(
                "/v1/admin/users/invites", {"email": "fields2@example.test", "role": "member", "workspaces": []}
            ),
            {"id": "text", "invite_link": "text"},
        ),
        (expect_ok(admin.post(f"/v1/admin/users/invites/{scenario.invite}/resend", {})), {"inviteLink": "text"}),
        (admin.create("/v1/admin/workspaces", {"name": "w"}), {**WORKSPACE_FIELDS, "users": "list"}),
        (expect_ok(admin.put(f"/v1/admin/workspaces/{scenario.workspace_id}", {"name": "Fields"})), WORKSPACE_FIELDS),
    ]
    assert not [result for response, table in responses if (result := mismatched_fields(response, table))]
    # Updates of API keys and integrations, and deletes of API keys, return an empty object.
    assert [responses[1][0], responses[6][0]] == [{}, {}]
    assert expect_ok(admin.delete(f"/v1/api-keys/{created['id']}")) == {}


def body_fields(path: str, verb: str) -> tuple[str, set[str]]:
    """Returns the schema name of a request body, and the field names that the OpenAPI description gives it."""
    body = DESCRIPTION["paths"][path][verb]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    return name, set(DESCRIPTION["components"]["schemas"][name]["properties"])


# Path in the OpenAPI description, path to create at, and path to read from.
CREATE_ROUTES = [
    ("/v1/api-keys/{kind}/{sub_kind}", "/v1/api-keys/workspace/user", "/v1/api-keys/{id}"),
    ("/v1/configs", "/v1/configs", "/v1/configs/{id}"),
    ("/v1/integrations", "/v1/integrations", "/v1/integrations/{id}"),
    ("/v1/providers", "/v1/providers", "/v1/providers/{id}?workspace_id={workspace_id}"),
    ("/v1/virtual-keys", "/v1/virtual-keys", "/v1/virtual-keys/{id}?workspace_id={workspace_id}"),
    ("/v1/admin/workspaces", "/v1/admin/workspaces", "/v1/admin/workspaces/{id}"),
    ("/v1/secret-references", "/v1/secret-references", "/v1/secret-references/{id}"),
    ("/v1/admin/users/invites", "/v1/admin/users/invites", "/v1/admin/users/invites/{id}"),
]


@pytest.mark.parametrize(("described", "path", "reading"), CREATE_ROUTES, ids=[row[0] for row in CREATE_ROUTES])
def test_each_create_field_is_read_back(scenario: SampleObjects, described: str, path: str, reading: str):
    name, fields = body_fields(described, "post")
    body = sample_bodies(scenario)[name]
    assert fields == set(body), "each field has its sample"
    body = {field: sample for field, sample in body.items() if sample is not None}
    created = scenario.admin.create(path, to_request_body(body))
    assert not find_mismatches(
        scenario.admin.read(reading.format(id=created["id"], workspace_id=scenario.workspace_id)), body
    )


# Path in the OpenAPI description, and path to update and read.
UPDATE_ROUTES = [
    ("/v1/api-keys/{key_id}", "/v1/api-keys/{key}"),
    ("/v1/configs/{key}", "/v1/configs/{unused_config}"),
    ("/v1/integrations/{key}", "/v1/integrations/{integration}"),
    ("/v1/providers/{key}", "/v1/providers/{provider}?workspace_id={workspace_id}"),
    ("/v1/virtual-keys/{key}", "/v1/virtual-keys/{virtual_key}?workspace_id={workspace_id}"),
    ("/v1/admin/workspaces/{workspace}", "/v1/admin/workspaces/{workspace_id}"),
    ("/v2/workspaces/{workspace}", "/v2/workspaces/{workspace_id}"),
    ("/v1/secret-references/{key}", "/v1/secret-references/{unused_reference}"),
    ("/v1/admin/organisation/settings", "/v1/admin/organisation/settings"),
    ("/v1/admin/organisation/defaults", "/v1/admin/organisation/defaults"),
    ("/v1/admin/workspaces/{workspace}/users/{user_id}", "/v1/admin/workspaces/{workspace_id}/users/{user}"),
]


@pytest.mark.parametrize(("described", "path"), UPDATE_ROUTES, ids=[row[0] for row in UPDATE_ROUTES])
def test_single_field_update_is_read_back_and_changes_no_other(scenario: SampleObjects, described: str, path: str):
    name, fields = body_fields(described, "put")
    body = sample_bodies(scenario)[name]
    assert fields == set(body) - ({"workspace_id"} - fields), "each field has its sample"
    where = path.format(**scenario._asdict())
    for field in sorted(fields):
        before = scenario.admin.read(where)
        # A change of the provider's host requires the credential again.
        along = {"key": body["key"]} if field in {"configurations", "model_config"} else {}
        expect_ok(scenario.admin.put(where, to_request_body({**along, field: body[field]})))
        after = scenario.admin.read(where)
        assert not find_mismatches(after, {field: body[field]})
        others = fields - {field} - {"reset_usage", "allow_all_workspaces", "allowed_workspaces", "deploymentConfig"}
        same = [other for other in others if other in before and other != "model_config"]
        assert {other: after[other] for other in same} == {other: before[other] for other in same}


@pytest.fixture(scope="module")
def other_scene(admin: Client) -> SampleObjects:
    return create_sample_objects(admin, "at-once")


@pytest.mark.parametrize(("described", "path"), UPDATE_ROUTES, ids=[row[0] for row in UPDATE_ROUTES])
def test_all_fields_updated_at_once_are_read_back(other_scene: SampleObjects, described: str, path: str):
    name, fields = body_fields(described, "put")
    body = {field: sample for field, sample in sample_bodies(other_scene)[name].items() if field in fields}
    where = path.format(**other_scene._asdict())
    expect_ok(other_scene.admin.put(where, to_request_body(body)))
    assert not find_mismatches(other_scene.admin.read(where), body)


def test_integration_models_and_workspaces_are_read_back(scenario: SampleObjects):
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
    # `model_name` is another name of `name`.
    assert set(schemas["UpsertIntegrationModel"]["properties"]) - {"model_name"} == set(model)
    # Other tests store secret options in the shared integration, and a new host would require sending all of them
    # again.
    created = scenario.admin.create(
        "/v1/integrations", {"name": "m", "ai_provider_id": "openai", "key": "sk-0123456789"}
    )
    path = f"/v1/integrations/{created['slug']}"
    expect_ok(
        scenario.admin.put(f"{path}/models", {"models": [model], "allow_all_models": False, "key": "sk-0123456789"})
    )
    fetched = scenario.admin.read(f"{path}/models")
    (row,) = [row for row in fetched["models"] if row["slug"] == "finer"]
    hidden = {**own, "custom_headers": {"x-model": mask_secret("a-secret-field")}}
    assert (contains_value(row, {**model, "configurations": hidden}), fetched["allow_all_models"]) == (True, False)
    access = {
        "id": scenario.workspace_id,
        "enabled": False,
        "usage_limits": [USAGE_LIMITS],
        "rate_limits": RATE_LIMITS,
        "reset_usage": True,
        "create_default_provider": False,
        "default_provider_slug": None,
    }
    assert set(schemas["WorkspaceAccess"]["properties"]) == set(access)
    default_access = {"enabled": True, "usage_limits": [USAGE_LIMITS], "rate_limits": RATE_LIMITS}
    default_access["create_default_provider"] = False
    assert set(schemas["GlobalAccess"]["properties"]) == set(default_access)
    rules = {"global_workspace_access": default_access, "create_default_provider": False}
    expect_ok(scenario.admin.put(f"{path}/workspaces", {"workspaces": [access], **rules}))
    fetched = scenario.admin.read(f"{path}/workspaces")
    (row,) = fetched["workspaces"]
    read_back = ("enabled", "usage_limits", "rate_limits")
    assert contains_value(row, {name: access[name] for name in read_back})
    assert (row["workspace_id"], bool(row["last_reset_at"])) == (scenario.workspace_id, True)
    assert contains_value(fetched["global_workspace_access"], default_access)
    expect_ok(scenario.admin.put(f"{path}/workspaces", {"workspaces": [{**access, "enabled": True}]}))
