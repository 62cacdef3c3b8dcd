"""Usage of all budgets that a caller may see: those of policies, workspaces, keys, providers, integrations and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import case, or_, select, tuple_

from penstock.limits.rules import LimitOwner, embedded_rules, integration_counter_id, usage_policy_rule
from penstock.limits.token_limits import list_token_limits, to_rule
from penstock.limits.usage import ACTIVE, USAGE_COLUMNS, shown_amount
from penstock.store.limit_tables import limit_usage, rate_limits_policies, usage_limits_policies
from penstock.store.tables import api_keys, integration_workspaces, integrations, providers, workspaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from sqlalchemy import Table

    from penstock.kit.tenant_session import TenantSession
    from penstock.limits.rules import JsonObject
    from penstock.store.tenant import Row

# Maximum number of ledger entries that one query returns: those with the highest usage.
MAX_ENTRIES = 10_000
# Maximum number of limits in one query.
CHUNK = 500
# Limit of a budget that has only an alert threshold, as `limit_rules` publishes it.
UNLIMITED = 2**63 - 1
OWNER_TABLES: dict[str, Table] = {"workspace": workspaces, "api_key": api_keys, "provider": providers}


class FoundRule(NamedTuple):
    """A rule in the form that the data plane enforces, and the workspace that it applies to."""

    rule: JsonObject
    workspace_id: str


class UsageEntry(NamedTuple):
    """Usage of one budget and group in the current period."""

    found_rule: FoundRule
    row: Row

    @property
    def used(self) -> int:
        """Used amount in requests, tokens or nano-dollars."""
        amount: int = self.row[USAGE_COLUMNS[self.found_rule.rule["type"]]]
        return amount

    @property
    def used_percent(self) -> float:
        """Used share of the limit in percent, or of the alert threshold if there is no limit."""
        rule = self.found_rule.rule
        most = rule["limit"] if rule["limit"] < UNLIMITED else rule["alert"]
        return round(100 * self.used / most, 2) if most else 0.0


async def list_rules(session: TenantSession) -> list[FoundRule]:
    """Returns the rules of all limits in the workspaces of a session."""
    rules: list[FoundRule] = []
    for kind, table in OWNER_TABLES.items():
        rules += [rule async for rule in _owner_rules(session, kind, table)]
    rules += await _integration_rules(session)
    rules += [FoundRule(to_rule(row), row["workspace_id"]) for row in await list_token_limits(session)]
    for row in await session.fetch_rows(_active(usage_limits_policies), usage_limits_policies):
        rules.append(FoundRule(usage_policy_rule(row), row["workspace_id"]))
    return rules


async def find_owner(session: TenantSession, limit_id: str) -> LimitOwner | None:
    """Returns the policy with this id as the owner of its limit, even if it is archived; `None` if the session has no
    such policy.
    """
    for table in (usage_limits_policies, rate_limits_policies):
        row = await session.find(table, limit_id)
        if row is not None:
            return LimitOwner("policy", row["id"], row["name"] or row["id"])
    return None


async def list_usage(session: TenantSession, rules: Iterable[FoundRule], status: str | None) -> list[UsageEntry]:
    """Returns the usage of budgets in their current periods, the most used first."""
    by_period = {
        (rule.rule["id"], rule.rule["period"]["start"]): rule for rule in rules if rule.rule["kind"] == "usage"
    }
    pairs = list(by_period)
    entries: list[UsageEntry] = []
    used = case(
        (limit_usage.c.measure == "cost", limit_usage.c.nanodollars),
        (limit_usage.c.measure == "tokens", limit_usage.c.tokens),
        else_=limit_usage.c.requests,
    )
    for at in range(0, len(pairs), CHUNK):
        period = tuple_(limit_usage.c.limit_id, limit_usage.c.period_start)
        query = select(limit_usage).where(period.in_(pairs[at : at + CHUNK])).order_by(used.desc()).limit(MAX_ENTRIES)
        if status:
            query = query.where(limit_usage.c.status == status)
        for row in (await session.connection.execute(query)).mappings():
            rule = by_period.get((row["limit_id"], row["period_start"]))
            if rule is not None:
                entries.append(UsageEntry(rule, dict(row)))
    entries.sort(key=lambda entry: (-entry.used_percent, entry.row["limit_id"], entry.row["value_key"]))
    return entries


class CurrentUsage(NamedTuple):
    """Usage of the limits of one row in the current period: US dollars, tokens or requests, or `None` if the row has no
    usage limit.
    """

    amount: int | float | None = None
    is_exhausted: bool = False


NO_USAGE = CurrentUsage()


async def read_current_usage(
    session: TenantSession, kind: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, CurrentUsage]:
    """Returns the usage of rows with usage limits in the current period, by id. `kind` is the `LimitOwner.kind` of the
    rows.
    """
    return await _read_usage(session, {row["id"]: _usage_rules(LimitOwner(kind, row["id"], ""), row) for row in rows})


async def read_access_usage(
    session: TenantSession, integration_id: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, CurrentUsage]:
    """Returns the usage of an integration by workspaces in the current period, by id of their `integration_workspaces`
    row.
    """
    owner = LimitOwner("integration", integration_id, "")
    rules = {
        row["id"]: _usage_rules(owner, row, integration_counter_id(integration_id, row["workspace_id"])) for row in rows
    }
    return await _read_usage(session, rules)


async def _read_usage(session: TenantSession, rules: Mapping[str, Sequence[JsonObject]]) -> dict[str, CurrentUsage]:
    listed_rules = [FoundRule(rule, "") for listed in rules.values() for rule in listed]
    used = (
        {entry.row["limit_id"]: entry for entry in await list_usage(session, listed_rules, None)}
        if listed_rules
        else {}
    )
    used_by_row: dict[str, CurrentUsage] = {}
    for row_id, listed in rules.items():
        for rule in listed:
            entry = used.get(rule["id"])
            amount = entry.used if entry else 0
            is_exhausted = amount >= rule["limit"] or used_by_row.get(row_id, NO_USAGE).is_exhausted
            used_by_row[row_id] = CurrentUsage(shown_amount(rule["type"], amount), is_exhausted)
    return used_by_row


def _active(table: Table) -> Any:  # noqa: ANN401 - a query
    return select(table).where(table.c.status == ACTIVE).order_by(table.c.id)


async def _owner_rules(session: TenantSession, kind: str, table: Table) -> AsyncIterator[FoundRule]:
    has_limits = or_(table.c.usage_limits.is_not(None), table.c.rate_limits.is_not(None))
    for row in await session.fetch_rows(_active(table).where(has_limits), table):
        workspace_id = row["id"] if table is workspaces else row["workspace_id"]
        if workspace_id is None:
            continue
        owner = LimitOwner(kind, row["id"], row.get("slug") or row["name"])
        for rule in embedded_rules(owner, row):
            yield FoundRule(rule, workspace_id)


async def _integration_rules(session: TenantSession) -> list[FoundRule]:
    columns = (providers.c.workspace_id, providers.c.integration_id)
    uses = await session.fetch_rows(select(*columns).where(providers.c.status == ACTIVE).distinct(), providers)
    org_session = session.organisation()
    rows = await org_session.find_all(integrations, {use["integration_id"] for use in uses})
    query = select(integration_workspaces).where(integration_workspaces.c.integration_id.in_(list(rows)))
    access = {
        (row["integration_id"], row["workspace_id"]): row
        for row in await org_session.fetch_rows(query, integration_workspaces)
    }
    rules: list[FoundRule] = []
    for use in uses:
        row = rows.get(use["integration_id"])
        if row is None or row["status"] != ACTIVE or row["workspace_id"] is not None:
            continue
        workspace = use["workspace_id"]
        own = access.get((row["id"], workspace))
        shared = row["global_access"]
        limits: dict[str, Any] = {
            name: (own if own is not None else shared).get(name)
            for name in ("usage_limits", "rate_limits", "last_reset_at")
        }
        limits["created_at"] = (own if own is not None else row)["created_at"]
        owner = LimitOwner("integration", row["id"], row["slug"])
        counter = integration_counter_id(row["id"], workspace)
        rules += [FoundRule(rule, workspace) for rule in embedded_rules(owner, limits, counter)]
    return rules


async def list_integration_providers(session: TenantSession) -> list[Row]:
    """Returns integration, workspace and slug of the active providers in the workspaces of a session."""
    columns = (providers.c.workspace_id, providers.c.integration_id, providers.c.slug)
    return await session.fetch_rows(select(*columns).where(providers.c.status == ACTIVE), providers)


def _usage_rules(owner: LimitOwner, row: Mapping[str, Any], counter_id: str | None = None) -> list[JsonObject]:
    return list(embedded_rules(owner, {**row, "rate_limits": None}, counter_id))


def usage_period_end(rule: Mapping[str, Any]) -> int | None:
    """Returns the end of the current period of a budget in Unix milliseconds; `None` if the period never ends."""
    end: int | None = rule["period"]["end"]
    return end
