"""OpenAPI description of the management API. Every field has a description, and responses to generated requests match
their schemas.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from penstock.app import openapi_json
from tests.integration.management_client import ADMIN_KEY

if TYPE_CHECKING:
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: what a route accepts and returns does not depend on the database.
ONE_STORE = True
DESCRIPTION: dict[str, Any] = json.loads(openapi_json())
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
# Prefixes of alias paths, whose handlers have another path too.
ALIAS_PATHS = ("/v2/", "/v1/v2/", "/v1/admin/workspaces")
# Number of generated requests for each operation.
MAX_EXAMPLES = 6
EXAMPLE_WORKSPACE, EXAMPLE_ID = "ws-team-a-1f2e3d", "0199aaaa-0000-7000-8000-000000000001"
ALLOWED_STATUSES = {200, 304, 400, 401, 403, 404, 405, 409, 412, 415, 429}


def list_operations() -> list[Any]:
    all_operations = [result.ok() for result in SCHEMA.get_all_operations()]
    # Handlers with several paths come in no fixed order.
    return sorted(
        (item for item in all_operations if not item.path.startswith(ALIAS_PATHS)), key=lambda item: item.label
    )


@pytest.mark.parametrize("operation", list_operations(), ids=lambda operation: operation.label)
def test_generated_requests_get_responses_in_the_envelope(
    admin: Client,
    operation: Any,
    request: pytest.FixtureRequest,
):
    @seed(request.node.callspec.indices["new_store"])
    @settings(
        max_examples=MAX_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check_response(case: Any) -> None:
        response = case.call(base_url=admin.gateway.base_url, headers={"x-gateway-api-key": ADMIN_KEY}, timeout=10)
        case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])
        assert response.status_code in ALLOWED_STATUSES, (response.status_code, response.text)
        if response.status_code >= 400:
            body = response.json()
            assert (body["success"], bool(body["data"]["message"])) == (False, True)
            assert body["data"]["errorCode"].startswith("AB0")

    given(case=operation.as_strategy())(check_response)()


def bodies_with_examples() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Returns verb, path and content of each JSON body, by its schema. Aliases share one."""
    bodies: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for path, item in DESCRIPTION["paths"].items():
        for verb, operation in item.items():
            if content := operation.get("requestBody", {}).get("content", {}).get("application/json"):
                bodies[json.dumps(content["schema"])] = verb, path, content
    return bodies


BODIES = list(bodies_with_examples().values())
# Every integer is also a number, so that `oneOf` would reject it.
COMPONENTS = json.loads(json.dumps(DESCRIPTION["components"]).replace("oneOf", "anyOf"))


@pytest.fixture(scope="module")
def example_workspace(admin: Client) -> str:
    return admin.create("/v1/admin/workspaces", {"name": "Examples"})["slug"]


@pytest.mark.parametrize(("verb", "path", "content"), BODIES, ids=[f"{verb} {path}" for verb, path, _ in BODIES])
def test_example_of_every_body_is_accepted(
    admin: Client, example_workspace: str, verb: str, path: str, content: dict[str, Any]
):
    validator = jsonschema_rs.validator_for({**content["schema"], "components": COMPONENTS})
    assert [str(error) for error in validator.iter_errors(content["example"])] == []
    body = json.loads(json.dumps(content["example"]).replace(EXAMPLE_WORKSPACE, example_workspace))
    kind = {"kind": "workspace", "sub_kind": "service"}
    url = re.sub(r"\{(\w+)\}", lambda match: kind.get(match[1], EXAMPLE_ID), path)
    response = admin.send(verb.upper(), url, body)
    # What an example names need not exist, and some bodies need another caller. But none is malformed.
    assert response.status in {200, 401, 403, 404, 409, 412}, response.body


def test_every_parameter_and_every_field_is_described():
    bare: list[str] = []
    for path, item in DESCRIPTION["paths"].items():
        for verb, operation in item.items():
            if not operation.get("summary") or not operation.get("description"):
                bare.append(f"{verb} {path}")
            bare += [
                f"{verb} {path}: {parameter['name']}"
                for parameter in operation.get("parameters", [])
                if not parameter.get("description")
            ]
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        for field, inner in schema.get("properties", {}).items():
            target = inner.get("$ref", "").rpartition("/")[2]
            if not (
                inner.get("description") or DESCRIPTION["components"]["schemas"].get(target, {}).get("description")
            ):
                bare.append(f"{name}.{field}")
    assert not bare


def test_every_operation_declares_security_and_error_responses():
    schemes = DESCRIPTION["components"]["securitySchemes"]
    assert (schemes["key"]["in"], schemes["key"]["name"]) == ("header", "x-gateway-api-key")
    refusal = {"$ref": "#/components/schemas/Error"}
    dropped: list[str] = []
    for path, item in DESCRIPTION["paths"].items():
        for verb, operation in item.items():
            expected = {"400", "404", "500", "503"} | ({"401", "403"} if operation["security"] else set())
            expected |= set() if verb == "get" else {"409", "412"}
            responses = operation["responses"]
            schemas = [
                responses[status]["content"]["application/json"]["schema"] for status in expected & set(responses)
            ]
            if len(schemas) < len(expected) or any(schema != refusal for schema in schemas):
                dropped.append(f"{verb} {path}")
    assert not dropped
    open_to_all = {
        path for path, item in DESCRIPTION["paths"].items() for entry in item.values() if not entry["security"]
    }
    assert {path for path in open_to_all if "pricing" not in path and "model-configs" not in path} <= {
        "/dataservice/metrics",
        "/metrics",
        "/v1/auth/invites",
        "/v1/auth/sessions",
        # The signature of the link takes the place of a key.
        "/v1/logs/exports/{export_id}/file",
        "/admin/health",
        "/health",
        "/v1/admin/health",
        "/v1/health",
        "/v1/scopes",
        "/v1/version",
    }


