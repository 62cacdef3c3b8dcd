"""Feedback on requests. It belongs to a trace, and therefore to all requests with that trace id."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Any

import msgspec
from litestar import post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.authorization import require_scopes
from penstock.errors import NotFoundError
from penstock.ids import is_uuid, new_id
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.service import LogService, list_items
from penstock.logs.query import FeedbackQuery
from penstock.logs.spool_format import FEEDBACK
from penstock.logs.spool_writer import NewFrame
from penstock.schemas import format_timestamp, now

TAGS = ["Feedback"]
SCOPE_GUARD = require_scopes("logs.write")
# Time in which an update looks for new feedback. The log store has feedback only about a second after it was sent.
LOOKUP_SECONDS, LOOKUP_INTERVAL_SECONDS = 5.0, 0.1

_Key = Annotated[str, Meta(min_length=1, max_length=128)]
_Metadata = Annotated[dict[_Key, Any], Meta(max_length=64)]
Value = Annotated[int, Meta(ge=-10, le=10, description="rating, from -10 to 10")]
Weight = Annotated[float, Meta(ge=0, le=1)]


class NewFeedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feedback on a trace."""

    trace_id: Annotated[
        str, Meta(min_length=1, max_length=512, description="trace id of the rated request: `x-gateway-trace-id`")
    ]
    value: Value
    weight: Annotated[Weight, Meta(description="weight of the rating, from 0 to 1; default 1")] = 1.0
    metadata: Annotated[_Metadata | None, Meta(description="further information, such as who gave the feedback")] = None


class UpdateFeedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feedback to update. Omitted metadata is not changed."""

    value: Value
    weight: Annotated[Weight, Meta(description="weight of the rating, from 0 to 1; default 1")] = 1.0
    metadata: Annotated[
        _Metadata | UnsetType | None, Meta(description="further information; it replaces the stored one")
    ] = UNSET


class FeedbackResponse(msgspec.Struct, frozen=True):
    """Confirmation that feedback was saved."""

    feedback_ids: Annotated[list[str], Meta(description="ids of the feedback, in the order of the request")]
    status: Annotated[str, Meta(description="`success`")] = "success"
    message: Annotated[str, Meta(description="confirmation in words")] = "Feedback successfully saved"


FeedbackId = Annotated[str, PathParameter(description="id of the feedback")]


@post("/", status_code=200, guards=[SCOPE_GUARD], summary="Create feedback", tags=TAGS)
async def create_feedback(
    data: JSONBody[NewFeedback | list[NewFeedback]],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
) -> FeedbackResponse:
    """Saves feedback on a trace, or a list of up to 1,000. Analytics and filters see it within about a second."""
    items = list_items(data)
    async with context.ingest_session() as session:
        moment = now()
        rows: list[dict[str, Any]] = [
            {
                "id": new_id(),
                "organisation_id": session.organisation_id,
                "workspace_id": session.bound_workspace_id,
                "api_key_id": session.caller.key_id,
                "user_id": session.caller.user_id,
                "created_at": format_timestamp(moment),
                "trace_id": item.trace_id,
                "value": item.value,
                "weight": item.weight,
                "metadata": item.metadata or {},
            }
            for item in items
        ]
        await log_service.append(map(_to_frame, rows))
    return FeedbackResponse([row["id"] for row in rows])


@put("/{feedback_id:str}", guards=[SCOPE_GUARD], summary="Update feedback", tags=TAGS)
async def update_feedback(
    feedback_id: FeedbackId,
    data: JSONBody[UpdateFeedback],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
) -> FeedbackResponse:
    """Updates feedback of the key's workspace."""
    async with context.read_session() as session:
        tenant = {"organisation_id": session.organisation_id, "workspace_id": session.bound_workspace_id}
    if not is_uuid(feedback_id) or not await _is_stored(log_service, feedback_id, **tenant):
        raise NotFoundError(f"there is no feedback with the id {feedback_id!r} here")
    changed = {name: value for name, value in msgspec.structs.asdict(data).items() if value is not UNSET}
    # In the log store, null means no change, so an empty object removes the metadata.
    changed |= {"metadata": {}} if data.metadata is None else {}
    row = {"id": feedback_id, **tenant, **changed}
    await log_service.append([_to_frame(row)])
    return FeedbackResponse([feedback_id], message="Feedback successfully updated")


async def _is_stored(log_service: LogService, feedback_id: str, organisation_id: str, workspace_id: str) -> bool:
    """Returns true if the feedback is in the log store. For recent feedback, looks again for up to `LOOKUP_SECONDS`."""
    query = FeedbackQuery(organisation_id=organisation_id, workspace_ids=[workspace_id], ids=[feedback_id])
    end = asyncio.get_running_loop().time() + (LOOKUP_SECONDS if _is_recent(feedback_id) else 0)
    while True:
        if (await log_service.run(query))["total"]:
            return True
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(LOOKUP_INTERVAL_SECONDS)


def _is_recent(feedback_id: str) -> bool:
    """Returns true if the id was made within the last minute, so that the feedback may not be visible yet."""
    timestamp_ms = uuid.UUID(feedback_id).int >> 80
    return abs(now() - timestamp_ms) < 60_000  # noqa: PLR2004 - one minute


def _to_frame(row: dict[str, Any]) -> NewFrame:
    return NewFrame(FEEDBACK, uuid.UUID(row["id"]).bytes, msgspec.json.encode(row))


routes = [create_feedback, update_feedback]
