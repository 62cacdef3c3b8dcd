"""Usage of rate limits: how close requests came to them in the last minutes, hours and days, computed from logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select

from penstock.limits.demand import DemandReader
from penstock.limits.rules import WINDOW_UNITS, rate_policy_rule
from penstock.limits.simulation import METADATA_PREFIX, LimitSimulation, SimulatedPolicy
from penstock.limits.status import FoundRule, list_integration_providers
from penstock.logs.query import MAX_METADATA_KEYS
from penstock.store.limit_tables import rate_limits_policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.limits.rules import JsonObject
    from penstock.limits.simulation import GroupResult
    from penstock.log_api.service import LogService
    from penstock.log_api.visibility import LogAccess

# Time range in which the highest rate is searched, by unit of the limit.
LOOKBACKS = {
    "rps": timedelta(minutes=10),
    "rpm": timedelta(hours=1),
    "rph": timedelta(days=1),
    "rpd": timedelta(days=2),
    "rpw": timedelta(days=7),
}
UNITS_BY_WINDOW = {window: unit for unit, window in WINDOW_UNITS.items()}
# Maximum number of rate limits that one response compares with logs. It omits the others.
MAX_RULES = 2000
# Column of a log with the id of the limit's owner, by kind of owner.
OWNER_COLUMNS = {"api_key": "api_key_id", "workspace": "workspace_id", "policy": "workspace_id"}


class RateEntry(NamedTuple):
    """Highest usage of one rate limit and group in one window, and the usage of the current window."""

    found_rule: FoundRule
    value_key: str
    peak: int
    current: int

    @property
    def used_percent(self) -> float:
        """Highest usage, in percent of the limit."""
        limit = self.found_rule.rule["limit"]
        return round(100 * self.peak / limit, 2) if limit else 0.0


async def list_rate_rules(session: TenantSession, rules: Iterable[FoundRule]) -> list[FoundRule]:
    """Returns the rate limits of policies, and those among `rules`."""
    query = select(rate_limits_policies).where(
        rate_limits_policies.c.status == "active", rate_limits_policies.c.target == "llm"
    )
    rows = await session.fetch_rows(query.order_by(rate_limits_policies.c.id), rate_limits_policies)
    policies = [FoundRule(rate_policy_rule(row), row["workspace_id"]) for row in rows]
    return [*policies, *(found_rule for found_rule in rules if found_rule.rule["kind"] == "rate")]


class RateUsage:
    """Compares logs with the rate limits of one unit."""

    def __init__(
        self, rules: Sequence[FoundRule], providers: Mapping[tuple[str, str], list[str]], start_ms: int
    ) -> None:
        """Stores the limits. `providers` has the slugs of providers by integration and workspace, and `start_ms` is the
        start of the logs.
        """
        # Limits by owner, so that a log is compared only with the limits of its own key, providers and workspace.
        self._by_owner: dict[tuple[str, str], list[tuple[FoundRule, LimitSimulation]]] = {}
        self._all: list[tuple[FoundRule, LimitSimulation]] = []
        for found_rule in rules:
            entry = found_rule, LimitSimulation(_to_policy(found_rule, providers), start_ms)
            self._all.append(entry)
            self._by_owner.setdefault(_owner_key(found_rule), []).append(entry)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds one logged request to the simulations of all limits that count it."""
        owners = {("workspace_id", row["workspace_id"]), ("api_key_id", row["api_key_id"])}
        user_id = row.get("user_id") or ""
        # The log of a token has its user as the key, too.
        if (row["api_key_id"] or user_id).lower() == user_id.lower():
            owners.add(("user_id", user_id))
        for owner in owners:
            for _, simulation in self._by_owner.get(owner, ()):
                simulation.add(row["at"], row)

    def entries(self, now_ms: int) -> list[RateEntry]:
        """Returns the usage of all groups that had requests."""
        return [
            RateEntry(found_rule, name, group.peak, _current_usage(simulation, group, now_ms))
            for found_rule, simulation in self._all
            for name, group in simulation.groups.items()
        ]


