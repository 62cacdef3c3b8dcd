"""Idempotency keys and If-Match preconditions. Every route that creates something supports the first, and every route
that updates or deletes supports the second.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.app import openapi_json
from tests.integration.batching import TABLES as BATCH_TABLES
from tests.integration.batching import create_workspace
from tests.integration.management_client import Client, expect_error, expect_ok, row_state
from tests.integration.raw_http import send_raw_request
from tests.integration.writable_fields import SampleObjects, create_sample_objects
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.raw_http import Response

# The fixture `admin` reads these tables.
TABLES = {**BATCH_TABLES, "log_store": {"enabled": True}}
DESCRIPTION: dict[str, Any] = json.loads(openapi_json())
FINAL_STATUSES = {"completed", "failed", "cancelled", "expired"}
UPLOAD_FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "mock", "messages": []}}\r\n'
    b"--b--\r\n"
)


INVITED_PERSON = {"first_name": "A", "last_name": "B", "password": "a password that is long"}


def documented_routes(header: str, *verbs: str) -> set[tuple[str, str]]:
    """Returns the documented routes that accept a header; a route with several paths counts once."""
    return {
        (verb, canonical_path(path))
        for path, actual in DESCRIPTION["paths"].items()
        for verb in verbs
        if any(parameter["name"] == header for parameter in actual.get(verb, {}).get("parameters", []))
    }


def canonical_path(path: str) -> str:
    """Returns the path that stands for all aliases of a route."""
    return re.sub("^/v1/admin/workspaces", "/v1/workspaces", re.sub("^(/v1)?/v2/", "/v1/", path))


class CreateCase(NamedTuple):
    """A request body, the path to send it to, and the list that then has one more row."""

    body: Any
    path: str = ""
    counted: str = ""


class UpdateCase(NamedTuple):
    """Two different updates of a resource, or the body that is sent with its deletion."""

    first: Any
    second: Any
    path: str = ""


class WorkspaceScene(NamedTuple):
    """A scene plus the resources of its own workspace: the calling key, a file and a batch."""

    scenario: SampleObjects
    caller: Client
    names: dict[str, str]
    # Key that writes and exports the logs of its workspace.
    logger: Client


@pytest.fixture(scope="module")
def workspace_scene(admin: Client) -> WorkspaceScene:
    scenario = create_sample_objects(admin)
    caller = create_workspace(admin, "once")
    file, spare = (expect_ok(upload_file(caller, UPLOAD_FORM))["id"] for _ in range(2))
    slow = expect_ok(upload_file(caller, UPLOAD_FORM.replace(b'"mock"', b'"mock?first_ms=20000"')))["id"]
    done, running = (caller.create("/v1/batches", batch_request(name))["id"] for name in (file, slow))
    wait_for("the end of the batch", lambda: caller.read(f"/v1/batches/{done}")["status"] in FINAL_STATUSES or None)
    logger = admin.with_new_key(workspace_id=scenario.workspace_id, scopes=LOG_SCOPES)
    started, draft, other_export = (logger.create(EXPORTS, LOG_EXPORT)["id"] for _ in range(3))
    body = {
        "export": started,
        "draft": draft,
        "other_export": other_export,
        "file": file,
        "spare": spare,
        "batch": done,
        "going": running,
        "token": create_invite_token(admin, "once-guest@example.test"),
        "other": admin.create("/v1/workspaces", {"name": "once more"})["id"],
        "person": create_invited_user(admin),
        "usage_policy": admin.create(USAGE_POLICIES, {**USAGE_POLICY, "workspace_id": scenario.workspace_id})["id"],
        "rate_policy": admin.create(RATE_POLICIES, {**RATE_POLICY, "workspace_id": scenario.workspace_id})["id"],
        "prompt": admin.create(PROMPTS, {**PROMPT, "workspace_id": scenario.workspace_id})["id"],
        "partial": admin.create(PARTIALS, {**PARTIAL, "workspace_id": scenario.workspace_id})["id"],
        "collection": admin.create(COLLECTIONS, {"name": "c", "workspace_id": scenario.workspace_id})["id"],
        "guardrail": admin.create(GUARDRAILS, {**GUARDRAIL, "workspace_id": scenario.workspace_id})["id"],
        "org_guardrail": admin.create(GUARDRAILS, {**GUARDRAIL, "organisation_id": scenario.organisation})["id"],
        "partner": admin.create(PARTNERS, {**PARTNER_CREDENTIALS, "partner": "mistral"})["slug"],
        "label": admin.create(LABELS, {"name": "canary", "workspace_id": scenario.workspace_id})["id"],
    }
    names = {name: value for name, value in scenario._asdict().items() if isinstance(value, str)}
    return WorkspaceScene(scenario, caller, names | body, logger)


def fill_placeholders(value: Any, names: dict[str, str]) -> Any:
    """Replaces `{name}` placeholders in a value with the ids of the created resources."""
    if isinstance(value, dict):
        return {key: fill_placeholders(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_placeholders(item, names) for item in value]
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda actual: names[actual[1]], value)
    return value


def upload_file(caller: Client, form: bytes, path: str = "/v1/files") -> Response:
    """Uploads a form; its boundary is read from the form's first line."""
    kind = f"multipart/form-data; boundary={form[2:3].decode()}"
    headers = {"content-type": kind, "x-gateway-provider": "gateway", "x-gateway-api-key": caller.key}
    return send_raw_request(caller.gateway.base_url, path, form, {**headers, **caller.headers})


