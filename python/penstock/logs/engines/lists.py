"""Lists of records with a cursor, single records, traces and feedback."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import difflib
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.logs.columns import COLUMNS, COLUMNS_BY_NAME, LISTED_COLUMNS, Column, ColumnType
from penstock.logs.engines.buckets import format_ms, to_ms
from penstock.logs.engines.filters import build_tenant_scope, select_records
from penstock.logs.engines.measures import to_cents
from penstock.logs.engines.sql import SqlFragments, Statement, ValueType
from penstock.logs.query import (
    END_OF_TIME,
    EPOCH,
    FeedbackQuery,
    GetQuery,
    ListQuery,
    LogFilterError,
    LogFilters,
    TraceQuery,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.logs.engines.sql import Row

MAX_TRACE_RECORDS = 1000
MAX_FEEDBACK = 1000
# Maximum depth of the tree of a trace. JSON decoders, including that of the control process, limit the depth of
# documents.
MAX_TREE_DEPTH = 100
UUID_V7 = 7
# Maximum difference between a record's time and the time in its identifier. Clients that send logs may have another
# clock.
ID_TIME_TOLERANCE = dt.timedelta(days=1)
UUID_V7_TIME_SHIFT = 80


def fetch_record_page(fragments: SqlFragments, query: ListQuery) -> dict[str, Any]:
    """Runs one page of a list, by time and identifier."""
    statement = Statement(fragments)
    columns = _choose_columns(query.columns)
    selected = ", ".join(_render_column(fragments, column) for column in columns)
    time, identifier = fragments.milliseconds('r."created_at"'), fragments.id_text('r."id"')
    filters, extra = query.filters, ""
    if query.cursor is not None:
        filters, extra = apply_cursor(statement, filters, query.cursor, is_descending=query.order == "desc")
    records = select_records(fragments, filters, statement, extra)
    direction = "ASC" if query.order == "asc" else "DESC"
    rows = statement.fetch(
        f"SELECT {time} AS at_ms, {identifier} AS id_text, {selected} FROM {records} "
        f'ORDER BY r."created_at" {direction}, id_text {direction} LIMIT {query.limit + 1}'
    )
    has_more = len(rows) > query.limit
    page = rows[: query.limit]
    result: dict[str, Any] = {
        "object": "list",
        "data": [_shape_record(columns, row[2:]) for row in page],
        "has_more": has_more,
        "next_cursor": encode_cursor(page[-1][0], page[-1][1]) if has_more else None,
    }
    if query.with_total:
        statement = Statement(fragments)
        counted = select_records(fragments, query.filters, statement)
        result["total"] = statement.fetch(f"SELECT count(*) FROM {counted}")[0][0]
    return result


def _choose_columns(names: Sequence[str] | None) -> Sequence[Column]:
    if names is None:
        return LISTED_COLUMNS
    for name in names:
        if name not in COLUMNS_BY_NAME:
            near = difflib.get_close_matches(name[:64], COLUMNS_BY_NAME, 1)
            hint = f"; did you mean {near[0]}?" if near else "; docs/log-fields.md lists the columns"
            message = f"columns has {name[:64]!r}, which is not a column{hint}"
            raise LogFilterError(message)
    return [COLUMNS_BY_NAME[name] for name in dict.fromkeys(names)]


def _render_column(fragments: SqlFragments, column: Column) -> str:
    name = f'r."{column.name}"'
    if column.type is ColumnType.TIMESTAMP:
        return fragments.milliseconds(name)
    return fragments.id_text(name) if column.type is ColumnType.UUID else name


def _shape_record(columns: Sequence[Column], row: Sequence[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        column.name: _decode_value(column, value) for column, value in zip(columns, row, strict=True)
    }
    if "cost_nanodollars" in record:
        nanodollars = record["cost_nanodollars"]
        record["cost"] = None if nanodollars is None else to_cents(nanodollars)
    if "id" in record:
        # Clients expect this field, which has no column, because it equals the id.
        record["internal_trace_id"] = record["id"]
    return record


def _decode_value(column: Column, value: object) -> object:
    if isinstance(value, str) and column.type is ColumnType.JSON:
        return msgspec.json.decode(value) if value else None
    if isinstance(value, int) and column.type is ColumnType.TIMESTAMP:
        return format_ms(value)
    return value or {} if column.type is ColumnType.MAP else value


def encode_cursor(milliseconds: int, identifier: str) -> str:
    """Returns the cursor of the page that begins after a record."""
    return base64.urlsafe_b64encode(f"{milliseconds}.{identifier}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[dt.datetime, str]:
    """Returns the time and the id in a cursor, which are those of the last record before the page. Raises
    `LogFilterError`.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        milliseconds, _, identifier = text.partition(".")
        moment = EPOCH + dt.timedelta(milliseconds=int(milliseconds))
        return max(EPOCH, min(moment, END_OF_TIME)), str(uuid.UUID(identifier))
    except (binascii.Error, ValueError, OverflowError):
        message = f"cursor is {cursor[:64]!r}; it must be next_cursor of the page before"
        raise LogFilterError(message) from None


