"""Queries about costs: the usage of records, from which their costs can be computed again, and models without a
price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.engines.buckets import format_ms
from penstock.logs.engines.filters import select_records
from penstock.logs.engines.lists import apply_cursor, encode_cursor
from penstock.logs.engines.measures import HIT, UNPRICED
from penstock.logs.engines.sql import SqlFragments, Statement

if TYPE_CHECKING:
    from penstock.logs.query import UnpricedQuery, UsageQuery

MAX_MODELS = 1000
USAGE_COLUMNS = (
    *("workspace_id", "virtual_key", "integration_id", "source", "ai_org", "ai_model", "req_units", "res_units"),
    *("usage", "cost_nanodollars", "price_version", "limits"),
)
# Condition for records whose cost depends on usage. Cache hits are excluded, because they cost nothing.
IS_USED = f'(r."total_units" IS NOT NULL OR r."usage" IS NOT NULL) AND NOT coalesce({HIT}, false)'


def run_usage(fragments: SqlFragments, query: UsageQuery) -> dict[str, Any]:
    """Runs one page of records with usage. Rows hold the time in milliseconds, the id, and `USAGE_COLUMNS`."""
    statement = Statement(fragments)
    filters, conditions = query.filters, [IS_USED]
    if query.cursor is not None:
        filters, extra = apply_cursor(statement, filters, query.cursor, is_descending=False)
        conditions.append(extra)
    time, identifier = fragments.milliseconds('r."created_at"'), fragments.id_text('r."id"')
    records = select_records(fragments, filters, statement, " AND ".join(conditions))
    columns = ", ".join(f'r."{name}"' for name in USAGE_COLUMNS)
    rows = statement.fetch(
        f"SELECT {time} AS at_ms, {identifier} AS id_text, {columns} FROM {records} "
        f'ORDER BY r."created_at", id_text LIMIT {query.limit + 1}'
    )
    page = rows[: query.limit]
    return {
        "object": "list",
        "data": [{"at": at, "id": key, **_shape_usage(values)} for at, key, *values in page],
        "next_cursor": encode_cursor(page[-1][0], page[-1][1]) if len(rows) > query.limit else None,
    }


def _shape_usage(values: list[Any]) -> dict[str, Any]:
    shaped = dict(zip(USAGE_COLUMNS, values, strict=True))
    for name in ("usage", "limits"):
        shaped[name] = msgspec.Raw(shaped[name].encode()) if shaped[name] else None
    return shaped


def run_unpriced(fragments: SqlFragments, query: UnpricedQuery) -> dict[str, Any]:
    """Lists the models that used tokens or images without a known price, the most used first."""
    statement = Statement(fragments)
    records = select_records(fragments, query.filters, statement, UNPRICED)
    created = fragments.milliseconds('r."created_at"')
    rows = statement.fetch(
        f'SELECT r."ai_org" AS provider, r."ai_model" AS model, count(*) AS n, sum(r."total_units"), min({created}), '
        f"max({created}) FROM {records} GROUP BY provider, model ORDER BY n DESC, provider, model LIMIT {MAX_MODELS}"
    )
    data: list[dict[str, Any]] = [
        {
            "ai_org": provider,
            "ai_model": model,
            "requests": requests,
            "total_units": units or 0,
            "first_seen": format_ms(first),
            "last_seen": format_ms(last),
        }
        for provider, model, requests, units, first, last in rows
    ]
    return {"object": "list", "total": len(data), "requests": sum(row["requests"] for row in data), "data": data}