def batch_request(file: str) -> dict[str, Any]:
    endpoint = {"endpoint": "/v1/chat/completions", "completion_window": "immediate"}
    return {"input_file_id": file, "gateway_options": {"x-gateway-provider": "@m-once"}, **endpoint}


def create_invite_token(admin: Client, email: str) -> str:
    """Creates an invitation and returns its token."""
    body = {"email": email, "role": "member", "workspaces": []}
    return admin.create("/v1/admin/users/invites", body)["invite_link"].rpartition("=")[2]


def create_invited_user(admin: Client) -> str:
    """Creates a user by invitation and returns the user's id."""
    token = create_invite_token(admin, "once-person@example.test")
    expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", {"token": token, **INVITED_PERSON}))
    (row,) = admin.read("/v1/admin/users?email=once-person@example.test")["data"]
    return row["id"]


POLICY = {"conditions": [{"key": "model", "value": "*"}], "group_by": [{"key": "api_key"}], "type": "requests"}
USAGE_POLICY, RATE_POLICY = {**POLICY, "credit_limit": 5}, {**POLICY, "unit": "rpm", "value": 5}
USAGE_POLICIES, RATE_POLICIES = "/v1/policies/usage-limits", "/v1/policies/rate-limits"
PROMPT = {"name": "n", "string": "text", "parameters": {}, "virtual_key": "mock", "model": "m"}
PARTIAL = {"name": "n", "string": "text"}
GUARDRAIL = {"name": "n", "checks": [{"id": "default.wordCount", "parameters": {"maxWords": 9}}]}
PARTNER_CREDENTIALS = {"partner": "lakera", "credentials": {"apiKey": "k"}}
GUARDRAILS, EXCLUSIONS, PARTNERS = "/v1/guardrails", "/v1/workspace-exclusions", "/v1/partner-credentials"
PROMPTS, PARTIALS, COLLECTIONS, LABELS = (
    f"/v1/{name}" for name in ("prompts", "prompts/partials", "collections", "labels")
)
# Unit tests cover these routes. Nothing can be read at their paths, only at that of the prompt or partial.
PROMPT_ACTIONS = {
    *(f"{PROMPTS}/{{key}}/{action}" for action in ("fork", "makeDefault", "share", "unshare", "versions/{version_id}")),
    f"{PARTIALS}/{{key}}/makeDefault",
}
# Other tests cover these routes. They need usage, and nothing can be read at their paths.
RESET_PATHS = {f"{USAGE_POLICIES}/{{key}}/entities/{{entity_id}}/reset", "/v1/limits/tokens/{key}/reset"}
WORKSPACE_FIELD = {"workspace_id": "{workspace_id}"}
KEY_BODY = {"name": "n", "scopes": ["completions.write"], **WORKSPACE_FIELD}
AWS_AUTH_CONFIG = {
    "aws_auth_type": "accessKey",
    "aws_access_key_id": "AKIA0123456789ABCDEF",
    "aws_secret_access_key": "s",
    "aws_region": "eu-west-1",
}
LOG_SCOPES = ["completions.write", "logs.write", "logs.list", "logs.view", "logs.export"]
LOG_EXPORT = {"filters": {"time_of_generation_min": "2026-01-01T00:00:00Z"}, "requested_data": ["id"]}
CUSTOM_LOG = {
    "request": {"url": "https://llm.example/v1/chat/completions", "body": {}},
    "response": {"status": 200, "body": {}},
}
EXPORTS, FEEDBACK_PATH = "/v1/logs/exports", "/v1/feedback/{feedback_id}"
LOG_PATHS = ("/v1/logs", "/v1/feedback", "/v1/otel")
INVITES, WORKSPACES = "/v1/admin/users/invites", "/v1/workspaces"
CREATE_CASES: dict[str, CreateCase] = {
    INVITES: CreateCase({"email": "once@example.test", "role": "member", "workspaces": []}, counted=INVITES),
    f"{INVITES}/{{invite_id}}/resend": CreateCase({}, f"{INVITES}/{{invite}}/resend"),
    "/v1/auth/invites": CreateCase({"token": "{token}", **INVITED_PERSON}, counted="/v1/admin/users"),
    WORKSPACES: CreateCase({"name": "n"}, counted=WORKSPACES),
    "/v1/workspaces/{workspace}/users": CreateCase(
        {"users": [{"id": "{user}", "role": "member"}]}, "/v1/workspaces/{other}/users", "/v1/workspaces/{other}/users"
    ),
    "/v1/api-keys/{kind}/{sub_kind}": CreateCase(KEY_BODY, "/v1/api-keys/workspace/service", "/v1/api-keys"),
    "/v1/api-keys/{key_id}/rotate": CreateCase({}, "/v1/api-keys/{key}/rotate"),
    "/v1/configs": CreateCase({"name": "n", "config": {"provider": "mock"}, **WORKSPACE_FIELD}, counted="/v1/configs"),
    "/v1/integrations": CreateCase({"name": "n", "ai_provider_id": "mock", "key": "k"}, counted="/v1/integrations"),
    "/v1/providers": CreateCase(
        {"name": "n", "integration_id": "{integration}", **WORKSPACE_FIELD}, counted="/v1/providers"
    ),
    "/v1/virtual-keys": CreateCase(
        {"name": "n", "provider": "mock", "key": "k", **WORKSPACE_FIELD}, counted="/v1/virtual-keys"
    ),
    "/v1/secret-references": CreateCase(
        {"name": "n", "manager_type": "aws_sm", "secret_path": "p", "auth_config": AWS_AUTH_CONFIG},
        counted="/v1/secret-references",
    ),
    PARTNERS: CreateCase(PARTNER_CREDENTIALS, counted=PARTNERS),
    "/v1/logs": CreateCase(CUSTOM_LOG),
    EXPORTS: CreateCase(LOG_EXPORT, counted=EXPORTS),
    f"{EXPORTS}/{{export_id}}/start": CreateCase({}, f"{EXPORTS}/{{export}}/start"),
    f"{EXPORTS}/{{export_id}}/cancel": CreateCase({}, f"{EXPORTS}/{{draft}}/cancel"),
    "/v1/feedback": CreateCase({"trace_id": "once", "value": 1}),
    "/v1/otel/v1/traces": CreateCase({"resourceSpans": []}),
    "/v1/otel/v1/logs": CreateCase({"resourceLogs": []}),
    "/v1/admin/logs/rerate": CreateCase(
        {
            "time_of_generation_min": "2026-01-01T00:00:00Z",
            "time_of_generation_max": "2026-01-02T00:00:00Z",
        }
    ),
    USAGE_POLICIES: CreateCase({**USAGE_POLICY, **WORKSPACE_FIELD}, counted=USAGE_POLICIES),
    RATE_POLICIES: CreateCase({**RATE_POLICY, **WORKSPACE_FIELD}, counted=RATE_POLICIES),
    GUARDRAILS: CreateCase({**GUARDRAIL, **WORKSPACE_FIELD}, counted=GUARDRAILS),
    PROMPTS: CreateCase({**PROMPT, **WORKSPACE_FIELD}, counted=PROMPTS),
    PARTIALS: CreateCase({**PARTIAL, **WORKSPACE_FIELD}, counted=PARTIALS),
    COLLECTIONS: CreateCase({"name": "n", **WORKSPACE_FIELD}, counted=COLLECTIONS),
    LABELS: CreateCase({"name": "once", **WORKSPACE_FIELD}, counted=LABELS),
    f"{PROMPTS}/{{key}}/fork": CreateCase({}, f"{PROMPTS}/{{prompt}}/fork", PROMPTS),
    f"{PROMPTS}/{{key}}/share": CreateCase({}, f"{PROMPTS}/{{prompt}}/share", ""),
    f"{PROMPTS}/{{key}}/unshare": CreateCase({}, f"{PROMPTS}/{{prompt}}/unshare", ""),
    "/v1/batches": CreateCase(batch_request("{file}"), counted="/v1/batches?limit=100"),
    "/v1/batches/{batch_id}/cancel": CreateCase({}, "/v1/batches/{going}/cancel"),
    # Only files of this purpose are counted, because batches of other tests may write output files meanwhile.
    "/v1/files": CreateCase(UPLOAD_FORM, counted="/v1/files?purpose=batch&limit=100"),
}


