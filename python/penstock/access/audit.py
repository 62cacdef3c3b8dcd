"""Audit log. One row per change with the actor, the state before and after, and a reference to the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.ids import MASK_TEXT, new_id
from penstock.schemas import format_timestamp, now, with_next_reset
from penstock.secrets import config_credentials, guardrail_credentials
from penstock.store.tables import audit_log, audited_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.authorization import Caller
    from penstock.store.tenant import TenantStore

# Parts of the names of columns that the audit log never shows, not even masked: a mask would reveal a length.
HIDDEN_COLUMNS = ("sealed", "sha256", "password", "brought_along", "given_by")
# Names of columns in API responses, if they differ from the names in the database.
SHOWN_NAMES = {"masked": "key", "global_access": "global_workspace_access"}


# Headers whose values the audit log stores, because they cannot contain a credential. It masks the values of all
# others.
NON_SECRET_HEADERS = frozenset(
    [
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "forwarded",
        "host",
        "if-match",
        "if-none-match",
        "origin",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
        "traceparent",
        "transfer-encoding",
        "user-agent",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-request-id",
    ]
)
MAX_HEADER_LENGTH, MAX_BODY_LENGTH, MAX_READ_BYTES = 512, 64 * 1024, 4 * 1024 * 1024


class RequestInfo(msgspec.Struct):
    """Request details for the audit log. `row_id` is the id of their row in `audited_requests`, which the first change
    of the request writes.
    """

    method: str
    uri: str
    query: str
    request_id: str
    client: str
    # Headers by name.
    fields: Mapping[str, str] = {}
    # Raw body.
    body: bytes = b""
    status: int = 200
    row_id: str | None = None


# A row before and after a change. The row before is `None` for a creation, the row after for a deletion.
RowChange = tuple["Mapping[str, Any] | None", "Mapping[str, Any] | None"]


async def write_audit_rows(
    tenant: TenantStore,
    caller: Caller,
    request_info: RequestInfo,
    action: str,
    changes: Sequence[RowChange],
    default_workspace_id: str | None = None,
) -> None:
    """Writes an audit row for each change, in the transaction of the changes. Stores the request once, with its first
    change.

    `default_workspace_id` is the workspace of rows that have no `workspace_id`.
    """
    if changes and request_info.row_id is None and (request_info.fields or request_info.body):
        request_info.row_id = new_id()
        sent = {"request_headers": encode_headers(request_info.fields), "request_body": encode_body(request_info.body)}
        await tenant.insert(audited_requests, {"id": request_info.row_id, **sent, "created_at": now()})
    await tenant.insert_all(
        audit_log, [_audit_row(caller, request_info, action, default_workspace_id, *change) for change in changes]
    )


def _audit_row(
    caller: Caller,
    request_info: RequestInfo,
    action: str,
    default_workspace_id: str | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    row = after or before or {}
    resource_type, _, verb = action.rpartition(".")
    return {
        "id": new_id(),
        "workspace_id": row.get("id")
        if resource_type == "workspaces"
        else row.get("workspace_id", default_workspace_id),
        "user_id": caller.actor_id,
        "user_type": "user" if caller.user_id else "api_key",
        "key_id": caller.key_id,
        "key_name": caller.key_name,
        "key_made_by": caller.key_made_by,
        "method": request_info.method,
        "uri": request_info.uri,
        "query_params": request_info.query,
        "request_id": request_info.request_id,
        "client_ip": request_info.client,
        "resource_type": resource_type,
        "resource_id": row.get("id"),
        "action": verb,
        "response_status_code": request_info.status,
        "audited_request_id": request_info.row_id,
        "before": present_row(before),
        "after": present_row(after),
        "created_at": now(),
    }


def encode_headers(fields: Mapping[str, str]) -> str:
    """Encodes headers as a JSON object. Masks values that may be credentials."""
    masked = {
        name: value[:MAX_HEADER_LENGTH] if name in NON_SECRET_HEADERS else MASK_TEXT for name, value in fields.items()
    }
    return msgspec.json.encode(masked).decode()


def encode_body(body: bytes) -> str:
    """Encodes a JSON body for storage, with credentials masked, and cuts it to `MAX_BODY_LENGTH` characters. Returns an
    empty string if the body is not JSON, or has more than `MAX_READ_BYTES` bytes.
    """
    if not body or len(body) > MAX_READ_BYTES:
        return ""
    try:
        sent = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    credentials = (*config_credentials.split_credentials(sent).secrets, *guardrail_credentials.secret_paths(sent))
    hidden = dict.fromkeys(credentials, MASK_TEXT)
    return msgspec.json.encode(config_credentials.replace_strings(sent, hidden)).decode()[:MAX_BODY_LENGTH]


def present_row(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns a row in the form of an API response: with the API's field names, formatted times, and configs as
    objects. Omits credentials and other columns that no response contains.
    """
    if row is None:
        return None
    return {
        SHOWN_NAMES.get(name, name): _present_value(name, value)
        for name, value in row.items()
        if not any(part in name for part in HIDDEN_COLUMNS)
    }


def _present_value(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    if name.endswith("_at") and isinstance(value, int):
        return format_timestamp(value)
    if name == "is_default":
        return int(bool(value))
    if name == "usage_limits":
        return with_next_reset(value)
    if name == "config" and isinstance(value, str):
        return msgspec.json.decode(value)
    return value
