"""CLI commands for the logs of a running gateway: list, search, show, trace and follow."""

from __future__ import annotations

import sys
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import click
import msgspec

from penstock.commands.connection import open_remote, quote_path_segment, with_connection_options
from penstock.commands.terminal_output import (
    COLUMN_WIDTH,
    clean_text,
    format_cost,
    format_number,
    print_json,
    print_table,
)
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PERIOD_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LOG_COLUMNS = ("status", "provider", "model", "tokens", "cost", "ms", "id")
# Fields that `penstock logs show` prints. They have these names in the `metrics` of a log.
SHOWN_FIELDS = (
    *("ai_org", "ai_model", "virtual_key", "config", "mode", "last_used_option_index", "cache_status"),
    *("retry_success_count", "req_units", "res_units", "total_units", "response_time", "upstream_response_time"),
    *("gateway_processing_time", "workspace_slug", "api_key_id", "trace_id", "span_id", "span_name", "source"),
)
# Headings of the table of attempts, by the field of an attempt that each column shows.
ATTEMPT_COLUMNS = {
    "target": "target",
    "provider": "provider",
    "virtual_key": "saved provider",
    "model": "model",
    "host": "host",
    "status": "status",
    "duration": "ms",
    "error": "error",
}
# Maximum number of characters of a body that are shown without `--json`.
MAX_BODY_CHARS = 4000
MAX_MINUTES = 10_000


def parse_period(text: str) -> timedelta:
    """Parses a period such as `30m`, `24h`, `7d` or `4w`."""
    number, unit = text[:-1], text[-1:]
    if unit not in PERIOD_UNITS or not (number.isascii() and number.isdigit() and 0 < int(number) <= MAX_MINUTES):
        raise click.BadParameter(f"{text!r} is not allowed; expected a number and m, h, d or w, such as 24h")
    return timedelta(**{PERIOD_UNITS[unit]: int(number)})


class TimeType(click.ParamType[datetime]):
    """Option type for a date or a time. It is in UTC unless it contains another zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:  # noqa: ANN401 - click says no more
        """Parses ISO 8601."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not allowed; expected 2026-11-20 or 2026-11-20T12:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class ZoneType(click.ParamType[zoneinfo.ZoneInfo]):
    """Option type for a time zone."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> zoneinfo.ZoneInfo:  # noqa: ANN401 - click says no more
        """Returns the time zone with this name."""
        if isinstance(value, zoneinfo.ZoneInfo):
            return value
        try:
            return zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"{value!r} is not allowed; expected a name such as Europe/Berlin", param, ctx)


TIME, ZONE = TimeType(), ZoneType()
TIME_ZONE_OPTION = click.option(
    "--time-zone", type=ZONE, default="UTC", show_default=True, help="Time zone of the times that are shown."
)


def with_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select logs."""
    options = [
        click.option("--since", default="24h", show_default=True, help="Period until now, such as 30m, 24h, 7d or 4w."),
        click.option("--from", "start", type=TIME, help="Start of the range, such as 2026-11-01; replaces --since."),
        click.option("--to", "end", type=TIME, help="End of the range. [default: now]"),
        click.option("--workspace", help="Workspace: id or slug. [default: all that the key may see]"),
        click.option("--status", help="Only these status codes, separated by commas, such as 429,5xx."),
        click.option("--model", help="Only these models, separated by commas."),
        click.option("--key", help="Only these API keys: ids separated by commas."),
        click.option("--outcome", help="Only requests that ended like this, such as refused,aborted,killed."),
        click.option("--rescued", help="Only successful requests that needed one of these: retry,fallback."),
        click.option("--guardrail", help="Only requests with a result of these guardrails, separated by commas."),
        click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only this metadata; may be repeated."),
        TIME_ZONE_OPTION,
        click.option("--json", "as_json", is_flag=True, help="Print the response of the API."),
    ]
    for option in reversed(options):
        command = option(command)
    return with_connection_options(command)


