"""Usage limits policies: maximum cost, tokens or requests per period for each group of requests."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from litestar import get, put
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from penstock import limit_fields as limits
from penstock.authorization import require_scopes
from penstock.errors import NotFoundError, Problem
from penstock.kit.crud_routes import CrudRoutes, ListQuery, workspace_request_context
from penstock.kit.numbered_pages import equality_conditions
from penstock.kit.route_parameters import PolicyId, PolicyStatusFilter, WorkspaceFilter
from penstock.kit.shared_fields import UNSET, ObjectType, OptionalTimestamp, UnsetType
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limits import policies as limit_policies
from penstock.limits.coverage import find_condition_warnings
from penstock.limits.initial_usage import GroupUsageField, find_group_problems, store_group_usage
from penstock.limits.periods import current_period, to_limit
from penstock.limits.policies import CreatedPolicy, KeyRules, NewPolicy, PolicyFields, PolicyUpdate, UpdatedPolicy
from penstock.limits.usage import PeriodUsageReader, UsageEntity, ValueUsage
from penstock.schemas import (
    EmptyResponse,
    ListResponse,
    format_timestamp,
    invalid_error,
    last_reset,
    next_reset,
    row_to_struct,
    sent_fields,
    to_milliseconds,
    with_next_reset,
)
from penstock.store.limit_tables import usage_limits_policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.store.tenant import Row

KIND, TAGS = "usage-limits-policy", ["Usage Limits Policies"]
MIN_TOKENS = 100
# Maximum limit for each type. The usage ledger counts nano-dollars in 64-bit integers.
MAX_AMOUNTS = {"cost": 9_000_000_000, "tokens": 1_000_000_000_000_000, "requests": 1_000_000_000_000_000}
MAX_ENTITIES = 100

UsageType = Literal["cost", "tokens", "requests"]
PeriodicReset = Literal["monthly", "weekly"]
Enforcement = Literal["soft", "hard"]
_Threshold = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
_Days = Annotated[int, Meta(ge=1, le=365)]
CREDIT_TEXT = "US dollars, tokens or requests, by type: at least 1, and at least 100 tokens"
ALERT_TEXT = "usage at which an entry is written to the audit log; less than credit_limit"
RESET_TEXT = "on the first of a month or on Monday, 00:00 UTC"
DAYS_TEXT = "days between resets, instead of periodic_reset"
NEXT_TEXT = "time of the next reset; rounded down to midnight UTC"
ENFORCEMENT_TEXT = (
    "`soft`: requests in flight may exceed the limit; `hard`: a request is only sent if its highest possible usage "
    "still fits"
)
TypeField = Annotated[UsageType, Meta(description="what is counted; cost is in US dollars")]
CreditField = Annotated[limits.Amount, Meta(description=CREDIT_TEXT)]
AlertField = Annotated[_Threshold | None, Meta(description=ALERT_TEXT)]
ResetField = Annotated[PeriodicReset | None, Meta(description=RESET_TEXT)]
DaysField = Annotated[_Days | None, Meta(description=DAYS_TEXT)]
EnforcementField = Annotated[Enforcement, Meta(description=ENFORCEMENT_TEXT)]


class NewUsageLimitsPolicy(NewPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A usage limits policy to create."""

    type: TypeField
    credit_limit: CreditField
    alert_threshold: AlertField = None
    periodic_reset: ResetField = None
    periodic_reset_days: DaysField = None
    next_usage_reset_at: Annotated[datetime | None, Meta(description=NEXT_TEXT)] = None
    enforcement: EnforcementField = "soft"
    initial_usage: GroupUsageField = None


