"""Reads the columns of requests on which limits depend: caller, target and usage. Used to simulate policies, and to
list rejected requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.engines.filters import select_records
from penstock.logs.engines.lists import apply_cursor, encode_cursor
from penstock.logs.engines.sql import SqlFragments, Statement

if TYPE_CHECKING:
    from penstock.logs.query import DemandQuery

DEMAND_COLUMNS = (
    *(
        "workspace_id",
        "workspace_slug",
        "user_id",
        "api_key_id",
        "api_key_name",
        "virtual_key",
        "provider_id",
        "ai_org",
        "ai_model",
    ),
    *("config", "config_id", "prompt_slug", "prompt_id", "operation", "total_units", "cost_nanodollars"),
)
# Condition for requests that clients sent to the gateway, and that were not refused before a target was chosen.
IS_ADMITTED = """coalesce(r."source", 'gateway') = 'gateway' AND coalesce(r."outcome", '') <> 'refused'"""
# Condition for records with rejections by limits. These are limits that refused the request or an attempt, or that
# would have in a dry run.
IS_LIMITED = """(r."limits" LIKE '%"rejections"%')"""


def run_demand(fragments: SqlFragments, query: DemandQuery) -> dict[str, Any]:
    """Runs one page of requests. Rows hold the time in milliseconds, `DEMAND_COLUMNS`, `metadata` with the chosen keys,
    and with `only_limited` the column `limits`.
    """
    statement = Statement(fragments)
    filters, conditions = query.filters, [IS_LIMITED if query.only_limited else IS_ADMITTED]
    if query.cursor is not None:
        filters, extra = apply_cursor(statement, filters, query.cursor, is_descending=False)
        conditions.append(extra)
    time, identifier = fragments.milliseconds('r."created_at"'), fragments.id_text('r."id"')
    names = (*DEMAND_COLUMNS, "limits") if query.only_limited else DEMAND_COLUMNS
    columns = [f'r."{name}"' for name in names]
    columns += [fragments.map_value('r."metadata"', statement.bind(key)) for key in query.metadata_keys]
    records = select_records(fragments, filters, statement, " AND ".join(conditions))
    rows = statement.fetch(
        f"SELECT {time} AS at_ms, {identifier} AS id_text, {', '.join(columns)} FROM {records} "
        f'ORDER BY r."created_at", id_text LIMIT {query.limit + 1}'
    )
    page = rows[: query.limit]
    return {
        "object": "list",
        "data": [_shape_row(names, query.metadata_keys, at, values) for at, _, *values in page],
        "next_cursor": encode_cursor(page[-1][0], page[-1][1]) if len(rows) > query.limit else None,
    }


def _shape_row(names: tuple[str, ...], metadata_keys: list[str], at_ms: int, values: list[Any]) -> dict[str, Any]:
    shaped: dict[str, Any] = dict(zip(names, values, strict=False))
    pairs = zip(metadata_keys, values[len(names) :], strict=True)
    metadata = {key: value for key, value in pairs if value is not None}
    if shaped.get("limits"):
        shaped["limits"] = msgspec.Raw(shaped["limits"].encode())
    return {"at": at_ms, **shaped, "metadata": metadata}