async def read_rates(
    log_service: LogService,
    access: LogAccess,
    rules: Sequence[FoundRule],
    providers: Mapping[tuple[str, str], list[str]],
) -> tuple[list[RateEntry], bool]:
    """Returns the usage of rate limits, the most used first, and true if it covers all limits and logs."""
    end, entries, is_complete = datetime.now(UTC), list[RateEntry](), len(rules) <= MAX_RULES
    for unit, lookback in LOOKBACKS.items():
        own = [found_rule for found_rule in rules[:MAX_RULES] if _unit_of(found_rule) == unit]
        metadata = sorted({key for found_rule in own for key in _metadata_keys(found_rule.rule)})
        if not own:
            continue
        is_complete &= len(metadata) <= 2 * MAX_METADATA_KEYS
        metadata = metadata[: 2 * MAX_METADATA_KEYS]
        own = [found_rule for found_rule in own if _metadata_keys(found_rule.rule) <= set(metadata)]
        start = end - lookback
        usage = RateUsage(own, providers, round(start.timestamp() * 1000))
        reader = DemandReader(log_service, access, start, end)
        async for rows in reader.read_pages(metadata):
            for row in rows:
                usage.add(row)
        is_complete &= reader.is_complete
        entries += usage.entries(round(end.timestamp() * 1000))
    entries.sort(key=lambda entry: (-entry.used_percent, entry.found_rule.rule["id"], entry.value_key))
    return entries, is_complete


async def find_integration_providers(session: TenantSession) -> dict[tuple[str, str], list[str]]:
    """Returns the slugs of providers by their integration and workspace. Logs name providers, not integrations."""
    slugs: dict[tuple[str, str], list[str]] = {}
    for row in await list_integration_providers(session):
        slugs.setdefault((row["integration_id"], row["workspace_id"]), []).append(row["slug"])
    return slugs


def _unit_of(found_rule: FoundRule) -> str:
    return UNITS_BY_WINDOW[found_rule.rule["window"]["unit"]]


def _owner_key(found_rule: FoundRule) -> tuple[str, str]:
    owner = found_rule.rule["owner"]
    if owner["kind"] == "api_key":
        return "api_key_id", owner["id"]
    if owner["kind"] == "token":
        # Logs have e-mail addresses in lower case.
        user = owner["slug"]
        return "user_id", user.lower() if "@" in user else user
    return "workspace_id", found_rule.workspace_id


def _metadata_keys(rule: JsonObject) -> set[str]:
    keys = [*(condition["key"] for condition in rule.get("conditions", ())), *rule.get("group_by", ())]
    return {key.removeprefix(METADATA_PREFIX) for key in keys if key.startswith(METADATA_PREFIX)}


def _to_policy(found_rule: FoundRule, providers: Mapping[tuple[str, str], list[str]]) -> SimulatedPolicy:
    rule, owner = found_rule.rule, found_rule.rule["owner"]
    conditions = [
        {"key": condition["key"], "value": condition["values"], "excludes": condition["excludes"]}
        for condition in rule.get("conditions", ())
    ]
    if owner["kind"] == "provider":
        conditions.append({"key": "virtual_key", "value": [owner["slug"], owner["id"]]})
    elif owner["kind"] == "integration":
        conditions.append({"key": "virtual_key", "value": providers.get((owner["id"], found_rule.workspace_id), [])})
    return SimulatedPolicy(
        conditions=conditions,
        group_by=rule.get("group_by", []),
        type=rule["type"],
        limit=rule["limit"],
        unit=_unit_of(found_rule),
        is_sliding=rule["window"]["sliding"],
    )


def _current_usage(simulation: LimitSimulation, group: GroupResult, now_ms: int) -> int:
    return group.window_usage if simulation.window_start(now_ms) == group.window_start else 0
