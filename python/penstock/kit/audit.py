"""One row for each change: who did what, and how it looked before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.kit.ids import DOTS, new_id
from penstock.kit.record import now
from penstock.store.tables import audit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.caller import Caller
    from penstock.store.tenant import Tenant

# Columns whose content nobody is shown, not even masked by its length.
HIDDEN = ("sealed", "sha256", "password")


class Asked(msgspec.Struct, frozen=True):
    """What a request says of itself."""

    method: str
    uri: str
    query: str
    request_id: str
    client: str


# Before and after; nothing before what was made, nothing after what is gone.
Change = tuple["Mapping[str, Any] | None", "Mapping[str, Any] | None"]


async def note(tenant: Tenant, caller: Caller, asked: Asked, action: str, changes: Sequence[Change]) -> None:
    """Write a row for each change, in the transaction of the changes themselves."""
    await tenant.insert_all(audit, [_row(caller, asked, action, *change) for change in changes])


def _row(
    caller: Caller, asked: Asked, action: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> dict[str, Any]:
    row = after or before or {}
    resource_type, _, verb = action.rpartition(".")
    return {
        "id": new_id(),
        "workspace_id": row.get("workspace_id"),
        "user_id": caller.actor,
        "user_type": "user" if caller.user_id else "api_key",
        "method": asked.method,
        "uri": asked.uri,
        "query_params": asked.query,
        "request_id": asked.request_id,
        "client_ip": asked.client,
        "resource_type": resource_type,
        "resource_id": row.get("id"),
        "action": verb,
        "response_status_code": 200,
        "before": masked(before),
        "after": masked(after),
        "created_at": now(),
    }


def masked(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Leave the credentials of a row out."""
    if row is None:
        return None
    return {name: DOTS if value and any(word in name for word in HIDDEN) else value for name, value in row.items()}