def test_every_create_route_has_a_case():
    assert {path for _, path in documented_routes("idempotency-key", "post")} == set(CREATE_CASES)


def client_for(workspace_scene: WorkspaceScene, path: str) -> Client:
    """Returns the client that may use a path; files, batches and logs belong to a workspace."""
    if path.startswith(LOG_PATHS):
        return workspace_scene.logger
    return workspace_scene.caller if path.startswith(("/v1/files", "/v1/batches")) else workspace_scene.scenario.admin


def count_rows(client: Client, path: str) -> int:
    fetched = client.read(path)
    return fetched.get("total", len(fetched["data"]))


@pytest.mark.parametrize("path", list(CREATE_CASES))
def test_repeated_idempotency_key_acts_once_and_replays(workspace_scene: WorkspaceScene, path: str):
    make, client = CREATE_CASES[path], client_for(workspace_scene, path)
    once = Client(client.gateway, client.key, {"idempotency-key": f"once {path}"})
    where, body, counted = (
        fill_placeholders(item, workspace_scene.names) for item in (make.path or path, make.body, make.counted)
    )
    before = count_rows(client, counted) if counted else 0
    repeated_body = body.replace(b"--b", b"--c") if isinstance(body, bytes) else body
    first, again = (send_create(once, where, item) for item in (body, repeated_body))
    assert expect_ok(first) == expect_ok(again)
    assert (first.get_header("idempotency-replayed"), again.get_header("idempotency-replayed")) == (None, "true")
    if counted:
        assert count_rows(client, counted) == before + 1
    expect_error(send_create(once, where + "?another", body), 409, "AB07", "another request")