def test_document_is_openapi_3_1_with_unique_operation_ids():
    assert DESCRIPTION["openapi"].startswith("3.1")
    ids = [operation["operationId"] for item in DESCRIPTION["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


# Management routes below /v1 that the compatible interface requires.
REQUIRED_ROUTES = (
    ("/admin/organisation/defaults", "GET PUT"),
    ("/admin/organisation/settings", "GET PUT"),
    ("/admin/users", "GET"),
    ("/admin/users/invites", "POST GET"),
    ("/admin/users/invites/{}", "GET DELETE"),
    ("/admin/users/invites/{}/resend", "POST"),
    ("/admin/users/{}", "GET DELETE PUT"),
    *(
        (f"{prefix}{path}", verbs)
        for prefix in ("/admin/workspaces", "/workspaces", "/v2/workspaces")
        for path, verbs in (
            ("", "POST GET"),
            ("/{}", "PUT GET DELETE"),
            ("/{}/users", "POST GET"),
            ("/{}/users/{}", "PUT DELETE GET"),
        )
    ),
    *((f"{prefix}/api-keys", "GET") for prefix in ("", "/v2")),
    ("/api-keys/{}", "PUT GET DELETE"),
    ("/api-keys/{}/rotate", "POST"),
    ("/api-keys/{}/{}", "POST"),
    *((f"/analytics/graphs/{name}", "GET") for name in ("requests", "cost", "errors/rate", "feedbacks/ai-models")),
    ("/analytics/summary/cache", "GET"),
    *((f"/{part}/groups/{path}", "GET") for part in ("analytics", "logs") for path in ("{}", "metadata/{}")),
    ("/audit-logs", "GET"),
    ("/feedback", "POST"),
    ("/feedback/{}", "PUT"),
    ("/logs", "POST GET"),
    ("/logs/exports", "GET POST"),
    ("/logs/exports/field-restrictions", "GET"),
    ("/logs/exports/{}", "GET PUT"),
    *((f"/logs/exports/{{}}/{verb}", "POST") for verb in ("start", "cancel")),
    ("/logs/exports/{}/download", "GET"),
    ("/logs/{}", "GET"),
    ("/auth/self", "GET"),
    ("/configs", "GET POST"),
    ("/configs/{}", "DELETE GET PUT"),
    ("/configs/{}/versions", "GET"),
    *(
        (f"{prefix}/integrations{path}", verbs)
        for prefix in ("", "/v2")
        for path, verbs in (
            ("", "GET POST"),
            ("/{}", "GET PUT DELETE"),
            ("/{}/models", "GET PUT DELETE"),
            ("/{}/integration-models", "PUT"),
            ("/{}/workspaces", "GET PUT"),
        )
    ),
    ("/model-configs/general/{}/{}", "GET"),
    ("/model-configs/pricing/{}/{}", "GET"),
    ("/models", "GET"),
    ("/models/{}", "GET"),
    *(
        (f"{prefix}/policies/{kind}{path}", verbs)
        for prefix in ("", "/v2")
        for kind in ("usage-limits", "rate-limits")
        for path, verbs in (("", "GET POST"), ("/{}", "GET PUT DELETE"))
    ),
    ("/policies/usage-limits/{}/entities", "GET"),
    ("/policies/usage-limits/{}/entities/{}/reset", "PUT"),
    *(
        (f"{prefix}/prompts{path}", verbs)
        for prefix in ("", "/v2")
        for path, verbs in (
            ("", "GET POST"),
            ("/{}", "GET PUT DELETE"),
            ("/{}/versions", "GET"),
            ("/{}/versions/{}", "GET PUT"),
            ("/{}/makeDefault", "PUT"),
            ("/{}/share", "POST PUT DELETE"),
            ("/{}/fork", "POST PUT"),
            ("/{}/unshare", "POST PUT DELETE"),
            ("/partials", "GET POST"),
            ("/partials/{}", "GET PUT DELETE"),
            ("/partials/{}/versions", "GET"),
            ("/partials/{}/makeDefault", "PUT"),
        )
    ),
    *((path, "GET POST") for path in ("/collections", "/labels")),
    *((f"{path}/{{}}", "GET PUT DELETE") for path in ("/collections", "/labels")),
    ("/pricing/{}", "GET"),
    ("/guardrails", "GET POST"),
    ("/guardrails/{}", "GET PUT DELETE"),
    ("/guardrails/{}/versions", "GET"),
    *((f"/workspace-exclusions/{kind}-guardrails", "GET PUT") for kind in ("input", "output")),
    ("/partner-credentials", "GET POST"),
    ("/partner-credentials/{}", "GET PUT DELETE"),
    ("/providers", "GET POST"),
    ("/providers/{}", "GET PUT DELETE"),
    ("/secret-references", "GET POST"),
    ("/secret-references/{}", "GET PUT DELETE"),
    ("/virtual-keys", "GET POST"),
    ("/virtual-keys/{}", "GET PUT DELETE"),
    ("/health", "GET"),
    ("/version", "GET"),
)


def test_every_required_route_is_described():
    described = {
        (verb.upper(), re.sub(r"\{[^}]*\}", "{}", path).rstrip("/"))
        for path, item in DESCRIPTION["paths"].items()
        for verb in item
    }
    missing = [
        f"{verb} {path}"
        for path, verbs in REQUIRED_ROUTES
        for verb in verbs.split()
        if (verb, f"/v1{path}") not in described
    ]
    assert not missing