def apply_cursor(
    statement: Statement, all_filters: LogFilters, cursor: str, *, is_descending: bool
) -> tuple[LogFilters, str]:
    """Returns the filters with a time range that begins at the cursor, and a condition that omits earlier records of
    the same millisecond.
    """
    moment, identifier = decode_cursor(cursor)
    field, choose = ("time_of_generation_max", min) if is_descending else ("time_of_generation_min", max)
    bound = getattr(all_filters, field)
    filters = msgspec.structs.replace(all_filters, **{field: moment if bound is None else choose(bound, moment)})
    operator = "<" if is_descending else ">"
    at, text = statement.bind(moment, ValueType.TIMESTAMP), statement.fragments.id_text('r."id"')
    return filters, f'(r."created_at" {operator} {at} OR {text} {operator} {statement.bind(identifier)})'


def run_get(fragments: SqlFragments, query: GetQuery) -> dict[str, Any]:
    """Returns an object with `record`, which is `None` if there is none, its feedback, and the location of its
    bodies.
    """
    try:
        identifier = uuid.UUID(query.id)
    except ValueError:
        return {"record": None}
    row = None
    filters = LogFilters(
        organisation_id=query.organisation_id, workspace_ids=query.workspace_ids, restricted_to=query.restricted_to
    )
    if identifier.version == UUID_V7:
        milliseconds = identifier.int >> UUID_V7_TIME_SHIFT
        if milliseconds < to_ms(END_OF_TIME):
            moment = EPOCH + dt.timedelta(milliseconds=milliseconds)
            near = msgspec.structs.replace(
                filters,
                time_of_generation_min=moment - ID_TIME_TOLERANCE,
                time_of_generation_max=moment + ID_TIME_TOLERANCE,
            )
            row = _fetch_by_id(fragments, near, identifier)
    row = row or _fetch_by_id(fragments, filters, identifier)
    if row is None:
        return {"record": None}
    record = _shape_record(COLUMNS, row)
    key, offset, length = (record.pop(name) for name in ("body_key", "body_offset", "body_length"))
    feedback = run_feedback(
        fragments,
        FeedbackQuery(
            organisation_id=query.organisation_id,
            workspace_ids=[record["workspace_id"]],
            trace_ids=[record["trace_id"] or ""],
        ),
    )
    location = None if key is None else {"key": key, "offset": offset, "length": length}
    return {"record": record, "feedback": feedback["data"], "bodies": location}


def _fetch_by_id(fragments: SqlFragments, filters: LogFilters, identifier: uuid.UUID) -> Row | None:
    statement = Statement(fragments)
    condition = f'r."id" = {statement.bind(identifier, ValueType.UUID)}'
    selected = ", ".join(_render_column(fragments, column) for column in COLUMNS)
    rows = statement.fetch(f"SELECT {selected} FROM {select_records(fragments, filters, statement, condition)} LIMIT 1")
    return rows[0] if rows else None