def send_create(client: Client, path: str, body: Any) -> Response:
    return upload_file(client, body, path) if isinstance(body, bytes) else client.post(path, body)


def test_repeated_upload_leaves_no_extra_file(workspace_scene: WorkspaceScene):
    once = Client(workspace_scene.caller.gateway, workspace_scene.caller.key, {"idempotency-key": "a file"})
    # Exports of logs are stored there too.
    before = {path.name for path in files_folder(workspace_scene).iterdir()}
    created = [expect_ok(upload_file(once, UPLOAD_FORM))["id"] for _ in range(3)]
    expect_error(upload_file(once, UPLOAD_FORM.replace(b"a.jsonl", b"b.jsonl")), 409, "AB07", "another request")
    expect_error(upload_file(once, UPLOAD_FORM.replace(b"mock", b"moct")), 409, "AB07", "another request")
    assert len(set(created)) == 1
    listed = {row["id"].removeprefix("gw_file_") for row in workspace_scene.caller.read("/v1/files?limit=100")["data"]}
    wait_for(
        "what was kept",
        lambda: {path.name for path in files_folder(workspace_scene).iterdir()} <= listed | before or None,
    )


def files_folder(workspace_scene: WorkspaceScene) -> Path:
    """Returns the folder in which the gateway stores the contents of files."""
    return next(path for path in workspace_scene.caller.gateway.folder.rglob("files") if path.is_dir())