def build_query(options: Mapping[str, Any], **more: object) -> str:
    """Returns the query string for the options that all commands share."""
    metadata: dict[str, str] = {}
    for pair in options["metadata"]:
        name, sign, value = pair.partition("=")
        if not sign:
            raise click.BadParameter(f"{pair!r} is not allowed; expected KEY=VALUE", param_hint="--metadata")
        metadata[name] = value
    start = options["start"] or (options["end"] or datetime.now(UTC)) - parse_period(options["since"])
    values = {
        "workspace_slug": options["workspace"] or "*",
        "time_of_generation_min": start.isoformat(timespec="seconds"),
        "time_of_generation_max": options["end"] and options["end"].isoformat(timespec="seconds"),
        "status_code": options["status"],
        "ai_model": options["model"],
        "api_key_ids": options["key"],
        "outcome": options["outcome"],
        "rescued": options["rescued"],
        "guardrails": options["guardrail"],
        "metadata": msgspec.json.encode(metadata).decode() if metadata else None,
        **more,
    }
    return urlencode({name: value for name, value in values.items() if value is not None})


def format_time(text: str, zone: zoneinfo.ZoneInfo) -> str:
    """Formats a time of the API to the second in a time zone, such as `2026-11-20 12:00:00`."""
    return datetime.fromisoformat(text).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


@click.group()
def logs() -> None:
    """List, search, show and follow request logs."""


@logs.command("list", epilog="Example: penstock logs list --since 1h --status 500")
@with_filter_options
@click.option("-q", "--search", help="Only requests whose stored request or response contains these words.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of logs.")
def list_logs(url: str, api_key: str, search: str | None, limit: int, **options: Any) -> None:  # noqa: ANN401 - see above
    """List logs, newest first."""
    _list_logs(url, api_key, search, limit, options)


@logs.command("search", epilog="Example: penstock logs search heron --since 24h")
@click.argument("words", nargs=-1, required=True)
@with_filter_options
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of logs.")
def search_logs(url: str, api_key: str, words: tuple[str, ...], limit: int, **options: Any) -> None:  # noqa: ANN401 - see above
    """List logs whose stored request or response contains all of these words, newest first."""
    _list_logs(url, api_key, " ".join(words), limit, options)


def _list_logs(url: str, api_key: str, search: str | None, limit: int, options: Mapping[str, Any]) -> None:
    query = build_query(options, q=search, page_size=limit)
    with open_remote(url, api_key) as remote:
        response = remote.request("GET", f"/v1/logs?{query}")
    if options["as_json"]:
        print_json(response)
        return
    zone: zoneinfo.ZoneInfo = options["time_zone"]
    print_table((f"time ({zone.key})", *LOG_COLUMNS), [_log_row(log, zone) for log in response["data"]])
    if not response["data"]:
        click.echo("no logs match; hint: --since 7d", err=True)
    if response["has_more"]:
        click.echo(f"there are more than {limit}; hint: --limit, or a shorter --since", err=True)


@logs.command("show", epilog="Example: penstock logs show 0199aaaa-0000-7000-8000-000000000001")
@with_connection_options
@click.argument("log_id")
@TIME_ZONE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the response of the API, with whole bodies.")
def show_log(url: str, api_key: str, log_id: str, *, time_zone: zoneinfo.ZoneInfo, as_json: bool) -> None:
    """Show one log with its attempts, request and response."""
    with open_remote(url, api_key) as remote:
        log = remote.request("GET", f"/v1/logs/{quote_path_segment(log_id)}")
    if as_json:
        print_json(log)
        return
    metrics, details = log["metrics"], log["details"]
    cost = metrics["cost"]
    outcome = f"{metrics['response_status_code'] or '-'} {details.get('outcome') or ''}".strip()
    fields = {
        "id": metrics["id"],
        f"time ({time_zone.key})": format_time(metrics["created_at"], time_zone),
        "request": f"{metrics['request_method']} {metrics['request_url']}",
        "outcome": f"{outcome}, {details['error']}" if details.get("error") else outcome,
        "cost": _describe_cost(cost, metrics["total_units"]),
        **{name: metrics.get(name) for name in SHOWN_FIELDS},
    }
    metadata = dict(zip(metrics["metadata.key"], metrics["metadata.value"], strict=True))
    fields |= {f"metadata.{name}": value for name, value in metadata.items()}
    present = {name: value for name, value in fields.items() if value not in {None, ""}}
    width = max(map(len, present))
    for name, value in present.items():
        text = format_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        click.echo(clean_text(f"{name:{width}}  {text}"))
    _show_attempts(details.get("attempts") or [])
    _show_decisions(details.get("decisions") or [])
    for title, body in (("request", log["request"]["body"]), ("response", log["response"]["body"])):
        _show_body(title, body, details.get("body"))


def _describe_cost(cost: float | None, tokens: int | None) -> str | None:
    if cost is not None:
        return format_cost(cost)
    return "no price is known" if tokens else None


