"""Rate limits policies: maximum requests or tokens per unit of time for each group of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter
from msgspec import Meta

from penstock.authorization import require_scopes
from penstock.errors import Problem
from penstock.kit.crud_routes import CrudRoutes, ListQuery, plain_renderer, workspace_request_context
from penstock.kit.numbered_pages import equality_conditions
from penstock.kit.route_parameters import PolicyId, PolicyStatusFilter, WorkspaceFilter
from penstock.kit.shared_fields import UNSET, ObjectType, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limit_fields import Amount
from penstock.limits import policies as limit_policies
from penstock.limits.coverage import find_condition_warnings
from penstock.limits.policies import CreatedPolicy, KeyRules, NewPolicy, PolicyFields, PolicyUpdate, UpdatedPolicy
from penstock.schemas import invalid_error, row_to_struct, sent_fields
from penstock.store.limit_tables import rate_limits_policies

if TYPE_CHECKING:
    from penstock.store.tenant import Row

KIND, TAGS = "rate-limits-policy", ["Rate Limits Policies"]
# Maximum value of a rate limit. A larger one would be no limit in practice, and every part of the gateway can represent
# this one.
MAX_VALUE = 1_000_000_000_000
LLM, MCP_TOOLS = "llm", "mcp_tools"

RateType = Literal["requests", "tokens"]
RateUnit = Literal["rpm", "rph", "rpd", "rpw"]
RateWindow = Literal["fixed", "sliding"]
RateTarget = Literal["llm", "mcp_tools"]
TypeField = Annotated[RateType, Meta(description="what is counted")]
UnitField = Annotated[RateUnit, Meta(description="per minute, hour, day or week")]
WINDOW_TEXT = (
    "`fixed`: minutes, hours, days and weeks begin at their start in UTC, weeks on Monday; "
    "`sliding`: no period of this length has more, whenever it begins"
)
WindowField = Annotated[RateWindow, Meta(description=WINDOW_TEXT)]
TargetField = Annotated[
    RateTarget, Meta(description="`llm`: requests to models; `mcp_tools`: calls of MCP tools; cannot be changed")
]
ValueField = Annotated[Amount, Meta(description="how many requests or tokens; a whole number")]


class NewRateLimitsPolicy(NewPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rate limits policy to create."""

    type: TypeField
    unit: UnitField
    value: ValueField
    window: WindowField = "fixed"
    target: TargetField = "llm"


class UpdateRateLimitsPolicy(PolicyUpdate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a rate limits policy to change; omitted fields stay as they are."""

    unit: Annotated[RateUnit | UnsetType, Meta(description="per minute, hour, day or week")] = UNSET
    value: Annotated[Amount | UnsetType, Meta(description="how many requests or tokens; a whole number")] = UNSET
    window: Annotated[RateWindow | UnsetType, Meta(description=WINDOW_TEXT)] = UNSET


class RateLimitsPolicy(PolicyFields, frozen=True, kw_only=True):
    """One rate limits policy."""

    type: TypeField
    unit: UnitField
    value: ValueField
    window: WindowField
    target: TargetField
    object: ObjectType = KIND


UnitParam = Annotated[RateUnit | None, QueryParameter(description="only policies with this unit")]
TypeParam = Annotated[RateType | None, QueryParameter(description="only policies that count this")]


def build_list_query(
    workspace_id: WorkspaceFilter = None,
    status: PolicyStatusFilter = "active",
    type: TypeParam = None,  # noqa: A002 - name of the query parameter
    unit: UnitParam = None,
) -> ListQuery:
    """Lists rate limits policies, newest first."""
    conditions = equality_conditions(rate_limits_policies, status=status, type=type, unit=unit)
    return ListQuery(workspace_id, conditions)


async def create_policy(session: TenantSession, data: NewRateLimitsPolicy) -> CreatedPolicy:
    """Creates a policy. Requests over the limit are rejected with status 429.

    The workspace is required, unless the key belongs to one. The setting
    `limits.workspace_policies` bounds the active policies of a workspace.
    """
    session.caller.check_organisation(data.organisation_id)
    rules = _key_rules(data.target)
    problems = rules.find_problems(data.conditions, data.group_by) + _value_problems(data.value)
    if problems:
        raise invalid_error(problems)
    columns = limit_policies.common_columns(session, data)
    await limit_policies.reject_too_many(session)
    own = {name: getattr(data, name) for name in ("type", "unit", "window", "target")}
    row = await limit_policies.RATE_POLICIES.create(session, {**columns, **own, "value": int(data.value)})
    return CreatedPolicy(row["id"], KIND, await find_condition_warnings(session, "rate-limits", row))


async def update_policy(session: TenantSession, row: Row, data: UpdateRateLimitsPolicy) -> UpdatedPolicy:
    """Changes a policy; omitted fields keep their values. The type, the target and the groups cannot be changed."""
    limit_policies.reject_other_status(row)
    values: dict[str, Any] = msgspec.to_builtins(sent_fields(data))
    problems: list[Problem] = []
    if data.conditions is not UNSET:
        problems += _key_rules(row["target"]).find_problems(data.conditions, ())
    if data.value is not UNSET:
        problems += _value_problems(data.value)
        values["value"] = int(data.value)
    if problems:
        raise invalid_error(problems)
    await limit_policies.RATE_POLICIES.update(session, row, values)
    return UpdatedPolicy(await find_condition_warnings(session, "rate-limits", {**row, **values}))


async def archive_policy(session: TenantSession, row: Row) -> None:
    """Archives a policy. It has no effect from then on, and can still be read."""
    limit_policies.reject_other_status(row)
    await limit_policies.RATE_POLICIES.update(session, row, {"status": limit_policies.ARCHIVED}, "delete")


@get(
    "/{key:str}",
    guards=[require_scopes("policies.read")],
    summary="Get rate limits policy",
    tags=TAGS,
    dependencies={"context": Provide(workspace_request_context, sync_to_thread=False)},
)
async def get_policy(
    key: PolicyId, context: NamedDependency[RequestContext], status: PolicyStatusFilter = "active"
) -> RateLimitsPolicy:
    """Returns a policy. An archived one is returned with `status=archived` only."""
    async with context.read_session(context.query_workspace) as session:
        return row_to_struct(
            RateLimitsPolicy, await limit_policies.get_policy(session, limit_policies.RATE_POLICIES, key, status)
        )


def _key_rules(target: str) -> KeyRules:
    if target == MCP_TOOLS:
        return KeyRules((*limit_policies.RATE_KEYS, *limit_policies.MCP_KEYS))
    return KeyRules(limit_policies.RATE_KEYS, limit_policies.MCP_KEYS, "policies with the target 'mcp_tools'")


def _value_problems(value: float) -> list[Problem]:
    if value != int(value) or value > MAX_VALUE:
        return [Problem("value", f"{value:g} is not allowed: expected a whole number from 1 to {MAX_VALUE}")]
    return []


CRUD_ROUTES = CrudRoutes(limit_policies.RATE_POLICIES, "rate limits policy", TAGS, "rate limits policies")
SHOW_DETAIL = plain_renderer(RateLimitsPolicy)
routes = [
    CRUD_ROUTES.create_route(NewRateLimitsPolicy, CreatedPolicy, create_policy),
    CRUD_ROUTES.list_route(RateLimitsPolicy, SHOW_DETAIL, build_list_query),
    get_policy,
    CRUD_ROUTES.update_route(UpdateRateLimitsPolicy, UpdatedPolicy, update_policy, RateLimitsPolicy, SHOW_DETAIL),
    CRUD_ROUTES.delete_route(archive_policy),
]
