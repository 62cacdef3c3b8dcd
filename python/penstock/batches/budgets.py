"""Budgets that count a batch which a provider runs. The data plane does not see its lines. So the control process checks
the budgets when the batch is created, and charges each line's record to them when the batch ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sqlalchemy import select

from penstock.access.default_metadata import merge_metadata
from penstock.errors import BudgetSpentError, UsageNotBoundedError
from penstock.integrations.limits import list_accesses
from penstock.limits.rules import LimitOwner, embedded_rules, integration_counter_id, usage_policy_rule
from penstock.limits.simulation import group_value, is_condition_met
from penstock.limits.usage import USAGE_COLUMNS
from penstock.store.limit_tables import limit_usage, usage_limits_policies
from penstock.store.tables import api_keys, providers, workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.authorization import Caller
    from penstock.limits.rules import JsonObject
    from penstock.store.tenant import Row

OPERATIONS = {
    "/v1/chat/completions": "chatComplete",
    "/v1/completions": "complete",
    "/v1/embeddings": "embed",
    "/v1/responses": "createModelResponse",
}
OWNER_TITLES = {"api_key": "API key"}


class BatchSubject(NamedTuple):
    """Properties of a batch by which limits select requests. `virtual_key` is the slug of the saved provider."""

    workspace_id: str
    api_key_id: str | None
    integration_id: str | None
    provider: str
    virtual_key: str | None
    endpoint: str
    # Metadata of the request that created the batch, with that of its key and workspace.
    metadata: Mapping[str, str]


class BatchBudget(NamedTuple):
    """A budget, in the form of the data plane, with the conditions and groups of its policy."""

    rule: JsonObject
    conditions: Sequence[Mapping[str, Any]] = ()
    group_by: Sequence[str] = ()

    @property
    def depends_on_model(self) -> bool:
        """True if the budget selects or groups requests by their model, which each line names."""
        return "model" in {*(condition["key"] for condition in self.conditions), *self.group_by}


class BatchBudgets:
    """Budgets of the caller and the target of one batch."""

    def __init__(self, budgets: Sequence[BatchBudget], log: Mapping[str, Any]) -> None:
        """Stores the budgets. `log` has the properties of the batch, named like the columns of the log store."""
        self._budgets, self._log = budgets, log

    @classmethod
    async def load(cls, connection: AsyncConnection, subject: BatchSubject) -> BatchBudgets:
        """Reads the budgets that may count the batch."""
        workspace = await _fetch_row(connection, workspaces, workspaces.c.id == subject.workspace_id)
        key = await _fetch_row(connection, api_keys, api_keys.c.id == subject.api_key_id)
        is_target = (providers.c.workspace_id == subject.workspace_id, providers.c.slug == subject.virtual_key)
        target = await _fetch_row(connection, providers, *is_target, providers.c.status == "active")
        budgets = [
            *_embedded_budgets("workspace", workspace, "slug"),
            *_embedded_budgets("api_key", key, "name"),
            *_embedded_budgets("provider", target, "slug"),
        ]
        for access in await list_accesses(connection, providers.c.workspace_id == subject.workspace_id):
            if access.integration_id == subject.integration_id:
                owner = LimitOwner("integration", access.integration_id, access.slug)
                counter = integration_counter_id(access.integration_id, access.workspace_id)
                budgets += _usage_budgets(owner, access.limits, counter)
        own = usage_limits_policies.c
        active = select(usage_limits_policies).where(own.workspace_id == subject.workspace_id, own.status == "active")
        for row in (await connection.execute(active)).mappings():
            rule, groups = usage_policy_rule(cast("Row", row)), [part["key"] for part in row["group_by"]]
            budgets.append(BatchBudget(rule, row["conditions"], groups))
        log = {
            "api_key_id": subject.api_key_id,
            "api_key_name": key and key["name"],
            "workspace_id": subject.workspace_id,
            "workspace_slug": workspace and workspace["slug"],
            "virtual_key": subject.virtual_key,
            "provider_id": target and target["id"],
            "ai_org": subject.provider,
            "operation": OPERATIONS.get(subject.endpoint),
            "metadata": subject.metadata,
            **dict.fromkeys(("config", "config_id", "prompt_slug", "prompt_id", "ai_model")),
        }
        return cls(budgets, log)

    async def check(self, connection: AsyncConnection) -> None:
        """Raises an error if a hard budget may count a line of the batch, or if nothing is left of a budget."""
        for budget in self._budgets:
            if budget.rule["dry_run"]:
                continue
            conditions = [condition for condition in budget.conditions if condition["key"] != "model"]
            if not all(is_condition_met(condition, self._log) for condition in conditions):
                continue
            rule, owner = budget.rule, budget.rule["owner"]
            name = f"{OWNER_TITLES.get(owner['kind'], owner['kind'])} `{owner['slug']}`"
            if rule["enforcement"] == "hard":
                message = (
                    f"the hard budget of {name} rejects batches that a provider runs, because their highest usage is "
                    "not known before; use completion_window 'immediate', or set `enforcement` to `soft`"
                )
                raise UsageNotBoundedError(message)
            if budget.depends_on_model:
                continue
            column = limit_usage.c[USAGE_COLUMNS[rule["type"]]]
            used = await connection.scalar(
                select(column).where(
                    limit_usage.c.limit_id == rule["id"],
                    limit_usage.c.period_start == rule["period"]["start"],
                    limit_usage.c.value_key == group_value(budget.group_by, self._log),
                )
            )
            if (used or 0) >= rule["limit"]:
                message = f"usage limit of {name} reached; an administrator can raise or reset it"
                raise BudgetSpentError(message)

    def list_uses(self, model: str) -> list[JsonObject]:
        """Returns the budgets that count a line with this model, as records list them."""
        log = {**self._log, "ai_model": model}
        return [
            {
                "id": budget.rule["id"],
                "group": group_value(budget.group_by, log),
                "period_start": budget.rule["period"]["start"],
                "type": budget.rule["type"],
            }
            for budget in self._budgets
            if all(is_condition_met(condition, log) for condition in budget.conditions)
        ]


async def load_request_metadata(
    connection: AsyncConnection, caller: Caller, workspace_id: str, header: str | None
) -> dict[str, str]:
    """Returns the metadata of a caller's request with this header, as the data plane merges it for other requests."""
    key = await _fetch_row(connection, api_keys, api_keys.c.id == caller.id) if caller.by == "key" else None
    workspace = await _fetch_row(connection, workspaces, workspaces.c.id == workspace_id)
    own = key["defaults"].get("metadata") if key else caller.metadata
    return merge_metadata(header, own, workspace and workspace["defaults"].get("metadata"))


def _embedded_budgets(kind: str, row: Row | None, slug_column: str) -> list[BatchBudget]:
    return [] if row is None else _usage_budgets(LimitOwner(kind, row["id"], row[slug_column]), row)


def _usage_budgets(owner: LimitOwner, row: Mapping[str, Any], counter_id: str | None = None) -> list[BatchBudget]:
    rules = embedded_rules(owner, row, counter_id)
    return [BatchBudget(rule) for rule in rules if rule["kind"] == "usage"]


async def _fetch_row(connection: AsyncConnection, table: Table, *conditions: ColumnElement[bool]) -> Row | None:
    row = (await connection.execute(select(table).where(*conditions))).mappings().first()
    return None if row is None else cast("Row", row)
