"""Re-rating of stored logs: their costs are computed again with the prices of today, after a price was wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta

from penstock.authorization import require_scopes
from penstock.kit.tenant_session import RequestContext
from penstock.log_api.filters import DESCRIPTIONS, WORKSPACE_WORDS, parse_filters
from penstock.log_api.rerating import ModelRating, Rerater, load_saved_providers
from penstock.log_api.service import LogService
from penstock.log_api.visibility import ALL_WORKSPACES, open_log_access
from penstock.logs.columns import NANODOLLARS_PER_CENT
from penstock.pricing.cost_calculator import CostCalculator
from penstock.resources._analytics_graphs import Cents, Partial

TAGS = ["Logs"]
MAX_TEXT_CHARS = 65_536

_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class RerateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Logs to re-rate: those in a time range that match all other filters."""

    time_of_generation_min: Annotated[datetime, Meta(description="only logs from this time on, ISO 8601")]
    time_of_generation_max: Annotated[
        datetime | None,
        Meta(
            description="only logs up to this time, ISO 8601; default: now. With `cursor`, the time of the first request"
        ),
    ] = None
    ai_model: Annotated[_Text | None, Meta(description=DESCRIPTIONS["ai_model"])] = None
    ai_org_model: Annotated[
        _Text | None,
        Meta(description="only these models: `provider__model` separated by commas; `provider__`: all of a provider"),
    ] = None
    workspace_slug: Annotated[_Text | None, Meta(description=f"{WORKSPACE_WORDS}; default: all workspaces")] = None
    dry_run: Annotated[bool, Meta(description="true: only report the costs, and change nothing")] = False
    cursor: Annotated[_Text | None, Meta(description="`next_cursor` of the previous response")] = None


class RatedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one model before and after re-rating."""

    ai_org: Annotated[str, Meta(description="provider, such as `openai`")]
    ai_model: Annotated[str, Meta(description="model")]
    logs: Annotated[int, Meta(description="number of logs with tokens or images")]
    corrected: Annotated[
        int, Meta(description="logs whose cost differs; with `dry_run`, those that would be corrected")
    ]
    unpriced: Annotated[int, Meta(description="logs for which no price is known today; they keep their cost")]
    skipped: Annotated[
        int,
        Meta(
            description="logs that keep their cost because nothing had to be paid, or because their saved provider no longer exists"
        ),
    ]
    old_cost: Annotated[Cents, Meta(description="cost before, in cents")]
    new_cost: Annotated[Cents, Meta(description="cost after, in cents")]


class Rerating(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one part of the time range."""

    data: Annotated[list[RatedModel], Meta(description="costs by model, in this part")]
    dry_run: Annotated[bool, Meta(description="true if nothing was changed")]
    time_of_generation_max: Annotated[
        datetime, Meta(description="end of the range of time; send it with `next_cursor`")
    ]
    next_cursor: Annotated[str | None, Meta(description="`cursor` of the next request; null if all is done")]
    object: Annotated[str, Meta(description="`rerating`")] = "rerating"
    partial: Partial = UNSET


@post(
    "/", status_code=200, guards=[require_scopes("organisation_integrations.update")], summary="Re-rate logs", tags=TAGS
)
async def rerate_logs(
    data: JSONBody[RerateRequest],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    cost_calculator: NamedDependency[CostCalculator],
) -> Rerating:
    """Computes the costs of stored logs again with the current prices for the time of each request, and corrects those
    that differ. Works for some seconds: repeat the request with `next_cursor` until it is null. The same request may be
    sent again: what is right stays as it is. Corrections are visible within about a second.
    """
    end = data.time_of_generation_max or datetime.now(UTC)
    values = {
        "time_of_generation_min": data.time_of_generation_min,
        "time_of_generation_max": end,
        "ai_model": data.ai_model,
        "ai_org_model": data.ai_org_model,
        "workspace_slug": data.workspace_slug or ALL_WORKSPACES,
    }
    filters = parse_filters(values)
    access = await open_log_access(context, filters.workspace, "figures")
    if data.cursor is None and not data.dry_run:
        async with context.write_session() as session:
            present = {name: str(value) for name, value in values.items() if value is not None}
            await session.record_change("logs.rerate", after=present)
    async with context.read_session() as session:
        saved = await load_saved_providers(session)
    rerater = Rerater(log_service, cost_calculator, saved)
    rated_slice = await rerater.run_slice(filters.within(access), data.cursor, is_dry_run=data.dry_run)
    models = sorted(rated_slice.ratings.items(), key=lambda item: (-item[1].logs, item[0]))
    return Rerating(
        data=[_to_rated_model(*key, rating) for key, rating in models],
        dry_run=data.dry_run,
        time_of_generation_max=filters.values["time_of_generation_max"],
        next_cursor=rated_slice.next_cursor,
        partial=True if log_service.is_partial else UNSET,
    )


def _to_rated_model(provider: str, model: str, rating: ModelRating) -> RatedModel:
    figures: dict[str, Any] = msgspec.structs.asdict(rating)
    costs = {name: round(figures.pop(name) / NANODOLLARS_PER_CENT, 7) for name in ("old_cost", "new_cost")}
    return RatedModel(ai_org=provider, ai_model=model, **figures, **costs)


routes = [rerate_logs]
