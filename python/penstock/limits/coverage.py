"""Search for policies that match no request: their conditions name missing objects, exclude each other, or were met by
no recent request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET
from sqlalchemy import or_, select

from penstock.limits.policies import ConditionWarning, condition_values
from penstock.limits.simulation import METADATA_PREFIX, LimitSimulation, SimulatedPolicy
from penstock.logs.query import MAX_METADATA_KEYS
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies
from penstock.store.prompt_tables import prompts
from penstock.store.tables import api_keys, configs, providers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Table

    from penstock.kit.tenant_session import TenantSession
    from penstock.limits.demand import DemandReader
    from penstock.limits.policies import PolicyWarnings
    from penstock.store.tenant import Row

# Maximum number of condition values that one response looks up. Further values are not checked.
MAX_LOOKUPS = 50
# Maximum number of policies that one response checks.
MAX_POLICIES = 200
# Condition keys that name objects: the table of the objects, their name in messages, and scopes. A caller needs all of
# these scopes to learn if an object exists.
NAMED_OBJECTS: Mapping[str, tuple[Table, str, frozenset[str]]] = {
    "api_key": (
        api_keys,
        "API key",
        frozenset(["workspace_service_api_keys.list", "workspace_user_api_keys.list"]),
    ),
    "config": (configs, "config", frozenset(["configs.list"])),
    "prompt": (prompts, "prompt", frozenset(["prompts.list"])),
    "virtual_key": (providers, "provider", frozenset(["providers.list"])),
}


# Condition keys for which a request has exactly one value, with only one spelling.
SINGLE_VALUE_KEYS = frozenset(["endpoint_type", "mcp_server", "mcp_tool", "provider"])


class PolicyWarning(NamedTuple):
    """A reason why a policy may match nothing. `path` is the path of the condition's value; it is empty if the reason
    is not a single condition.
    """

    policy: Row
    kind: str
    path: str
    message: str


async def list_policies(session: TenantSession, policy_id: str | None) -> list[tuple[str, Row]]:
    """Returns the active policies of a session's workspaces, or one of them, each with its kind."""
    named_objects: list[tuple[str, Row]] = []
    for kind, table in (("usage-limits", usage_limits_policies), ("rate-limits", rate_limits_policies)):
        query = select(table).where(table.c.status == "active").order_by(table.c.id.desc()).limit(MAX_POLICIES)
        if policy_id is not None:
            query = query.where(table.c.id == policy_id)
        named_objects += [(kind, row) for row in await session.fetch_rows(query, table)]
    return named_objects[:MAX_POLICIES]


class ReferenceCheck:
    """Looks up the objects that conditions name, as far as the caller may list such objects."""

    def __init__(self, session: TenantSession) -> None:
        """Starts without look-ups."""
        self._session = session
        self._known: dict[tuple[str, str, str], bool] = {}

    @property
    def is_complete(self) -> bool:
        """False if the look-ups reached `MAX_LOOKUPS`."""
        return len(self._known) < MAX_LOOKUPS

    async def find_warnings(self, policies: Iterable[tuple[str, Row]]) -> list[PolicyWarning]:
        """Returns a warning for each condition whose values all name missing objects."""
        warnings: list[PolicyWarning] = []
        for kind, row in policies:
            for index, condition in enumerate(row["conditions"]):
                # A condition that excludes a missing object matches every request, so it needs no warning.
                if condition.get("excludes"):
                    continue
                values = condition_values(condition["value"])
                missing = [value for value in values if await self._is_missing(row, condition["key"], value)]
                if missing and len(missing) == len(values):
                    what = NAMED_OBJECTS[_object_key(condition["key"])][1]
                    verb = "name" if len(missing) > 1 else "names"
                    message = f"{', '.join(map(repr, missing))} {verb} no {what} of the workspace"
                    warnings.append(PolicyWarning(row, kind, f"conditions[{index}].value", message))
        return warnings

    async def _is_missing(self, row: Row, key: str, value: str) -> bool:
        if key == "model":
            if not value.startswith("@"):
                return False
            value = value[1:].partition("/")[0]
        key = _object_key(key)
        if key not in NAMED_OBJECTS or "*" in value:
            return False
        table, _, needed = NAMED_OBJECTS[key]
        workspace_id = row["workspace_id"]
        if not needed <= self._session.caller.granted_scopes(workspace_id):
            return False
        reference = key, value, workspace_id
        if reference not in self._known:
            if not self.is_complete:
                return False
            self._known[reference] = await self._exists(table, value, workspace_id)
        return not self._known[reference]

    async def _exists(self, table: Table, value: str, workspace_id: str) -> bool:
        names = [table.c.id == value, *([table.c.slug == value] if "slug" in table.c else [table.c.name == value])]
        query = select(table.c.id).where(table.c.workspace_id == workspace_id, or_(*names))
        return (await self._session.connection.execute(query.limit(1))).first() is not None


