"""Limits in use: which budgets are close to their limit, what limits refused, and what a policy would have refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.authorization import require_scopes
from penstock.errors import Problem
from penstock.kit.route_parameters import WorkspaceFilter
from penstock.kit.shared_fields import ObjectType, OptionalTimestamp, WorkspaceId, WorkspaceIdOrSlug
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.limit_fields import Amount
from penstock.limits import policies as limit_policies
from penstock.limits import status as limit_status
from penstock.limits.coverage import PolicyWarning, ReferenceCheck, find_idle_policies, list_policies
from penstock.limits.demand import DemandReader, RefusedGroup, list_refusals
from penstock.limits.policies import Conditions, Groups, KeyRules
from penstock.limits.rates import (
    UNITS_BY_WINDOW,
    RateEntry,
    find_integration_providers,
    list_rate_rules,
    read_rates,
)
from penstock.limits.rules import LimitOwner, to_units
from penstock.limits.simulation import LimitSimulation, SimulatedPolicy
from penstock.limits.token_limits import reset_token_usage
from penstock.limits.usage import shown_amount
from penstock.log_api.service import LogService
from penstock.log_api.visibility import open_log_access
from penstock.metrics import MetricsStore
from penstock.resources._analytics_graphs import Partial
from penstock.schemas import EmptyResponse, ListResponse, format_timestamp, invalid_error
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies

if TYPE_CHECKING:
    from collections.abc import Mapping

TAGS = ["Limits"]
LIST_SCOPE, FIGURES_SCOPE, UPDATE_SCOPE = "policies.list", "analytics.view", "policies.update"
MAX_DAYS, DEFAULT_DAYS = 90, 7
MAX_REFUSALS, MAX_RATES, MAX_SHOWN_GROUPS = 1000, 1000, 100
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 1000

_Number = int | float
OwnerKind = Annotated[
    str, Meta(description="what has the limit: `policy`, `workspace`, `api_key`, `provider`, `integration` or `token`")
]
LimitId = Annotated[str, Meta(description="id of the limit; of a policy, its id")]
ValueKey = Annotated[str, Meta(description="values of the policy's groups; empty if the limit has no groups")]
Complete = Annotated[bool, Meta(description="false if there were too many logs; then only the first of them count")]
Days = Annotated[int, QueryParameter(ge=1, le=MAX_DAYS, description="days before now whose logs count; default 7")]
EntityStatus = Annotated[Literal["active", "exhausted"] | None, QueryParameter(description="only such budgets")]
MinUsed = Annotated[
    float,
    QueryParameter(ge=0, le=1_000_000, description="only budgets of which at least this much is used, in percent"),
]
PolicyFilter = Annotated[str | None, QueryParameter(description="only this policy: its id")]
TokenLimitId = Annotated[
    str,
    PathParameter(description="id of the limit: the `owner_id` of a row with the kind `token` in the list of usage"),
]
PageSize = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE_SIZE, description="rows on a page; default 50")]
PageNumber = Annotated[int, QueryParameter(ge=0, le=1_000_000, description="page number, from 0")]


class LimitedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, and the group of a policy that it counts."""

    limit_id: LimitId
    kind: OwnerKind
    owner_id: Annotated[str, Meta(description="id of what has the limit; of a token, id of the limit")]
    owner_name: Annotated[str, Meta(description="its slug or name; of a token, its user")]
    workspace_id: WorkspaceId
    value_key: ValueKey
    dry_run: Annotated[bool, Meta(description="true if the limit refuses nothing")]


class LoggedList(msgspec.Struct, frozen=True, kw_only=True):
    """Limit-related entries that were computed from the logs."""

    total: Annotated[int, Meta(description="number of entries")]
    complete: Complete
    partial: Partial = UNSET
    object: ObjectType = "list"


