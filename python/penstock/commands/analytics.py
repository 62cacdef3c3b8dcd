"""CLI commands for the analytics of a running gateway: graphs over time, groups, and models without a price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, get_args

import click
import msgspec

from penstock.commands.connection import open_remote, quote_path_segment
from penstock.commands.logs import build_query, format_time, with_filter_options
from penstock.commands.terminal_output import (
    COLUMN_WIDTH,
    draw_bar,
    draw_sparkline,
    format_cost,
    format_number,
    print_json,
    print_table,
)
from penstock.logs.query import Rollup

if TYPE_CHECKING:
    import zoneinfo
    from collections.abc import Mapping, Sequence

# Path of each group in the API, by its name on the command line. A name such as `metadata.team` groups by a metadata
# key.
GROUPS = {
    "model": "model",
    "key": "api_key",
    "user": "users",
    "provider": "provider",
    "service": "ai_service",
    "config": "config",
    "workspace": "workspace",
    "prompt": "prompt",
    "prompt-version": "prompt-versions",
    "status": "status_code",
    "guardrail": "guardrail",
    "guardrail-check": "guardrail_check",
}
# Field of a row with the value of its group, for groups whose field has another name.
GROUP_KEYS = {"users": "user", "prompt-versions": "prompt_version"}
# Columns that only the groups of guardrails have.
VERDICTS = ("passed", "failed", "denied", "would_deny", "skipped", "errors")
METADATA_PREFIX = "metadata."
# Maximum number of consecutive empty buckets that are shown singly. Longer periods without requests are one line.
MAX_EMPTY_ROWS = 2
DEFAULT_GROUPS, DEFAULT_TIMES = 20, 60
# Figures of at least this size are shown without decimals.
MIN_ROUNDED = 100
PARTIAL_HINT = "these figures are of one node only; each node has a log store of its own"
UNPRICED_HINT = "{} requests have no price, and their cost is not included; hint: penstock analytics unpriced"


class Measure(msgspec.Struct, frozen=True):
    """What `penstock analytics` shows for a measure. `graph` is its graph and `field` the figure that is drawn.
    `columns` are the columns of its groups, of which the first is drawn. With `is_lowest_first`, the group with the
    lowest figure comes first.
    """

    graph: str
    field: str | None
    unit: str = ""
    columns: tuple[str, ...] = ()
    is_lowest_first: bool = False

    @property
    def head(self) -> str:
        """Heading of the column with the bars."""
        name = SHORT_NAMES.get(self.field or "", self.field)
        return f"{name} ({self.unit})" if self.unit else name or ""


MEASURES = {
    "requests": Measure("requests", "total", "requests", ("requests", "success_rate")),
    "cost": Measure("cost", "total", "", ("cost", "requests")),
    "tokens": Measure("tokens", "total", "tokens", ("total_tokens", "avg_input_tokens", "avg_output_tokens")),
    "latency": Measure("latency", "p90", "ms", ("p95_latency", "avg_latency", "p99_latency", "requests")),
    "users": Measure("users", "total", "users"),
    "users-requests": Measure("users/requests", "avg", "requests per user"),
    "errors": Measure("errors", "total", "errors", ("error_count", "requests", "success_rate")),
    "errors-rate": Measure("errors/rate", "rate", "percent", ("success_rate", "error_count", "requests"), True),
    "errors-stacks": Measure("errors/stacks", None),
    "errors-status-codes": Measure("errors/status-codes", "count", "errors"),
    "requests-rescued": Measure("requests/rescued", None),
    "cache-hit-rate": Measure("cache/hit-rate", "rate", "percent", ("cache_hit_rate", "requests")),
    "cache-latency": Measure("cache/latency", "avg", "ms"),
    "feedbacks": Measure("feedbacks", "total", "feedbacks"),
    "feedbacks-scores": Measure("feedbacks/scores", "total", "feedbacks"),
    "feedbacks-weighted": Measure("feedbacks/weighted", "avg", "value × weight"),
    "feedbacks-ai-models": Measure("feedbacks/ai-models", "avg_weighted_feedback", "value × weight"),
    "guardrails": Measure("guardrails", "total", "results"),
    "guardrails-latency": Measure("guardrails/latency", "p90", "ms"),
}
CACHE_SUMMARY, UNPRICED = "cache", "unpriced"
# Graph whose figures are in cents.
COST_GRAPH = "cost"
# Figures in cents in other graphs and groups.
COST_FIGURES = frozenset({"cost", "cumulative_simple_cache_savings", "cumulative_semantic_cache_savings"})
PERCENTAGES = frozenset({"rate", "success_rate", "cache_hit_rate"})
# Shorter headings for figures with long names in the API.
SHORT_NAMES = {
    "cumulative_simple_cache_savings": "saved",
    "cumulative_semantic_cache_savings": "saved_semantic",
    "avg_weighted_feedback": "avg",
    "response_status_code": "status",
    "status_code": "status",
    "retry_success_count": "retry",
    "ai_org": "provider",
    "ai_model": "model",
    "total_units": "tokens",
    "unpriced_requests": "unpriced",
}


HELP = f"""Show figures of requests, over time or by group.