async def find_condition_warnings(session: TenantSession, kind: str, row: Row) -> PolicyWarnings:
    """Returns reasons why a saved policy can match no request; `UNSET` if none is found."""
    unknown_objects = await ReferenceCheck(session).find_warnings([(kind, row)])
    warnings = [ConditionWarning(warning.path, warning.message) for warning in unknown_objects]
    return warnings + find_contradictions(row["conditions"]) or UNSET


def find_contradictions(conditions: Sequence[Mapping[str, Any]]) -> list[ConditionWarning]:
    """Returns a warning for each condition that no request can meet together with an earlier condition."""
    warnings: list[ConditionWarning] = []
    for index, condition in enumerate(conditions):
        for earlier in conditions[:index]:
            if _exclude_each_other(earlier, condition):
                message = f"no request meets this and an earlier condition on {condition['key']!r}"
                warnings.append(ConditionWarning(f"conditions[{index}].value", message))
                break
    return warnings


def _exclude_each_other(earlier: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    key = earlier["key"]
    if key != other["key"]:
        return False
    first, second = (set(condition_values(condition["value"])) for condition in (earlier, other))
    earlier_excludes, other_excludes = bool(earlier.get("excludes")), bool(other.get("excludes"))
    if earlier_excludes != other_excludes:
        required, excluded = (second, first) if earlier_excludes else (first, second)
        return required <= excluded or "*" in excluded
    # Different values may still match the same request if one has a wildcard, or if they are the id and the slug of one
    # object.
    is_single = key in SINGLE_VALUE_KEYS or key.startswith(METADATA_PREFIX)
    is_literal = not any("*" in value for value in first | second)
    return not earlier_excludes and is_single and is_literal and first.isdisjoint(second)


async def find_idle_policies(policies: Sequence[tuple[str, Row]], reader: DemandReader) -> list[PolicyWarning]:
    """Returns a warning for each policy whose conditions no log meets. `reader` must not be restricted to some
    requests.
    """
    checked = [(kind, row, _to_simulation(row)) for kind, row in policies if row.get("target", "llm") == "llm"]
    metadata = sorted({key for _, _, simulation in checked for key in simulation.policy.metadata_keys})
    if len(metadata) > 2 * MAX_METADATA_KEYS:
        metadata = metadata[: 2 * MAX_METADATA_KEYS]
        checked = [candidate for candidate in checked if set(candidate[2].policy.metadata_keys) <= set(metadata)]
    waiting, count = checked, 0
    async for rows in reader.read_pages(metadata):
        for row in rows:
            count += 1
            # A policy that matched once needs no further comparison.
            waiting = [candidate for candidate in waiting if not _matches(candidate, row)]
        if not waiting:
            break
    if not count or not reader.is_complete:
        return []
    return [PolicyWarning(row, kind, "", f"none of {count} requests met its conditions") for kind, row, _ in waiting]


def _object_key(key: str) -> str:
    """Returns the key in `NAMED_OBJECTS` for a condition key. A condition on a model names its provider."""
    return "virtual_key" if key == "model" else key


def _to_simulation(row: Row) -> LimitSimulation:
    policy = SimulatedPolicy(
        conditions=row["conditions"],
        group_by=[part["key"] for part in row["group_by"] if part["key"].startswith(METADATA_PREFIX)],
        type="requests",
        limit=1,
    )
    return LimitSimulation(policy, 0)


def _matches(checked: tuple[str, Row, LimitSimulation], log: Mapping[str, Any]) -> bool:
    _, row, simulation = checked
    return log["workspace_id"] == row["workspace_id"] and simulation.matches(log)