NAMED, LOST_UPDATE = {"name": "named"}, {"name": "lost"}
CUSTOM_MODEL = {"enabled": True, "is_custom": True}
MODEL_UPDATES = ({"models": [{"slug": "one", **CUSTOM_MODEL}]}, {"models": [{"slug": "two", **CUSTOM_MODEL}]})
UPDATE_CASES: dict[str, UpdateCase] = {
    "/v1/admin/organisation/defaults": UpdateCase({"input_guardrails": ["{org_guardrail}"]}, {"input_guardrails": []}),
    **{
        f"{EXCLUSIONS}/{kind}-guardrails": UpdateCase(
            {"workspaces": [{"workspace_id": "{workspace_id}", "excluded": True}]},
            {"workspaces": [], "override_existing": True},
        )
        for kind in ("input", "output")
    },
    "/v1/admin/organisation/settings": UpdateCase({"block_inline_config": True}, {"block_inline_config": False}),
    "/v1/admin/users/{user_id}": UpdateCase({"role": "admin"}, {"role": "member"}, "/v1/admin/users/{person}"),
    "/v1/workspaces/{workspace}": UpdateCase(NAMED, LOST_UPDATE, "/v1/workspaces/{workspace_id}"),
    "/v1/workspaces/{workspace}/users/{user_id}": UpdateCase(
        {"role": "admin"}, {"role": "member"}, "/v1/workspaces/{workspace_id}/users/{user}"
    ),
    "/v1/api-keys/{key_id}": UpdateCase(NAMED, LOST_UPDATE, "/v1/api-keys/{key}"),
    "/v1/configs/{key}": UpdateCase(NAMED, LOST_UPDATE, "/v1/configs/{config}"),
    "/v1/integrations/{key}": UpdateCase(NAMED, LOST_UPDATE, "/v1/integrations/{integration}"),
    "/v1/integrations/{key}/models": UpdateCase(*MODEL_UPDATES, "/v1/integrations/{integration}/models"),
    "/v1/integrations/{key}/integration-models": UpdateCase(
        *MODEL_UPDATES, "/v1/integrations/{integration}/integration-models"
    ),
    "/v1/integrations/{key}/workspaces": UpdateCase(
        {"workspaces": [{"id": "{workspace_id}", "enabled": False}]},
        {"workspaces": [{"id": "{workspace_id}", "enabled": True}]},
        "/v1/integrations/{integration}/workspaces",
    ),
    "/v1/providers/{key}": UpdateCase(NAMED, LOST_UPDATE, "/v1/providers/{provider}?workspace_id={workspace_id}"),
    "/v1/virtual-keys/{key}": UpdateCase({**NAMED, "key": "another"}, LOST_UPDATE, "/v1/virtual-keys/{virtual_key}"),
    "/v1/secret-references/{key}": UpdateCase(NAMED, LOST_UPDATE, "/v1/secret-references/{reference}"),
    f"{PARTNERS}/{{key}}": UpdateCase(
        {"credentials": {"apiKey": "one"}}, {"credentials": {"apiKey": "two"}}, f"{PARTNERS}/{{partner}}"
    ),
    f"{EXPORTS}/{{export_id}}": UpdateCase(
        {**LOG_EXPORT, "description": "one"}, {**LOG_EXPORT, "description": "two"}, f"{EXPORTS}/{{other_export}}"
    ),
    f"{USAGE_POLICIES}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{USAGE_POLICIES}/{{usage_policy}}"),
    f"{RATE_POLICIES}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{RATE_POLICIES}/{{rate_policy}}"),
    f"{GUARDRAILS}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{GUARDRAILS}/{{guardrail}}"),
    f"{PROMPTS}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{PROMPTS}/{{prompt}}"),
    f"{PARTIALS}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{PARTIALS}/{{partial}}"),
    f"{COLLECTIONS}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{COLLECTIONS}/{{collection}}"),
    f"{LABELS}/{{key}}": UpdateCase(NAMED, LOST_UPDATE, f"{LABELS}/{{label}}"),
    "/v1/batches/{batch_id}": UpdateCase(
        {"internal_output_file_id": "{file}"}, {"internal_output_file_id": "{spare}"}, "/v1/batches/{batch}"
    ),
}