def _show_attempts(attempts: Sequence[Mapping[str, Any]]) -> None:
    if attempts:
        click.echo("\nattempts")
        rows = [
            ["-" if row.get(name) is None else str(row[name]) for name in ATTEMPT_COLUMNS]
            for row in ({**attempt, "error": attempt.get("error") or attempt.get("reason")} for attempt in attempts)
        ]
        print_table(tuple(ATTEMPT_COLUMNS.values()), rows)


def _show_decisions(steps: Sequence[Mapping[str, Any]]) -> None:
    """Prints the routing decisions of a request, one step per line: its name, its path in the config, and its other
    fields.
    """
    if steps:
        click.echo("\ndecisions")
        rows = [
            [
                str(step.get("step", "-")),
                str(step.get("at", "-")),
                ", ".join(f"{name} {value}" for name, value in step.items() if name not in {"step", "at"}),
            ]
            for step in steps
        ]
        print_table(("step", "at", "details"), rows)


def _show_body(title: str, body: object, state: str | None) -> None:
    if body is None:
        click.echo(f"\n{title}: not stored{f' ({state})' if state else ''}")
        return
    text = body if isinstance(body, str) else msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
    click.echo(f"\n{title}")
    for line in text[:MAX_BODY_CHARS].splitlines():
        click.echo(clean_text(line))
    if len(text) > MAX_BODY_CHARS:
        click.echo(f"… {len(text) - MAX_BODY_CHARS:,} more characters; hint: --json")


@logs.command("trace", epilog="Example: penstock logs trace order-17")
@with_connection_options
@click.argument("trace_id")
@TIME_ZONE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the response of the API.")
def show_trace(url: str, api_key: str, trace_id: str, *, time_zone: zoneinfo.ZoneInfo, as_json: bool) -> None:
    """Show the requests of a trace as a tree of spans."""
    with open_remote(url, api_key) as remote:
        trace = remote.request("GET", f"/v1/traces/{quote_path_segment(trace_id)}")
    if as_json:
        print_json(trace)
        return
    rows = [
        [f"{indent}{log['span_name'] or log['span_id'] or '-'}", *_log_row(log, time_zone)]
        for indent, log in _iter_tree_lines(trace["data"])
    ]
    print_table(("span", f"time ({time_zone.key})", *LOG_COLUMNS), rows)


def _iter_tree_lines(nodes: Sequence[Mapping[str, Any]], depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for node in nodes:
        yield "└ ".rjust(2 * depth) if depth else "", node
        yield from _iter_tree_lines(cast("Sequence[Mapping[str, Any]]", node["children"]), depth + 1)


@logs.command("tail", epilog="Example: penstock logs tail --status 500")
@with_filter_options
def tail_logs(url: str, api_key: str, **options: Any) -> None:  # noqa: ANN401 - as above
    """Print new logs as they arrive, until interrupted."""
    query = build_query({**options, "since": "1m", "start": None, "end": None})
    with open_remote(url, api_key) as remote:
        for name, content in remote.iter_events(f"/v1/logs/tail?{query}"):
            if name == "dropped":
                click.echo(f"{content['count']} logs were left out: more than 100 per second", err=True)
            elif name == "error":
                raise SettingsError(f"the stream ended: {content['message']}")
            elif name == "log":
                if options["as_json"]:
                    click.echo(msgspec.json.encode(content).decode())
                else:
                    click.echo(_format_tail_line(_log_row(content, options["time_zone"])))
                sys.stdout.flush()


def _format_tail_line(row: Sequence[str]) -> str:
    """Returns a line whose columns have fixed widths, because the widths of later lines are unknown."""
    time, status, provider, model, tokens, cost, response_time, log_id = map(clean_text, row)
    return f"{time}  {status:>8}  {provider:12}  {model:24}  {tokens:>9}  {cost:>11}  {response_time:>8}  {log_id}"


def _log_row(log: Mapping[str, Any], zone: zoneinfo.ZoneInfo) -> list[str]:
    cost, response_time = log["cost"], log["response_time"]
    return [
        format_time(log["created_at"], zone),
        str(log["response_status_code"] or log["outcome"] or ""),
        log["ai_org"] or "-",
        (log["ai_model"] or "-")[:COLUMN_WIDTH],
        "-" if log["total_units"] is None else format_number(log["total_units"]),
        "-" if cost is None else format_cost(cost),
        "-" if response_time is None else format_number(round(response_time)),
        log["id"],
    ]


COMMANDS = (logs,)