MEASURE is one of: {", ".join(MEASURES)}. Besides, `{CACHE_SUMMARY}` compares cache hits with other requests, and
`{UNPRICED}` lists models without a price.

These have groups, too: {", ".join(name for name, measure in MEASURES.items() if measure.columns)}.

Costs are in US dollars. With --json, they are in cents.
"""


@click.command(help=HELP, epilog="Example: penstock analytics cost --by model --since 7d")
@click.argument("measure", type=click.Choice([*MEASURES, CACHE_SUMMARY, UNPRICED]), metavar="MEASURE")
@with_filter_options
@click.option("--by", "group", help=f"Group by {', '.join(GROUPS)} or metadata.KEY. [default: over time]")
@click.option(
    "--rollup", type=click.Choice(get_args(Rollup)), help="Width of the time buckets. [default: follows from the range]"
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    help=f"Number of groups, or of times. [default: {DEFAULT_GROUPS} groups, the last {DEFAULT_TIMES} times]",
)
def analytics(
    url: str,
    api_key: str,
    measure: str,
    group: str | None,
    rollup: Rollup | None,
    limit: int | None,
    **options: Any,  # noqa: ANN401 - click says no more
) -> None:
    """Show figures of requests, over time or by group."""
    chosen = MEASURES.get(measure)
    zone: zoneinfo.ZoneInfo = options["time_zone"]
    if rollup and (group or not chosen):
        raise click.UsageError("--rollup is for graphs over time; leave it out with --by, cache and unpriced")
    if group:
        path, key = _find_group(measure, group)
        direction = "asc" if chosen and chosen.is_lowest_first else "desc"
        columns = chosen.columns if chosen else ("requests",)
        path += "?" + build_query(
            options,
            columns=",".join(columns),
            order_by=columns[0],
            order_by_type=direction,
            page_size=limit or DEFAULT_GROUPS,
        )
    elif chosen:
        key, path = "", f"graphs/{chosen.graph}?{build_query(options, time_zone=zone.key, rollup=rollup)}"
    else:
        key, path = "", f"{UNPRICED if measure == UNPRICED else 'summary/cache'}?{build_query(options)}"
    with open_remote(url, api_key) as remote:
        response = remote.request("GET", f"/v1/analytics/{path}")
    if options["as_json"]:
        print_json(response)
        return
    if chosen and group:
        _show_groups(response, chosen, group, key)
    elif chosen:
        _show_graph(response, chosen, zone, limit or DEFAULT_TIMES)
    elif measure == UNPRICED:
        _show_unpriced(response, zone)
    else:
        click.echo(_format_summary(response["summary"], ()))
    if response.get("partial"):
        click.echo(PARTIAL_HINT, err=True)


def _find_group(measure: str, group: str) -> tuple[str, str]:
    """Returns the API path of a group, and the name of the field that has the group's value in each row."""
    if measure not in MEASURES or not MEASURES[measure].columns:
        allowed = ", ".join(name for name, measure in MEASURES.items() if measure.columns)
        raise click.BadParameter(f"{measure} has no groups; allowed are {allowed}", param_hint="--by")
    if group.startswith(METADATA_PREFIX):
        return f"groups/metadata/{quote_path_segment(group.removeprefix(METADATA_PREFIX))}", "metadata_value"
    if group in GROUPS:
        name = GROUPS[group]
        return f"groups/{name}", GROUP_KEYS.get(name, name)
    raise click.BadParameter(
        f"{group!r} is not allowed; expected {', '.join(GROUPS)} or metadata.KEY", param_hint="--by"
    )