class UpdateUsageLimitsPolicy(PolicyUpdate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a usage limits policy to change; omitted fields stay as they are."""

    READ_ONLY: ClassVar = ("value_key_usage_map",)
    credit_limit: Annotated[limits.Amount | UnsetType, Meta(description=CREDIT_TEXT)] = UNSET
    alert_threshold: Annotated[_Threshold | UnsetType | None, Meta(description=f"{ALERT_TEXT}; null removes it")] = (
        UNSET
    )
    periodic_reset: Annotated[
        PeriodicReset | UnsetType | None,
        Meta(description=f"{RESET_TEXT}; null removes it; replaces periodic_reset_days"),
    ] = UNSET
    periodic_reset_days: Annotated[
        _Days | UnsetType | None, Meta(description=f"{DAYS_TEXT}; null removes it; replaces periodic_reset")
    ] = UNSET
    next_usage_reset_at: Annotated[datetime | UnsetType | None, Meta(description=NEXT_TEXT)] = UNSET
    enforcement: Annotated[Enforcement | UnsetType, Meta(description=ENFORCEMENT_TEXT)] = UNSET
    reset_usage_for_value: Annotated[
        str | None, Meta(description="`value_key` of the group of requests whose usage is set to 0")
    ] = None


class UsageLimitsPolicy(PolicyFields, frozen=True, kw_only=True):
    """One usage limits policy."""

    type: TypeField
    credit_limit: CreditField
    alert_threshold: AlertField
    periodic_reset: ResetField
    periodic_reset_days: DaysField
    next_usage_reset_at: OptionalTimestamp
    last_reset_at: OptionalTimestamp
    enforcement: EnforcementField
    object: ObjectType = KIND


class UsageLimitsPolicyDetail(UsageLimitsPolicy, frozen=True, kw_only=True):
    """One usage limits policy, with its usage on request."""

    value_key_usage_map: Annotated[
        dict[str, ValueUsage] | UnsetType,
        Meta(
            description="with include_usage: usage in the current period by group, of the 1000 with the highest usage"
        ),
    ] = UNSET


TypeParam = Annotated[UsageType | None, QueryParameter(description="only policies that count this")]
IncludeUsage = Annotated[bool, QueryParameter(description="true: with the usage in the current period")]
EntityId = Annotated[str, PathParameter(description="id of the entity")]
EntityStatus = Annotated[Literal["active", "exhausted"] | None, QueryParameter(description="only such entities")]
SearchParam = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=255, description="part of the value_key, ignoring the case of ASCII letters"
    ),
]
EntityPageSize = Annotated[int, QueryParameter(ge=1, le=MAX_ENTITIES, description="rows on a page; default 100")]
EntityPage = Annotated[int, QueryParameter(ge=0, le=1_000_000, description="page number, from 0")]


def build_list_query(
    workspace_id: WorkspaceFilter = None,
    status: PolicyStatusFilter = "active",
    type: TypeParam = None,  # noqa: A002 - name of the query parameter
) -> ListQuery:
    """Lists usage limits policies, newest first."""
    return ListQuery(workspace_id, equality_conditions(usage_limits_policies, status=status, type=type))


async def create_policy(session: TenantSession, data: NewUsageLimitsPolicy) -> CreatedPolicy:
    """Creates a policy. Requests over the limit are rejected with status 412.

    The workspace is required, unless the key belongs to one. The setting
    `limits.workspace_policies` bounds the active policies of a workspace.
    """
    session.caller.check_organisation(data.organisation_id)
    limit = limits.UsageLimits(**{name: getattr(data, name) for name in limits.USAGE_FIELDS})
    problems = _key_rules().find_problems(data.conditions, data.group_by) + _limit_problems(limit, {})
    problems += find_group_problems(data.initial_usage, data.type)
    if problems:
        raise invalid_error(problems)
    columns = limit_policies.common_columns(session, data)
    await limit_policies.reject_too_many(session)
    own = {**_to_columns(limits.to_stored_usage_limits(limit, {})), "enforcement": data.enforcement}
    row = await limit_policies.USAGE_POLICIES.create(session, {**columns, **own, "last_reset_at": None})
    if data.initial_usage:
        await store_group_usage(session, row, data.initial_usage)
    return CreatedPolicy(row["id"], KIND, await find_condition_warnings(session, "usage-limits", row))


async def update_policy(session: TenantSession, row: Row, data: UpdateUsageLimitsPolicy) -> UpdatedPolicy:
    """Changes a policy; omitted fields keep their values. The type and the groups cannot be changed.

    A higher `credit_limit` makes exhausted groups active again and clears their alerts. A higher `alert_threshold`, or
    none, clears the alerts of the threshold.
    """
    limit_policies.reject_other_status(row)
    sent: dict[str, Any] = sent_fields(data)
    value_key = sent.pop("reset_usage_for_value", None)
    before = to_limit(row)
    limit = limits.UsageLimits(**_merge_limit(row, sent))
    problems = _limit_problems(limit, before)
    if data.conditions is not UNSET:
        problems += _key_rules().find_problems(data.conditions, ())
    if problems:
        raise invalid_error(problems)
    values: dict[str, Any] = {name: msgspec.to_builtins(sent[name]) for name in sent if name not in limits.USAGE_FIELDS}
    if not sent.keys().isdisjoint(limits.USAGE_FIELDS):
        stored = limits.to_stored_usage_limits(limit, before)
        values |= {**_to_columns(stored), "last_reset_at": last_reset(before, row["last_reset_at"])}
    usage = _open_period(session, row)
    if sent.get("credit_limit", 0) > row["credit_limit"]:
        await usage.reactivate()
    if row["alert_threshold"] is not None and "alert_threshold" in sent:
        threshold = sent["alert_threshold"]
        if threshold is None or threshold > row["alert_threshold"]:
            await usage.clear_threshold_alerts()
    await limit_policies.USAGE_POLICIES.update(session, row, values)
    session.note_changed_budget(row["id"])
    if value_key is not None:
        await _record_reset(session, row, await usage.reset(value_key=value_key))
    return UpdatedPolicy(await find_condition_warnings(session, "usage-limits", {**row, **values}))


async def archive_policy(session: TenantSession, row: Row) -> None:
    """Archives a policy. It has no effect from then on, and can still be read."""
    limit_policies.reject_other_status(row)
    await limit_policies.USAGE_POLICIES.update(session, row, {"status": limit_policies.ARCHIVED}, "delete")


WORKSPACE_DEPENDENCY = {"context": Provide(workspace_request_context, sync_to_thread=False)}


@get(
    "/{key:str}",
    guards=[require_scopes("policies.read")],
    summary="Get usage limits policy",
    tags=TAGS,
    dependencies=WORKSPACE_DEPENDENCY,
)
async def get_policy(
    key: PolicyId,
    context: NamedDependency[RequestContext],
    status: PolicyStatusFilter = "active",
    include_usage: IncludeUsage = False,
) -> UsageLimitsPolicyDetail:
    """Returns a policy. An archived one is returned with `status=archived` only."""
    async with context.read_session(context.query_workspace) as session:
        row = await limit_policies.get_policy(session, limit_policies.USAGE_POLICIES, key, status)
        usage = {"value_key_usage_map": await _open_period(session, row).read_map()} if include_usage else {}
        return row_to_struct(UsageLimitsPolicyDetail, row, **_shown_limit(row), **usage)


@get(
    "/{key:str}/entities",
    guards=[require_scopes("policies.read")],
    summary="List entities of a usage limits policy",
    tags=TAGS,
    dependencies=WORKSPACE_DEPENDENCY,
)
async def list_entities(
    key: PolicyId,
    context: NamedDependency[RequestContext],
    status: EntityStatus = None,
    search: SearchParam = None,
    page_size: EntityPageSize = MAX_ENTITIES,
    current_page: EntityPage = 0,
) -> ListResponse[UsageEntity]:
    """Lists the groups of requests that used the policy in the current period; the highest usage comes first."""
    async with context.read_session(context.query_workspace) as session:
        row = await limit_policies.USAGE_POLICIES.get(session, key)
        return ListResponse(*await _open_period(session, row).list_entities(status, search, page_size, current_page))


@put(
    "/{key:str}/entities/{entity_id:str}/reset",
    guards=[require_scopes("policies.update")],
    summary="Reset usage of an entity",
    tags=TAGS,
    dependencies=WORKSPACE_DEPENDENCY,
)
async def reset_entity(key: PolicyId, entity_id: EntityId, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Sets the usage of one group of requests in the current period to 0, and makes it active again."""
    async with context.write_session(context.query_workspace) as session:
        row = await limit_policies.get_policy(session, limit_policies.USAGE_POLICIES, key)
        await session.check_precondition(usage_limits_policies, row)
        entity = await _open_period(session, row).reset(entity_id=entity_id)
        if entity is None:
            raise NotFoundError(f"the policy has no entity with the id {entity_id!r} in the current period")
        await _record_reset(session, row, entity)
        return EmptyResponse()


def _to_columns(limit: Mapping[str, Any]) -> dict[str, Any]:
    due = limit["next_usage_reset_at"]
    return {**limit, "next_usage_reset_at": to_milliseconds(datetime.fromisoformat(due)) if due else None}


def _merge_limit(row: Row, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the limit after an update. A new `periodic_reset` replaces `periodic_reset_days`, and vice versa. The
    current period ends at the same time as before, unless the update sets its end or removes the period.
    """
    before = to_limit(row)
    due = next_reset(before)
    merged = {**before, "next_usage_reset_at": datetime.fromisoformat(due) if due else None}
    merged |= {name: value for name, value in sent.items() if name in limits.USAGE_FIELDS}
    for name, other in (limits.PERIOD_FIELDS, limits.PERIOD_FIELDS[::-1]):
        if sent.get(name) and other not in sent:
            merged[other] = None
    was_periodic, is_periodic = (any(item[name] for name in limits.PERIOD_FIELDS) for item in (before, merged))
    if was_periodic and not is_periodic and "next_usage_reset_at" not in sent:
        merged["next_usage_reset_at"] = None
    return merged


def _limit_problems(limit: limits.UsageLimits, before: Mapping[str, Any]) -> list[Problem]:
    problems = limits.find_usage_limit_problems("", limit, before)
    type_, maximum = limit.type or limits.DEFAULT_USAGE_TYPE, MAX_AMOUNTS[limit.type or limits.DEFAULT_USAGE_TYPE]
    least = MIN_TOKENS if type_ == "tokens" else 1
    for name, value, lowest in (
        ("credit_limit", limit.credit_limit, least),
        ("alert_threshold", limit.alert_threshold, 0),
    ):
        is_whole = type_ == "cost" or value is None or value == int(value)
        if value is not None and not (is_whole and lowest <= value <= maximum):
            subject = "a number" if type_ == "cost" else "a whole number"
            problems.append(
                Problem(name, f"{value:g} is not allowed for {type_}: expected {subject} from {lowest} to {maximum}")
            )
    return problems


def _key_rules() -> KeyRules:
    other = (*limit_policies.RATE_KEYS[len(limit_policies.SHARED_KEYS) :], *limit_policies.MCP_KEYS)
    return KeyRules(limit_policies.SHARED_KEYS, other, "rate limits policies")


def _open_period(session: TenantSession, row: Row) -> PeriodUsageReader:
    return PeriodUsageReader(session.connection, row["id"], row["type"], current_period(to_limit(row), row).start)


async def _record_reset(session: TenantSession, row: Row, entity: UsageEntity | None) -> None:
    """Records the reset of an entity's usage in the audit log."""
    if entity is None:
        return
    fields = {"id": row["id"], "workspace_id": row["workspace_id"], "value_key": entity.value_key}
    before = {**fields, "current_usage": entity.current_usage, "usage_status": entity.status}
    after = {**fields, "current_usage": 0, "usage_status": limit_policies.ACTIVE}
    await session.record_change("policies.reset", before=before, after=after)


def _shown_limit(row: Row) -> dict[str, Any]:
    limit = to_limit(row)
    current_limit = with_next_reset(limit)
    return {
        **{name: current_limit[name] for name in ("credit_limit", "alert_threshold", "next_usage_reset_at")},
        "last_reset_at": format_timestamp(last_reset(limit, row["last_reset_at"])),
    }


async def render_policies(_session: TenantSession, rows: list[Row]) -> list[UsageLimitsPolicy]:
    """Renders policies for lists."""
    return [row_to_struct(UsageLimitsPolicy, row, **_shown_limit(row)) for row in rows]


CRUD_ROUTES = CrudRoutes(limit_policies.USAGE_POLICIES, "usage limits policy", TAGS, "usage limits policies")
routes = [
    CRUD_ROUTES.create_route(NewUsageLimitsPolicy, CreatedPolicy, create_policy),
    CRUD_ROUTES.list_route(UsageLimitsPolicy, render_policies, build_list_query),
    get_policy,
    list_entities,
    reset_entity,
    CRUD_ROUTES.update_route(UpdateUsageLimitsPolicy, UpdatedPolicy, update_policy, UsageLimitsPolicy, render_policies),
    CRUD_ROUTES.delete_route(archive_policy),
]