def run_trace(fragments: SqlFragments, query: TraceQuery) -> dict[str, Any]:
    """Returns the records of a trace as a tree: each has `children`, the records whose parent span is its span."""
    filters = LogFilters(
        organisation_id=query.organisation_id,
        workspace_ids=query.workspace_ids,
        restricted_to=query.restricted_to,
        trace_id=[query.trace_id],
    )
    listed = fetch_record_page(
        fragments, ListQuery(filters=filters, order="asc", limit=MAX_TRACE_RECORDS, columns=_TRACE_COLUMNS)
    )
    return {
        "object": "trace",
        "trace_id": query.trace_id,
        "total": len(listed["data"]),
        "has_more": listed["has_more"],
        "data": build_tree(listed["data"]),
    }


_TRACE_COLUMNS = [column.name for column in LISTED_COLUMNS] + ["attempts", "decisions", "hook_results"]


def build_tree(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Builds the tree of spans. A record becomes a root if its parent is unknown, or if it would be its own
    ancestor. At `MAX_TREE_DEPTH`, all descendants of a record become its children.
    """
    by_span: dict[str, dict[str, Any]] = {}
    for record in records:
        record["children"] = []
        if record["span_id"]:
            by_span.setdefault(record["span_id"], record)
    roots: list[dict[str, Any]] = []
    parents: dict[int, dict[str, Any]] = {}
    for record in records:
        parent = by_span.get(record["parent_span_id"] or "")
        ancestor = parent
        while ancestor is not None and ancestor is not record:
            ancestor = parents.get(id(ancestor))
        if parent is None or ancestor is record:
            roots.append(record)
        else:
            parents[id(record)] = parent
            parent["children"].append(record)
    _flatten_deep_records(roots)
    return roots


def _flatten_deep_records(roots: Sequence[dict[str, Any]]) -> None:
    level = roots
    for _ in range(MAX_TREE_DEPTH - 2):
        level = [child for record in level for child in record["children"]]
    for record in level:
        pending, flat = record["children"], list[dict[str, Any]]()
        while pending:
            flat += pending
            below = [child for descendant in pending for child in descendant["children"]]
            for descendant in pending:
                descendant["children"] = []
            pending = below
        record["children"] = flat


def run_feedback(fragments: SqlFragments, query: FeedbackQuery) -> dict[str, Any]:
    """Lists feedback, the oldest first."""
    statement = Statement(fragments)
    scope = build_tenant_scope(query.organisation_id, query.workspace_ids, statement)
    relation = fragments.feedback(" AND ".join(scope))
    conditions = ["true"]
    if query.ids is not None:
        conditions.append(f"{fragments.id_text('f.id')} IN {statement.bind_list(query.ids)}")
    if query.trace_ids is not None:
        conditions.append(f"f.trace_id IN {statement.bind_list(query.trace_ids)}")
    rows = statement.fetch(
        f"SELECT {fragments.id_text('f.id')} AS id_text, f.workspace_id, f.trace_id, f.value, f.weight, f.metadata, "
        f"{fragments.milliseconds('f.created_at')} AS at_ms FROM {relation} AS f WHERE {' AND '.join(conditions)} "
        f"ORDER BY at_ms, id_text LIMIT {MAX_FEEDBACK}"
    )
    data: list[dict[str, Any]] = [
        {
            "id": identifier,
            "workspace_id": workspace,
            "trace_id": trace,
            # The column is a floating-point number. Clients send integers, but guardrails may have others.
            "value": int(value) if value is not None and value == int(value) else value,
            "weight": weight,
            "metadata": msgspec.json.decode(metadata) if metadata else {},
            "created_at": format_ms(created),
        }
        for identifier, workspace, trace, value, weight, metadata, created in rows
    ]
    return {"object": "list", "total": len(data), "data": data}