def test_every_update_and_delete_route_has_a_case():
    # Feedback cannot be read at its path, so clients cannot get its ETag.
    covered = {FEEDBACK_PATH} | RESET_PATHS | PROMPT_ACTIONS
    assert {path for _, path in documented_routes("if-match", "put")} == {*UPDATE_CASES, *covered}
    assert {path for _, path in documented_routes("if-match", "delete")} - PROMPT_ACTIONS == set(DELETE_CASES)


def read_etag(client: Client, path: str) -> str:
    """Returns the current ETag of a resource."""
    response = client.get(path)
    expect_ok(response)
    header = response.get_header("etag")
    assert header, path
    return header


def client_with_if_match(client: Client, state: str) -> Client:
    return Client(client.gateway, client.key, {"if-match": state})


def assert_precondition_failed(response: Response) -> None:
    expect_error(response, 412, "AB01", "read it again")
    assert response.json()["data"]["errors"][0]["path"] == "If-Match"


@pytest.mark.parametrize("path", list(UPDATE_CASES))
def test_update_with_if_match_fails_after_another_change(workspace_scene: WorkspaceScene, path: str):
    client, change = (
        client_for(workspace_scene, path),
        fill_placeholders(UPDATE_CASES[path]._asdict(), workspace_scene.names),
    )
    where = change["path"] or path
    before = read_etag(client, where)
    done = client_with_if_match(client, before).put(where, change["first"])
    expect_ok(done)
    after = read_etag(client, where)
    assert (after != before, row_state(done.get_header("etag"))) == (True, row_state(after))
    assert_precondition_failed(client_with_if_match(client, before).put(where, change["second"]))
    assert read_etag(client, where) == after
    expect_ok(client_with_if_match(client, after).put(where, change["second"]))


