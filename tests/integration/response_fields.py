"""Expected fields and types of the management API's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "list": list,
    "table": dict,
    "null": type(None),
}

TIMESTAMP_FIELDS = {"created_at": "text", "last_updated_at": "text"}
LIST_FIELDS = {"object": "text", "total": "integer", "data": "list"}
CREATED_FIELDS = {"id": "text", "slug": "text"}
LIMIT_FIELDS = {"usage_limits": "table|null", "rate_limits": "list|null"}
LIMIT_LIST_FIELDS = {"usage_limits": "list|null", "rate_limits": "list|null"}
API_KEY_FIELDS = {
    **dict.fromkeys(("id", "key", "name", "type", "organisation_id", "status", "creation_mode", "object"), "text"),
    **dict.fromkeys(("description", "workspace_id", "user_id", "expires_at", "last_rotated_at"), "text|null"),
    **dict.fromkeys(("last_reset_at", "next_usage_reset_at"), "text|null"),
    "reset_usage": "integer|null",
    "expiry_enforced": "integer",
    "allow_config_override": "integer|null",
    "api_key_defaults_id": "text|null",
    "scopes": "list",
    "defaults": "table",
    "alert_emails": "list|null",
    "rotation_policy": "table|null",
    **LIMIT_FIELDS,
    **TIMESTAMP_FIELDS,
}
CONFIG_ROW_FIELDS = {
    **dict.fromkeys(("id", "slug", "name", "organisation_id", "workspace_id", "status", "object"), "text"),
    "is_default": "integer",
    "owner_id": "text|null",
    "updated_by": "text|null",
    **TIMESTAMP_FIELDS,
}
CONFIG_FIELDS = {**CONFIG_ROW_FIELDS, "config": "text", "format": "text", "type": "text", "version_id": "text"}
INTEGRATION_ROW_FIELDS = {
    **dict.fromkeys(("id", "slug", "name", "ai_provider_id", "organisation_id", "object", "status"), "text"),
    "description": "text|null",
    "workspace_id": "text|null",
    "configurations": "table",
    "tags": "table",
    **TIMESTAMP_FIELDS,
}
INTEGRATION_FIELDS = {
    **INTEGRATION_ROW_FIELDS,
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
PROVIDER_FIELDS = {
    **dict.fromkeys(("id", "slug", "name", "integration_id", "ai_provider_name", "workspace_id"), "text"),
    "note": "text|null",
    "status": "text",
    "reset_usage": "integer|null",
    "last_reset_at": "text|null",
    "expires_at": "text|null",
    "model_config": "table",
    "created_at": "text",
    "object": "text",
    **LIMIT_FIELDS,
}
VIRTUAL_KEY_FIELDS = {
    **PROVIDER_FIELDS,
    "key": "text",
    "masked_api_key": "text|null",
    "provider": "text",
    "workspace_name": "text",
    "tags": "table",
    "organisation_id": "text",
    "secret_mappings": "list",
}
USER_FIELDS = dict.fromkeys(("object", "id", "first_name", "last_name", "role", "email"), "text") | TIMESTAMP_FIELDS
MEMBER_FIELDS = {
    **USER_FIELDS,
    "org_role": "text",
    "status": "text",
    "workspace_id": "text",
    "scopes": "list",
    "settings": "table",
}
CANDIDATE_FIELDS = dict.fromkeys(("object", "id", "first_name", "last_name", "email"), "text")
INVITE_FIELDS = {
    **dict.fromkeys(("object", "id", "email", "role", "created_at", "expires_at", "status"), "text"),
    "accepted_at": "text|null",
    "invited_by": "text|null",
}
WORKSPACE_FIELDS = {
    **dict.fromkeys(("object", "id", "slug", "name", "organisation_id", "status", "creation_source"), "text"),
    "description": "text|null",
    "icon": "text|null",
    "created_by": "text|null",
    "is_default": "integer",
    "defaults": "table",
    "settings": "table",
    "security_settings": "table",
    "organisation_sections": "list",
    "scim_source_id": "text|null",
    "last_reset_at": "text|null",
    **LIMIT_LIST_FIELDS,
    **TIMESTAMP_FIELDS,
}
SECRET_REFERENCE_ROW_FIELDS = (
    dict.fromkeys(("id", "name", "slug", "manager_type", "status", "object"), "text") | TIMESTAMP_FIELDS
)
SECRET_REFERENCE_FIELDS = {
    **SECRET_REFERENCE_ROW_FIELDS,
    "organisation_id": "text",
    "description": "text|null",
    "secret_path": "text",
    "secret_key": "text|null",
    "auth_config": "table",
    "allow_all_workspaces": "boolean",
    "tags": "table",
    "created_by": "text|null",
}
AUDIT_LOG_FIELDS = {
    **dict.fromkeys(("timestamp", "method", "uri", "request_id", "request_body", "query_params", "action"), "text"),
    **dict.fromkeys(("request_headers", "user_type", "organisation_id", "client_ip", "country"), "text"),
    "user_id": "text|null",
    "workspace_id": "text|null",
    "response_status_code": "integer",
    "resource_type": "text",
}


TIME_RANGE = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
# Path of each read route, the response field that holds the rows (empty for the response itself), and the expected
# fields.
READ_ROUTES: list[tuple[str, str, dict[str, str]]] = [
    ("/v1/api-keys/{key}", "", API_KEY_FIELDS),
    ("/v1/api-keys?workspace_id={workspace_id}", "", LIST_FIELDS),
    ("/v2/api-keys?ids={key}", "data", API_KEY_FIELDS),
    ("/v1/configs/{config}", "", CONFIG_FIELDS),
    ("/v1/configs/{config}/versions", "data", CONFIG_FIELDS),
    ("/v1/configs?workspace_id={workspace_id}", "", LIST_FIELDS),
    ("/v1/configs?workspace_id={workspace_id}", "data", CONFIG_ROW_FIELDS),
    ("/v1/integrations/{integration}", "", INTEGRATION_FIELDS),
    ("/v2/integrations/{integration}", "", INTEGRATION_FIELDS),
    ("/v1/integrations", "", LIST_FIELDS),
    ("/v1/integrations", "data", INTEGRATION_ROW_FIELDS),
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
        {**LIST_FIELDS, "workspaces": "list", "global_workspace_access": "table"},
    ),
    (
        "/v1/integrations/{integration}/workspaces",
        "workspaces",
        {"id": "text", "enabled": "boolean", **LIMIT_LIST_FIELDS, **TIMESTAMP_FIELDS},
    ),
    ("/v1/providers/{provider}?workspace_id={workspace_id}", "", PROVIDER_FIELDS | TIMESTAMP_FIELDS),
    ("/v1/providers?workspace_id={workspace_id}", "", LIST_FIELDS),
    ("/v1/providers?workspace_id={workspace_id}", "data", PROVIDER_FIELDS | TIMESTAMP_FIELDS),
    ("/v1/virtual-keys/{virtual_key}?workspace_id={workspace_id}", "", VIRTUAL_KEY_FIELDS),
    ("/v1/virtual-keys?workspace_id={workspace_id}", "", LIST_FIELDS),
    ("/v1/virtual-keys?workspace_id={workspace_id}", "data", VIRTUAL_KEY_FIELDS),
    ("/v1/admin/users/{user}", "", {**USER_FIELDS, "workspace_ids": "list"}),
    ("/v1/admin/users?pageSize=5&currentPage=0", "", LIST_FIELDS),
    ("/v1/admin/users", "data", {**USER_FIELDS, "workspace_ids": "list"}),
    ("/v1/admin/users/invites/{invite}", "", INVITE_FIELDS),
    ("/v1/admin/users/invites?pageSize=5", "", LIST_FIELDS),
    ("/v1/admin/users/invites", "data", INVITE_FIELDS),
    *(
        (f"{path}/{{workspace_id}}", "", {**WORKSPACE_FIELDS, "users": "list"})
        for path in ("/v1/admin/workspaces", "/v1/workspaces", "/v2/workspaces")
    ),
    ("/v1/admin/workspaces", "", LIST_FIELDS),
    ("/v1/workspaces", "data", WORKSPACE_FIELDS),
    ("/v1/admin/workspaces/{workspace_id}/users/{user}", "", MEMBER_FIELDS),
    ("/v1/admin/workspaces/{workspace_id}/users", "", LIST_FIELDS),
    ("/v1/workspaces/{workspace_id}/users", "data", MEMBER_FIELDS),
    ("/v1/workspaces/{workspace_id}/candidates", "", LIST_FIELDS),
    ("/v1/workspaces/{workspace_id}/candidates", "data", CANDIDATE_FIELDS),
    ("/v1/secret-references/{reference}", "", SECRET_REFERENCE_FIELDS),
    ("/v1/secret-references", "", LIST_FIELDS),
    ("/v1/secret-references", "data", SECRET_REFERENCE_ROW_FIELDS),
    (f"/v1/audit-logs?{TIME_RANGE}&organisation_id={{organisation}}", "records", AUDIT_LOG_FIELDS),
    (
        f"/v1/audit-logs?{TIME_RANGE}&organisation_id={{organisation}}",
        "",
        {"records": "list", "total": "integer", "object": "text"},
    ),
    ("/v1/models?workspace_id={workspace_id}", "", {"object": "text", "data": "list", "total_count": "integer"}),
    (
        "/v1/models?workspace_id={workspace_id}",
        "data",
        {"id": "text", "created": "integer", "object": "text", "owned_by": "text"},
    ),
    (
        "/v1/model-configs/pricing/openai/gpt-4o",
        "",
        {"pay_as_you_go": "table", "calculate": "table", "currency": "text"},
    ),
]


def mismatched_fields(displayed: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, object]:
    """Returns the fields that are missing or have another type."""
    return {
        name: displayed.get(name, "is not there")
        for name, kinds in table.items()
        if name not in displayed
        or not any(
            isinstance(displayed[name], JSON_TYPES[kind]) and (kind == "boolean") == isinstance(displayed[name], bool)
            for kind in kinds.split("|")
        )
    }