def _show_graph(response: Mapping[str, Any], measure: Measure, zone: zoneinfo.ZoneInfo, limit: int) -> None:
    """Shows a graph: its summary, a line, and a table in which long periods without requests are one row."""
    costs = frozenset({"total", "avg"}) if measure.graph == COST_GRAPH else COST_FIGURES
    points: list[dict[str, Any]] = [_flatten_point(point) for point in response["data_points"]]
    if summary := response["summary"]:
        click.echo(_format_summary(summary, costs))
    if not points:
        click.echo("nothing in this range; hint: --since 7d", err=True)
        return
    values = [float(point.get(measure.field, 0) if measure.field else _sum_point(point)) for point in points]
    is_over_time = "timestamp" in points[0]
    if is_over_time and any(values):
        click.echo(draw_sparkline(values))
    # A point has a field for each value that was observed in it, so the points may have different fields.
    names = list(dict.fromkeys(name for point in points for name in point if name != "timestamp"))
    names.sort(key=lambda name: (" " not in name, name if " " in name else ""))
    largest = max(values)
    rows: list[list[str]] = []
    empty: list[list[str]] = []
    for point, value in zip(points, values, strict=True):
        start = [format_time(point["timestamp"], zone)] if is_over_time else []
        cells = [_format_figure(point.get(name), name in costs, name) for name in names]
        row = [*start, *cells, draw_bar(value, largest)]
        if is_over_time and not any(isinstance(point.get(name), int | float) and point[name] for name in names):
            empty.append(row)
            continue
        rows += [*_collapse(empty), row]
        empty = []
    rows += _collapse(empty)
    if is_over_time and len(rows) > limit:
        click.echo(f"{len(rows) - limit} earlier rows are not shown; hint: --limit", err=True)
        rows = rows[-limit:]
    heads = [f"time ({zone.key})"] if is_over_time else []
    print_table([*heads, *(SHORT_NAMES.get(name, name) for name in names), measure.head], rows)
    if unpriced := response["summary"].get("unpriced"):
        click.echo(UNPRICED_HINT.format(format_number(unpriced)), err=True)


def _collapse(rows: Sequence[list[str]]) -> list[list[str]]:
    if len(rows) <= MAX_EMPTY_ROWS:
        return list(rows)
    return [[f"… {len(rows)} times nothing", *[""] * (len(rows[0]) - 1)]]


def _flatten_point(point: Mapping[str, Any]) -> dict[str, Any]:
    """Turns lists such as `[{"response_status_code": 429, "count": 2}]` into figures such as `{"429": 2}`."""
    flat: dict[str, Any] = {}
    for name, value in point.items():
        if isinstance(value, list):
            for item in cast("list[dict[str, Any]]", value):
                (key, label), (_, count) = item.items()
                flat[f"{SHORT_NAMES.get(key, key)} {label}"] = count
        else:
            flat[name] = value
    return flat


def _sum_point(point: Mapping[str, Any]) -> float:
    return sum(value for value in point.values() if isinstance(value, int | float))


def _show_groups(response: Mapping[str, Any], measure: Measure, group: str, key: str) -> None:
    rows: list[dict[str, Any]] = response["data"]
    names = [*measure.columns, *(["unpriced_requests"] if "cost" in measure.columns else [])]
    names += [name for name in VERDICTS if rows and name in rows[0]]
    values = [float(row[measure.columns[0]] or 0) for row in rows]
    largest = max(values, default=0)
    table = [
        [
            str(row[key])[:COLUMN_WIDTH],
            *(_format_group_figure(row, name) for name in names),
            draw_bar(value, largest),
        ]
        for row, value in zip(rows, values, strict=True)
    ]
    print_table([group, *(SHORT_NAMES.get(name, name) for name in names), ""], table)
    if not rows:
        click.echo(f"no requests with a {group} in this range; hint: --since 7d", err=True)
    if response["total"] > len(rows):
        click.echo(f"{response['total'] - len(rows)} more groups; hint: --limit", err=True)
    if unpriced := sum(int(row.get("unpriced_requests") or 0) for row in rows):
        click.echo(UNPRICED_HINT.format(format_number(unpriced)), err=True)


def _show_unpriced(response: Mapping[str, Any], zone: zoneinfo.ZoneInfo) -> None:
    rows = [
        [
            row["ai_org"] or "-",
            (row["ai_model"] or "-")[:COLUMN_WIDTH],
            format_number(row["requests"]),
            format_number(row["total_units"]),
            format_time(row["first_seen"], zone),
            format_time(row["last_seen"], zone),
        ]
        for row in response["data"]
    ]
    if not rows:
        click.echo("every model that was used has a price")
        return
    print_table(("provider", "model", "requests", "tokens", f"first ({zone.key})", "last"), rows)
    click.echo("hint: add prices, then penstock rerate --from …", err=True)


def _format_group_figure(row: Mapping[str, Any], name: str) -> str:
    # The API returns the figures of some groups as strings.
    value = float(row[name]) if isinstance(row.get(name), str) else row.get(name)
    if name == "cost" and not value and row.get("unpriced_requests"):
        return "-"
    return _format_figure(value, name in COST_FIGURES, name)


def _format_figure(value: Any, is_cost: bool, name: str) -> str:  # noqa: ANN401 - as above
    if value is None or isinstance(value, str):
        return value or ""
    if is_cost:
        return format_cost(value)
    if name in PERCENTAGES:
        return f"{format_number(round(value, 1))}%"
    return format_number(round(value) if abs(value) >= MIN_ROUNDED else value)


def _format_summary(summary: Mapping[str, Any], costs: frozenset[str] | tuple[str, ...]) -> str:
    return "  ".join(
        f"{SHORT_NAMES.get(name, name)}: {_format_figure(value, name in costs, name)}"
        for name, value in summary.items()
    )


COMMANDS = (analytics,)
