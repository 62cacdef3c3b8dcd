"""Limits in the form that the data plane enforces: those of policies, and those of workspaces, keys, providers and
integrations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from penstock.limit_fields import DEFAULT_USAGE_TYPE, list_limits
from penstock.limits.periods import current_period, to_limit
from penstock.limits.policies import condition_values
from penstock.limits.usage import NANODOLLARS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JsonObject = dict[str, Any]
WINDOW_UNITS = {"rps": "second", "rpm": "minute", "rph": "hour", "rpd": "day", "rpw": "week"}
# Limit of a budget that has only an alert threshold: the largest number that the data plane can count.
MAX_LIMIT = 2**63 - 1


class LimitOwner(NamedTuple):
    """What a limit belongs to: `policy`, `workspace`, `api_key`, `provider`, `integration` or `token`. Error messages name
    it by its slug.
    """

    kind: str
    id: str
    slug: str

    def to_json(self) -> JsonObject:
        """Returns the owner as JSON for the snapshot of the data plane."""
        return self._asdict()


def usage_policy_rule(row: Mapping[str, Any]) -> JsonObject:
    """Returns the rule of an active usage limits policy."""
    return {
        **_policy_fields(row, "usage"),
        **_usage_fields(to_limit(row), row),
        "enforcement": row["enforcement"],
        "dry_run": row["dry_run"],
    }


def rate_policy_rule(row: Mapping[str, Any]) -> JsonObject:
    """Returns the rule of an active rate limits policy."""
    return {
        **_policy_fields(row, "rate"),
        **_rate_fields(row, is_sliding=row["window"] == "sliding"),
        "dry_run": row["dry_run"],
    }


def embedded_rules(owner: LimitOwner, row: Mapping[str, Any], counter_id: str | None = None) -> Iterator[JsonObject]:
    """Yields the rules of the limits in a row: of a workspace, a key, a provider, or a workspace's access to an
    integration. `counter_id` identifies the counters of the limits; the default is the owner's id.
    """
    name = f"{owner.kind}:{counter_id or owner.id}"
    for limit in list_limits(row["usage_limits"]):
        fields = _usage_fields(limit, row)
        rule = {"id": f"{name}:usage:{fields['type']}:", "owner": owner.to_json(), "kind": "usage"}
        yield {**rule, **fields, "enforcement": "soft", "dry_run": False}
    for limit in list_limits(row["rate_limits"]):
        rule = {"id": f"{name}:rate:{limit['type']}:{limit['unit']}", "owner": owner.to_json(), "kind": "rate"}
        yield {**rule, **_rate_fields(limit, is_sliding=False), "dry_run": False}


def integration_counter_id(integration_id: str, workspace_id: str) -> str:
    """Returns the id of the counters of a workspace's use of an integration. It is the same whether the workspace has
    limits of its own there or those of all workspaces.
    """
    return str(uuid5(UUID(integration_id), workspace_id))


def _policy_fields(row: Mapping[str, Any], kind: str) -> JsonObject:
    conditions = [
        {
            "key": condition["key"],
            "values": condition_values(condition["value"]),
            "excludes": condition.get("excludes", False),
        }
        for condition in row["conditions"]
    ]
    return {
        "id": row["id"],
        "owner": LimitOwner("policy", row["id"], row["name"] or row["id"]).to_json(),
        "kind": kind,
        "conditions": conditions,
        "group_by": [part["key"] for part in row["group_by"]],
    }


def _usage_fields(limit: Mapping[str, Any], row: Mapping[str, Any]) -> JsonObject:
    kind = limit.get("type") or DEFAULT_USAGE_TYPE
    most, alert = limit.get("credit_limit"), limit.get("alert_threshold")
    return {
        "type": kind,
        "limit": MAX_LIMIT if most is None else to_units(kind, most),
        "period": current_period(limit, row)._asdict(),
        "alert": None if alert is None else to_units(kind, alert),
    }


def _rate_fields(limit: Mapping[str, Any], *, is_sliding: bool) -> JsonObject:
    window = {"unit": WINDOW_UNITS[limit["unit"]], "sliding": is_sliding}
    return {"type": limit["type"], "limit": min(limit["value"], MAX_LIMIT), "window": window}


def to_units(kind: str, amount: float) -> int:
    """Converts an amount to the counted unit: nano-dollars, tokens or requests."""
    return min(round(amount * NANODOLLARS) if kind == "cost" else int(amount), MAX_LIMIT)