class LimitUsage(LimitedGroup, frozen=True, kw_only=True):
    """Usage of one budget, or of one group of a policy, in the current period."""

    type: Annotated[str, Meta(description="`cost` in US dollars, `tokens` or `requests`")]
    credit_limit: Annotated[_Number | None, Meta(description="the limit; null: only an alert")]
    alert_threshold: Annotated[_Number | None, Meta(description="usage at which an alert is sent")]
    current_usage: Annotated[_Number, Meta(description="usage in the current period")]
    reserved: Annotated[
        _Number,
        Meta(
            description="amount reserved by running requests and by leases of workers, with a delay of some seconds; unused amounts are returned"
        ),
    ]
    used_percent: Annotated[float, Meta(description="usage in percent of the limit")]
    status: Annotated[str, Meta(description="`active` or `exhausted`")]
    enforcement: Annotated[str, Meta(description="`soft` or `hard`")]
    next_usage_reset_at: OptionalTimestamp
    object: ObjectType = "limit-usage"


class LimitRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one API key and group that a limit refused."""

    limit_id: LimitId
    kind: Annotated[str | None, Meta(description="as in the list of usage; null if the limit no longer exists")]
    owner_id: Annotated[str | None, Meta(description="id of what has the limit")]
    owner_name: Annotated[str | None, Meta(description="its slug or name")]
    value_key: ValueKey
    api_key_id: Annotated[str | None, Meta(description="API key of the requests; null for a token")]
    api_key_name: Annotated[str | None, Meta(description="name of the key")]
    refused: Annotated[
        int, Meta(description="requests that the limit refused, or for which it refused one of several targets")
    ]
    would_reject: Annotated[int, Meta(description="requests that it would have refused without `dry_run`")]
    first_seen: OptionalTimestamp
    last_seen: OptionalTimestamp
    object: ObjectType = "limit-refusal"


class RefusalList(LoggedList, frozen=True, kw_only=True):
    """Requests that limits rejected, by limit, group and API key."""

    data: Annotated[list[LimitRefusal], Meta(description="entries, the most refused first; at most 1,000")]


class RateUsage(LimitedGroup, frozen=True, kw_only=True):
    """Usage of one rate limit, or of one group of a policy."""

    type: Annotated[str, Meta(description="`tokens` or `requests`")]
    unit: Annotated[str, Meta(description="`rps`, `rpm`, `rph`, `rpd` or `rpw`: per second, minute, hour, day or week")]
    value: Annotated[int, Meta(description="the limit")]
    window: Annotated[str, Meta(description="`fixed` or `sliding`")]
    current_usage: Annotated[int, Meta(description="usage in the current window, aligned to UTC")]
    peak_usage: Annotated[
        int,
        Meta(
            description="highest usage in one aligned window of the last 10 minutes (rps), hour (rpm), day (rph), 2 days (rpd) or 7 days (rpw)"
        ),
    ]
    used_percent: Annotated[float, Meta(description="highest usage in percent of the limit")]
    object: ObjectType = "rate-limit-usage"


class RateUsageList(LoggedList, frozen=True, kw_only=True):
    """Usage of rate limits."""

    data: Annotated[list[RateUsage], Meta(description="entries, the most used first; at most 1,000")]


class UnmatchedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that may match nothing."""

    policy_id: Annotated[str, Meta(description="id of the policy")]
    policy_name: Annotated[str | None, Meta(description="its display name")]
    kind: Annotated[str, Meta(description="`usage-limits` or `rate-limits`")]
    workspace_id: WorkspaceId
    path: Annotated[str, Meta(description="the condition, such as `conditions[0].value`; empty for the whole policy")]
    message: Annotated[str, Meta(description="why the policy may match nothing")]
    object: ObjectType = "unmatched-policy"


class UnmatchedList(msgspec.Struct, frozen=True, kw_only=True):
    """Policies that may match nothing."""

    total: Annotated[int, Meta(description="number of entries")]
    complete: Annotated[
        bool,
        Meta(
            description="false if not everything could be checked: too many values or logs, or the caller does not see all logs"
        ),
    ]
    data: Annotated[list[UnmatchedPolicy], Meta(description="entries, by policy")]
    object: ObjectType = "list"


class SimulationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy to simulate: an existing one, or the fields of a new one."""

    days: Annotated[int, Meta(ge=1, le=MAX_DAYS, description="days before now whose logs count")] = DEFAULT_DAYS
    workspace_id: WorkspaceIdOrSlug = None
    policy_id: Annotated[str | None, Meta(description="id of a policy, instead of the other fields")] = None
    conditions: Annotated[Conditions | UnsetType, Meta(description="conditions of the policy")] = UNSET
    group_by: Annotated[Groups | UnsetType, Meta(description="groups of the policy")] = UNSET
    type: Annotated[Literal["cost", "tokens", "requests"] | UnsetType, Meta(description="what is counted")] = UNSET
    credit_limit: Annotated[
        Amount | UnsetType, Meta(description="limit of a usage limits policy, in US dollars, tokens or requests")
    ] = UNSET
    periodic_reset: Annotated[
        Literal["monthly", "weekly"] | None, Meta(description="reset of a usage limits policy")
    ] = None
    periodic_reset_days: Annotated[
        Annotated[int, Meta(ge=1, le=365)] | None,
        Meta(description="days between resets, from the first day of the simulation"),
    ] = None
    unit: Annotated[
        Literal["rpm", "rph", "rpd", "rpw"] | UnsetType, Meta(description="unit of a rate limits policy")
    ] = UNSET
    value: Annotated[Amount | UnsetType, Meta(description="limit of a rate limits policy")] = UNSET
    window: Annotated[Literal["fixed", "sliding"], Meta(description="windows of a rate limits policy")] = "fixed"


class SimulatedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one group of requests."""

    value_key: ValueKey
    requests: Annotated[int, Meta(description="requests of the group")]
    refused: Annotated[int, Meta(description="those that the policy would have refused")]
    usage: Annotated[_Number, Meta(description="usage of all requests of the group")]
    peak: Annotated[_Number, Meta(description="highest usage in one period or aligned window, without the policy")]
    peak_percent: Annotated[float, Meta(description="the same in percent of the limit")]
    first_refused_at: OptionalTimestamp
    last_refused_at: OptionalTimestamp


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulation: the requests that a policy would have refused."""

    requests: Annotated[int, Meta(description="requests in the logs of these days")]
    matched: Annotated[int, Meta(description="requests that meet the conditions")]
    refused: Annotated[int, Meta(description="requests that the policy would have refused")]
    refused_percent: Annotated[float, Meta(description="the same in percent of those that match")]
    groups: Annotated[int, Meta(description="number of groups")]
    complete: Complete
    start: Annotated[OptionalTimestamp, Meta(description="start of the range")]
    end: Annotated[OptionalTimestamp, Meta(description="end of the range")]
    data: Annotated[list[SimulatedGroup], Meta(description="groups, the most refused first; at most 100")]
    object: ObjectType = "limit-simulation"
    partial: Partial = UNSET


@get("/usage", guards=[require_scopes(LIST_SCOPE)], summary="List usage of budgets", tags=TAGS)
async def list_limit_usage(  # noqa: PLR0913, PLR0917 - one parameter for each filter
    context: NamedDependency[RequestContext],
    figures: NamedDependency[MetricsStore],
    workspace_id: WorkspaceFilter = None,
    status: EntityStatus = None,
    min_used_percent: MinUsed = 0,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    current_page: PageNumber = 0,
) -> ListResponse[LimitUsage]:
    """Lists the usage of all budgets in their current periods: those of policies, workspaces, keys, providers,
    integrations and tokens. Sorted by the used share, highest first. A budget of a token has the amounts of the token
    that was seen last.
    """
    async with context.read_session(workspace_id) as session:
        entries = await limit_status.list_usage(session, await limit_status.list_rules(session), status)
    selected = [entry for entry in entries if entry.used_percent >= min_used_percent]
    first = current_page * page_size
    reserved_amounts = figures.reserved_amounts()
    return ListResponse(
        len(selected), [_to_usage(entry, reserved_amounts) for entry in selected[first : first + page_size]]
    )


@get(
    "/refusals",
    guards=[require_scopes(LIST_SCOPE), require_scopes(FIGURES_SCOPE)],
    summary="List what limits refused",
    tags=TAGS,
)
async def list_limit_refusals(
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    workspace_id: WorkspaceFilter = None,
    days: Days = DEFAULT_DAYS,
) -> RefusalList:
    """Lists which limits refused requests, of which keys and groups."""
    access = await open_log_access(context, workspace_id or "*", "figures")
    end = datetime.now(UTC)
    reader = DemandReader(log_service, access, end - timedelta(days=days), end)
    refusals = await list_refusals(reader)
    async with context.read_session(workspace_id) as session:
        owners = {rule.rule["id"]: rule.rule["owner"] for rule in await limit_status.list_rules(session)}
        for limit_id in {rule.limit_id for rule in refusals} - owners.keys():
            if (owner := await limit_status.find_owner(session, limit_id)) is not None:
                owners[limit_id] = owner.to_json()
    refusals.sort(key=lambda rule: (-rule.refused, -rule.would_reject, rule.limit_id, rule.value_key))
    data = [_to_refusal(rule, owners.get(rule.limit_id)) for rule in refusals[:MAX_REFUSALS]]
    partial = True if log_service.is_partial else UNSET
    return RefusalList(total=len(refusals), complete=reader.is_complete, data=data, partial=partial)


@get(
    "/rates",
    guards=[require_scopes(LIST_SCOPE), require_scopes(FIGURES_SCOPE)],
    summary="List usage of rate limits",
    tags=TAGS,
)
async def list_rate_usage(
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    workspace_id: WorkspaceFilter = None,
    min_used_percent: MinUsed = 0,
) -> RateUsageList:
    """Lists how close the logged requests came to rate limits: those of policies, workspaces, keys, providers,
    integrations and tokens. The one of which most was used in one window comes first.
    """
    access = await open_log_access(context, workspace_id or "*", "figures")
    async with context.read_session(workspace_id) as session:
        rules = await list_rate_rules(session, await limit_status.list_rules(session))
        slugs = await find_integration_providers(session)
    entries, is_complete = await read_rates(log_service, access, rules, slugs)
    selected = [entry for entry in entries if entry.used_percent >= min_used_percent]
    partial = True if log_service.is_partial else UNSET
    data = [_to_rate_usage(entry) for entry in selected[:MAX_RATES]]
    return RateUsageList(total=len(selected), complete=is_complete, data=data, partial=partial)


@get(
    "/unmatched",
    guards=[require_scopes(LIST_SCOPE), require_scopes(FIGURES_SCOPE)],
    summary="List policies that match nothing",
    tags=TAGS,
)
async def list_unmatched_policies(
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
    workspace_id: WorkspaceFilter = None,
    policy_id: PolicyFilter = None,
    days: Days = DEFAULT_DAYS,
) -> UnmatchedList:
    """Lists active policies with conditions that name no object of the workspace, or that no logged request met. Objects
    are only looked up if the caller may list them, and at most 50 of them.
    """
    access = await open_log_access(context, workspace_id or "*", "figures")
    async with context.read_session(workspace_id) as session:
        policies = await list_policies(session, policy_id)
        check = ReferenceCheck(session)
        warnings = await check.find_warnings(policies)
    is_complete = check.is_complete
    # Only if the caller can read all requests. Otherwise a policy would be reported although requests that the caller
    # cannot read met it.
    if access.restriction is None and not log_service.is_partial:
        end = datetime.now(UTC)
        reader = DemandReader(log_service, access, end - timedelta(days=days), end)
        warnings += await find_idle_policies(policies, reader)
        is_complete &= reader.is_complete
    else:
        is_complete = False
    data = [_to_unmatched(warning) for warning in warnings]
    return UnmatchedList(total=len(data), complete=is_complete, data=data)


@post(
    "/simulate",
    status_code=200,
    guards=[require_scopes(LIST_SCOPE), require_scopes(FIGURES_SCOPE)],
    summary="Simulate a policy",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def simulate_policy(
    data: JSONBody[SimulationRequest],
    context: NamedDependency[RequestContext],
    log_service: NamedDependency[LogService],
) -> Simulation:
    """Applies a policy to the logs of the last days, and returns the requests that it would have rejected. The
    simulation of a budget starts without usage, also within a period.
    """
    access = await open_log_access(context, data.workspace_id or "*", "figures")
    async with context.read_session(data.workspace_id) as session:
        policy = await _find_policy(session, data) if data.policy_id is not None else _parse_policy(data)
    end = datetime.now(UTC)
    start = end - timedelta(days=data.days)
    simulation = LimitSimulation(policy, round(start.timestamp() * 1000))
    reader = DemandReader(log_service, access, start, end)
    async for rows in reader.read_pages(policy.metadata_keys):
        for row in rows:
            simulation.add(row["at"], row)
    groups = simulation.groups
    matched, refused = (sum(getattr(group, name) for group in groups.values()) for name in ("requests", "refused"))
    listed = sorted(groups.items(), key=lambda item: (-item[1].refused, -item[1].peak, item[0]))[:MAX_SHOWN_GROUPS]
    return Simulation(
        requests=simulation.requests,
        matched=matched,
        refused=refused,
        refused_percent=round(100 * refused / matched, 2) if matched else 0.0,
        groups=len(groups),
        complete=reader.is_complete,
        start=format_timestamp(round(start.timestamp() * 1000)),
        end=format_timestamp(round(end.timestamp() * 1000)),
        data=[
            SimulatedGroup(
                value_key=name,
                requests=group.requests,
                refused=group.refused,
                usage=shown_amount(policy.type, group.usage),
                peak=shown_amount(policy.type, group.peak),
                peak_percent=round(100 * group.peak / policy.limit, 2) if policy.limit else 0.0,
                first_refused_at=format_timestamp(group.first_refused or None),
                last_refused_at=format_timestamp(group.last_refused or None),
            )
            for name, group in listed
        ],
        partial=True if log_service.is_partial else UNSET,
    )


@put(
    "/tokens/{key:str}/reset",
    guards=[require_scopes(UPDATE_SCOPE)],
    summary="Reset usage of a token's budget",
    tags=TAGS,
)
async def reset_token_limit(key: TokenLimitId, context: NamedDependency[RequestContext]) -> EmptyResponse:
    """Sets the usage of a budget that tokens of a user carry to 0, in the current period. All workspaces of the
    organisation share it. So a key of one workspace cannot reset what the user has used in others.
    """
    async with context.write_session() as session:
        await reset_token_usage(session, key)
        return EmptyResponse()


async def _find_policy(session: TenantSession, data: SimulationRequest) -> SimulatedPolicy:
    own = {"conditions", "group_by", "type", "credit_limit", "unit", "value"}
    if identities := sorted(name for name in own if getattr(data, name) is not UNSET):
        reason = "cannot be combined with policy_id; send either of them"
        raise invalid_error([Problem(name, reason) for name in identities])
    for table in (usage_limits_policies, rate_limits_policies):
        row = await session.find(table, data.policy_id or "")
        if row is None:
            continue
        common: dict[str, Any] = {
            "conditions": row["conditions"],
            "group_by": [part["key"] for part in row["group_by"]],
            "type": row["type"],
        }
        if table is rate_limits_policies:
            common |= {"limit": row["value"], "unit": row["unit"], "is_sliding": row["window"] == "sliding"}
            return SimulatedPolicy(**common)
        period = {name: row[name] for name in ("periodic_reset", "periodic_reset_days")}
        return SimulatedPolicy(**common, limit=to_units(row["type"], row["credit_limit"]), **period)
    raise invalid_error([Problem("policy_id", f"{data.policy_id!r} is no policy that this caller may see")])


def _parse_policy(data: SimulationRequest) -> SimulatedPolicy:
    """Returns the policy that the fields of a body describe. Raises InvalidError with all problems."""
    missing = [name for name in ("conditions", "group_by", "type") if getattr(data, name) is UNSET]
    problems = [Problem(name, "is required without policy_id") for name in missing]
    is_rate = data.unit is not UNSET or data.value is not UNSET
    if is_rate:
        problems += [
            Problem(name, "is required for a rate limit") for name in ("unit", "value") if getattr(data, name) is UNSET
        ]
        if data.type == "cost":
            problems.append(Problem("type", "'cost' is not allowed for a rate limit: expected 'requests' or 'tokens'"))
        if data.credit_limit is not UNSET:
            problems.append(Problem("credit_limit", "cannot be combined with unit and value; send either of them"))
    elif data.credit_limit is UNSET:
        problems.append(Problem("credit_limit", "is required, or unit and value"))
    if data.periodic_reset and data.periodic_reset_days:
        problems.append(Problem("periodic_reset_days", "cannot be combined with periodic_reset; send either of them"))
    rules = KeyRules(limit_policies.RATE_KEYS, limit_policies.MCP_KEYS, "policies with the target 'mcp_tools'")
    conditions = () if data.conditions is UNSET else data.conditions
    groups = () if data.group_by is UNSET else data.group_by
    problems += rules.find_problems(conditions, groups)
    if problems or data.type is UNSET:
        raise invalid_error(problems)
    common: dict[str, Any] = {
        "conditions": msgspec.to_builtins(list(conditions)),
        "group_by": [group.key for group in groups],
        "type": data.type,
    }
    if data.unit is not UNSET and data.value is not UNSET:
        common |= {"limit": int(data.value), "unit": data.unit, "is_sliding": data.window == "sliding"}
        return SimulatedPolicy(**common)
    limit = 0 if data.credit_limit is UNSET else to_units(data.type, data.credit_limit)
    common |= {"periodic_reset": data.periodic_reset, "periodic_reset_days": data.periodic_reset_days}
    return SimulatedPolicy(**common, limit=limit)


def _to_usage(entry: limit_status.UsageEntry, reserved_amounts: Mapping[tuple[str, str], int]) -> LimitUsage:
    rule, row = entry.found_rule.rule, entry.row
    is_limited = rule["limit"] < limit_status.UNLIMITED
    owner = LimitOwner(**rule["owner"])
    return LimitUsage(
        limit_id=rule["id"],
        kind=owner.kind,
        owner_id=owner.id,
        owner_name=owner.slug,
        workspace_id=entry.found_rule.workspace_id,
        value_key=row["value_key"],
        type=rule["type"],
        credit_limit=shown_amount(rule["type"], rule["limit"]) if is_limited else None,
        alert_threshold=None if rule["alert"] is None else shown_amount(rule["type"], rule["alert"]),
        current_usage=shown_amount(rule["type"], entry.used),
        reserved=shown_amount(rule["type"], reserved_amounts.get((rule["id"], row["value_key"]), 0)),
        used_percent=entry.used_percent,
        status=row["status"],
        enforcement=rule["enforcement"],
        dry_run=rule["dry_run"],
        next_usage_reset_at=format_timestamp(limit_status.usage_period_end(rule)),
    )


def _to_rate_usage(entry: RateEntry) -> RateUsage:
    rule = entry.found_rule.rule
    owner = LimitOwner(**rule["owner"])
    return RateUsage(
        limit_id=rule["id"],
        kind=owner.kind,
        owner_id=owner.id,
        owner_name=owner.slug,
        workspace_id=entry.found_rule.workspace_id,
        value_key=entry.value_key,
        type=rule["type"],
        unit=UNITS_BY_WINDOW[rule["window"]["unit"]],
        value=rule["limit"],
        window="sliding" if rule["window"]["sliding"] else "fixed",
        current_usage=entry.current,
        peak_usage=entry.peak,
        used_percent=entry.used_percent,
        dry_run=rule["dry_run"],
    )


def _to_unmatched(warning: PolicyWarning) -> UnmatchedPolicy:
    return UnmatchedPolicy(
        policy_id=warning.policy["id"],
        policy_name=warning.policy["name"],
        kind=warning.kind,
        workspace_id=warning.policy["workspace_id"],
        path=warning.path,
        message=warning.message,
    )


def _to_refusal(group: RefusedGroup, owner: dict[str, Any] | None) -> LimitRefusal:
    return LimitRefusal(
        limit_id=group.limit_id,
        kind=owner["kind"] if owner else None,
        owner_id=owner["id"] if owner else None,
        owner_name=owner["slug"] if owner else None,
        value_key=group.value_key,
        api_key_id=group.api_key_id,
        api_key_name=group.api_key_name,
        refused=group.refused,
        would_reject=group.would_reject,
        first_seen=format_timestamp(group.first_seen),
        last_seen=format_timestamp(group.last_seen),
    )


routes = [
    list_limit_usage,
    list_rate_usage,
    list_limit_refusals,
    list_unmatched_policies,
    simulate_policy,
    reset_token_limit,
]
