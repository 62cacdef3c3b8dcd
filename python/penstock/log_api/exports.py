"""Log exports: their states, the fields that they may contain, and the signed links to their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from penstock.errors import ForbiddenError, Problem
from penstock.log_api.filters import ExportFilters
from penstock.log_api.visibility import LogAccess
from penstock.logs.columns import COLUMNS_BY_NAME
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.logs.query import LogFilters
    from penstock.secrets.vault import Vault
    from penstock.store.tenant import Row

DRAFT, IN_PROGRESS, SUCCESS, FAILED, STOPPED = "draft", "in_progress", "success", "failed", "stopped"
MAX_ROWS = 50_000
LINK_SECONDS = 3600
LINK_PURPOSE = "log export"
MEDIA_TYPE = "application/jsonl"

# Fields that a log export may contain.
ExportField = Literal[
    "id",
    "trace_id",
    "created_at",
    "request",
    "response",
    "is_success",
    "ai_org",
    "ai_model",
    "req_units",
    "res_units",
    "total_units",
    "request_url",
    "cost",
    "cost_currency",
    "response_time",
    "response_status_code",
    "mode",
    "config",
    "prompt_slug",
    "metadata",
]
EXPORT_FIELDS: tuple[str, ...] = get_args(ExportField)
# Fields that an export reads from stored bodies, not from columns of the log store.
BODY_FIELDS = frozenset({"request", "response"})
RequestedData = Annotated[
    Annotated[list[ExportField], Meta(min_length=1, max_length=len(EXPORT_FIELDS))],
    Meta(description="fields of each row; `cost` is in cents and may be fractional, `response_time` in milliseconds"),
]


def export_columns(requested: Iterable[str]) -> list[str]:
    """Returns the columns of the log store that an export reads."""
    names = {"cost": "cost_nanodollars"}
    result = [names.get(name, name) for name in requested if name not in BODY_FIELDS]
    return [name for name in dict.fromkeys(["id", *result]) if name in COLUMNS_BY_NAME]


def stored_filters(row: Row) -> ExportFilters:
    """Returns the filters of a stored export."""
    return msgspec.convert(row["filters"], ExportFilters)


def export_filters(row: Row, email: str | None) -> LogFilters:
    """Returns the filters of a stored export, limited to its workspace and to the logs that its creator may see.
    `email` is the address of the creator.
    """
    access = LogAccess(row["organisation_id"], [row["workspace_id"]], row["restricted_to"], email)
    return stored_filters(row).parse().within(access)


def reject_denied_fields(requested: Iterable[str], denied: Iterable[str]) -> None:
    """Raises ForbiddenError if an export includes fields that the organisation denies."""
    denied_names = set(denied)
    problems = [
        Problem(f"requested_data[{index}]", f"{name!r} may not be exported: the organisation denies it")
        for index, name in enumerate(requested)
        if name in denied_names
    ]
    if problems:
        raise ForbiddenError("; also ".join(f"{problem.path} {problem.message}" for problem in problems), problems)


def file_name(export_id: str) -> str:
    """Returns the name of the file of an export."""
    return f"logs-{export_id}.jsonl"


def sign_link(vault: Vault, row: Row) -> dict[str, Any]:
    """Returns the query parameters of a link to an export's file, valid for an hour."""
    expires = now() // 1000 + LINK_SECONDS
    return {"expires": expires, "signature": vault.sign(_link_text(row, expires), LINK_PURPOSE)}


def check_link(vault: Vault, row: Mapping[str, Any], expires: int, signature: str) -> None:
    """Raises ForbiddenError unless a link is signed and has not expired."""
    if expires <= now() // 1000 or not vault.has_signed(signature, _link_text(row, expires), LINK_PURPOSE):
        raise ForbiddenError(
            "this link is not valid, or has expired; hint: GET /v1/logs/exports/{id}/download returns a new one"
        )


def _link_text(row: Mapping[str, Any], expires: int) -> str:
    # Includes the id of the file: a later run of the export creates a new file, which old links must not open.
    return f"{row['id']} {row['file_id']} {expires}"