# Ordered so that a resource is deleted before those it depends on. Each case has the body to send, and the path to read
# from and delete.
INTEGRATION_PATH = "/v1/integrations/{integration}"
DELETE_CASES: dict[str, UpdateCase] = {
    "/v1/integrations/{key}/models": UpdateCase({"models": ["one"]}, None, f"{INTEGRATION_PATH}/models"),
    "/v1/integrations/{key}/integration-models": UpdateCase(
        {"models": ["two"]}, None, f"{INTEGRATION_PATH}/integration-models"
    ),
    "/v1/files/{file_id}": UpdateCase(None, None, "/v1/files/{spare}"),
    "/v1/api-keys/{key_id}": UpdateCase(None, None, "/v1/api-keys/{key}"),
    "/v1/providers/{key}": UpdateCase(None, None, "/v1/providers/{provider}?workspace_id={workspace_id}"),
    "/v1/virtual-keys/{key}": UpdateCase(None, None, "/v1/virtual-keys/{virtual_key}"),
    "/v1/configs/{key}": UpdateCase(None, None, "/v1/configs/{config}"),
    "/v1/workspaces/{workspace}/users/{user_id}": UpdateCase(None, None, "/v1/workspaces/{workspace_id}/users/{user}"),
    "/v1/admin/users/invites/{invite_id}": UpdateCase(None, None, f"{INVITES}/{{invite}}"),
    "/v1/admin/users/{user_id}": UpdateCase(None, None, "/v1/admin/users/{person}"),
    "/v1/integrations/{key}": UpdateCase(None, None, INTEGRATION_PATH),
    "/v1/secret-references/{key}": UpdateCase(None, None, "/v1/secret-references/{reference}"),
    f"{PARTNERS}/{{key}}": UpdateCase(None, None, f"{PARTNERS}/{{partner}}"),
    f"{USAGE_POLICIES}/{{key}}": UpdateCase(None, None, f"{USAGE_POLICIES}/{{usage_policy}}"),
    f"{RATE_POLICIES}/{{key}}": UpdateCase(None, None, f"{RATE_POLICIES}/{{rate_policy}}"),
    f"{GUARDRAILS}/{{key}}": UpdateCase(None, None, f"{GUARDRAILS}/{{guardrail}}"),
    f"{PROMPTS}/{{key}}": UpdateCase(None, None, f"{PROMPTS}/{{prompt}}"),
    f"{PARTIALS}/{{key}}": UpdateCase(None, None, f"{PARTIALS}/{{partial}}"),
    f"{COLLECTIONS}/{{key}}": UpdateCase(None, None, f"{COLLECTIONS}/{{collection}}"),
    f"{LABELS}/{{key}}": UpdateCase(None, None, f"{LABELS}/{{label}}"),
    "/v1/workspaces/{workspace}": UpdateCase(
        {"name": "lost", "force_delete": True}, None, "/v1/workspaces/{workspace_id}"
    ),
}


@pytest.mark.parametrize("path", list(DELETE_CASES))
def test_delete_with_if_match_fails_with_a_stale_etag(workspace_scene: WorkspaceScene, path: str):
    client, gone = (
        client_for(workspace_scene, path),
        fill_placeholders(DELETE_CASES[path]._asdict(), workspace_scene.names),
    )
    where, content = gone["path"], gone["first"]
    before = read_etag(client, where)
    assert_precondition_failed(client_with_if_match(client, '"stale"').delete(where, content))
    assert read_etag(client, where) == before
    expect_ok(client_with_if_match(client, before).delete(where, content))


def test_routes_without_an_etag_reject_if_match(admin: Client):
    session = admin.post("/v1/auth/sessions", {"api_key": admin.key})
    fields = {
        "cookie": (session.get_header("set-cookie") or "").split(";")[0],
        "x-csrf-token": expect_ok(session)["csrf_token"],
    }
    headers = {**fields, "if-match": '"a"'}
    expect_error(
        send_raw_request(admin.gateway.base_url, "/v1/auth/sessions", headers=headers, method="DELETE"),
        412,
        "AB01",
        "If-Match",
    )
    expect_error(
        Client(admin.gateway, admin.key, {"if-match": '"a"'}).post("/v1/workspaces", {"name": "n"}), 412, "AB01"
    )
