"""CLI commands for limits: list budgets close to their limit, list refused requests, simulate a policy, and reset the
budgets of a user's tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from penstock.commands.connection import open_remote, with_connection_options
from penstock.commands.terminal_output import JSON_OPTION, format_cost, format_number, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.remote import ManagementClient

CENTS_PER_DOLLAR = 100
MAX_ROWS = 1000
PARTIAL_HINT = "these figures are of one node only; each node has a log store of its own"
UNCHECKED_HINT = "not everything could be checked: there are too many values or logs, or the key does not see all logs"
INCOMPLETE_HINT = "there are too many logs; only the first of them count: choose fewer days"


@click.group()
def limits() -> None:
    """Show limits in use, and simulate policies."""


WORKSPACE_OPTION = click.option("--workspace", help="Only this workspace: id or slug. [default: all that the key sees]")
DAYS_OPTION = click.option(
    "--days", type=click.IntRange(1, 90), default=7, show_default=True, help="Days before now whose logs count."
)


@limits.command("near", epilog="Example: penstock limits near --min-used 90")
@with_connection_options
@WORKSPACE_OPTION
@click.option(
    "--min-used",
    type=click.FloatRange(0),
    default=80,
    show_default=True,
    help="Only limits of which this much is used, in percent.",
)
@JSON_OPTION
def list_near_limits(url: str, api_key: str, workspace: str | None, *, min_used: float, as_json: bool) -> None:
    """List the budgets and rate limits that are close to their limit, the most used first. Rates are those of the logs."""
    budgets = _read(url, api_key, "usage", workspace, min_used_percent=min_used, page_size=MAX_ROWS)
    rates = _read(url, api_key, "rates", workspace, min_used_percent=min_used)
    if as_json:
        print_json({"budgets": budgets, "rates": rates})
        return
    if budgets["data"]:
        heads = ("limit of", "group", "used", "reserved", "limit", "%", "status", "reset")
        print_table(heads, map(_usage_row, budgets["data"]))
    else:
        click.echo(f"no budget is used to {min_used:g} % or more")
    if rates["data"]:
        heads = ("limit of", "group", "now", "peak", "limit", "%")
        print_table(heads, map(_rate_row, rates["data"]))
    else:
        click.echo(f"no rate limit was used to {min_used:g} % or more")
    _explain(rates)


@limits.command(epilog="Example: penstock limits unmatched --days 30")
@with_connection_options
@WORKSPACE_OPTION
@DAYS_OPTION
@JSON_OPTION
def unmatched(url: str, api_key: str, workspace: str | None, *, days: int, as_json: bool) -> None:
    """List policies that name no existing object, or that no request of the last days met."""
    response = _read(url, api_key, "unmatched", workspace, days=days)
    if as_json:
        print_json(response)
        return
    if response["data"]:
        print_table(("policy", "kind", "condition", "why"), map(_unmatched_row, response["data"]))
    else:
        click.echo("no policy is known to match nothing")
    if not response["complete"]:
        click.echo(UNCHECKED_HINT, err=True)


@limits.command(epilog="Example: penstock limits refused --days 1")
@with_connection_options
@WORKSPACE_OPTION
@DAYS_OPTION
@JSON_OPTION
def refused(url: str, api_key: str, workspace: str | None, *, days: int, as_json: bool) -> None:
    """List which limits refused requests, and whose, the most refused first."""
    response = _read(url, api_key, "refusals", workspace, days=days)
    if as_json:
        print_json(response)
        return
    if not response["data"]:
        click.echo("no limit refused a request")
    else:
        heads = ("limit of", "group", "API key", "refused", "would be", "last")
        print_table(heads, map(_refusal_row, response["data"]))
    _explain(response)


@limits.command(
    epilog="Example: penstock limits simulate --condition model='*' --by api_key --type requests --rate 60/rpm"
)
@with_connection_options
@WORKSPACE_OPTION
@DAYS_OPTION
@click.option("--policy", help="Id of an existing policy, instead of the following options.")
@click.option("--condition", "conditions", multiple=True, metavar="KEY=VALUE", help="Condition; KEY!=VALUE excludes.")
@click.option("--by", "groups", multiple=True, metavar="KEY", help="Group key, such as api_key or metadata.team.")
@click.option("--type", "type_", type=click.Choice(["cost", "tokens", "requests"]), help="What is counted.")
@click.option("--rate", metavar="VALUE/UNIT", help="Limit of a rate, such as 60/rpm.")
@click.option("--sliding", is_flag=True, help="Sliding windows instead of fixed ones.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), help="Limit of a budget.")
@click.option("--reset", help="Reset of a budget: weekly, monthly or a number of days. [default: never]")
@JSON_OPTION
def simulate(url: str, api_key: str, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - click says no more
    """Show how many requests of the last days a policy would have refused, and of which groups."""
    body = _simulation_body(options)
    with open_remote(url, api_key) as remote:
        response = remote.request("POST", "/v1/limits/simulate", body)
    if as_json:
        print_json(response)
        return
    counts = f"{format_number(response['refused'])} of {format_number(response['matched'])} requests"
    click.echo(f"the policy would have refused {counts} ({response['refused_percent']:g} %)")
    if response["data"]:
        heads = ("group", "requests", "refused", "usage", "peak", "% of limit", "first refused")
        print_table(heads, (_group_row(row, body.get("type", "")) for row in response["data"]))
    if response["groups"] > len(response["data"]):
        click.echo(
            f"{format_number(response['groups'] - len(response['data']))} further groups are not listed", err=True
        )
    _explain(response)


@limits.command(epilog="Example: penstock limits reset ann@example.com")
@click.argument("user")
@with_connection_options
@JSON_OPTION
def reset(url: str, api_key: str, user: str, *, as_json: bool) -> None:
    """Reset the budgets that tokens of a user carry, in their current periods."""
    with open_remote(url, api_key) as remote:
        budgets = [row for row in _list_usage(remote) if row["kind"] == "token" and row["owner_name"] == user]
        for row in budgets:
            remote.request("PUT", f"/v1/limits/tokens/{row['owner_id']}/reset")
            if not as_json:
                click.echo(f"reset {_amount(row['type'], row['current_usage'])} {row['type']} of {user}")
    if not budgets:
        message = (
            f"no token of {user!r} has used a budget in its current period; see: penstock limits near --min-used 0"
        )
        raise click.ClickException(message)
    if as_json:
        print_json({"reset": budgets})


def _list_usage(remote: ManagementClient) -> Iterator[dict[str, Any]]:
    """Yields the usage of all budgets, page by page."""
    page = 0
    while True:
        query = urlencode({"page_size": MAX_ROWS, "current_page": page})
        response = remote.request("GET", f"/v1/limits/usage?{query}")
        yield from response["data"]
        page += 1
        if page * MAX_ROWS >= response["total"]:
            return


def _read(url: str, api_key: str, name: str, workspace: str | None, **query: object) -> dict[str, Any]:
    values = {**query, **({"workspace_id": workspace} if workspace else {})}
    with open_remote(url, api_key) as remote:
        return remote.request("GET", f"/v1/limits/{name}?{urlencode(values)}")


def _simulation_body(options: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"days": options["days"]}
    if options["workspace"]:
        body["workspace_id"] = options["workspace"]
    if options["policy"]:
        return {**body, "policy_id": options["policy"]}
    body["conditions"] = [_parse_condition(text) for text in options["conditions"]] or [{"key": "model", "value": "*"}]
    body["group_by"] = [{"key": key} for key in options["groups"] or ("workspace_id",)]
    if options["type_"]:
        body["type"] = options["type_"]
    if options["rate"]:
        value, _, unit = options["rate"].partition("/")
        if not value.isdecimal() or unit not in {"rpm", "rph", "rpd", "rpw"}:
            message = f"{options['rate']!r} is not allowed: expected a number and rpm, rph, rpd or rpw, such as 60/rpm"
            raise click.BadParameter(message, param_hint="--rate")
        body |= {"value": int(value), "unit": unit, "window": "sliding" if options["sliding"] else "fixed"}
    if options["budget"] is not None:
        body["credit_limit"] = options["budget"]
    if reset := options["reset"]:
        if not reset.isdecimal() and reset not in {"weekly", "monthly"}:
            message = f"{reset!r} is not allowed: expected weekly, monthly or a number of days"
            raise click.BadParameter(message, param_hint="--reset")
        body |= {"periodic_reset_days": int(reset)} if reset.isdecimal() else {"periodic_reset": reset}
    return body


def _parse_condition(text: str) -> dict[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.rstrip("!") or not value:
        message = f"{text!r} is not allowed: expected KEY=VALUE or KEY!=VALUE, such as metadata.team=red"
        raise click.BadParameter(message, param_hint="--condition")
    excluded = {"excludes": True} if key.endswith("!") else {}
    return {"key": key.removesuffix("!"), "value": value, **excluded}


def _amount(kind: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format_cost(value * CENTS_PER_DOLLAR) if kind == "cost" else format_number(value)


def _usage_row(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['kind']} {row['owner_name']}",
        row["value_key"] or "-",
        _amount(row["type"], row["current_usage"]),
        _amount(row["type"], row["reserved"]),
        _amount(row["type"], row["credit_limit"]),
        format_number(row["used_percent"]),
        row["status"],
        (row["next_usage_reset_at"] or "never")[:10],
    ]


def _rate_row(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['kind']} {row['owner_name']}",
        row["value_key"] or "-",
        format_number(row["current_usage"]),
        format_number(row["peak_usage"]),
        f"{format_number(row['value'])} {row['type']} {row['unit']}",
        format_number(row["used_percent"]),
    ]


def _unmatched_row(row: Mapping[str, Any]) -> list[str]:
    return [row["policy_name"] or row["policy_id"], row["kind"], row["path"] or "-", row["message"]]


def _refusal_row(row: Mapping[str, Any]) -> list[str]:
    owner = f"{row['kind']} {row['owner_name']}" if row["kind"] else row["limit_id"]
    key = row["api_key_name"] or row["api_key_id"] or "-"
    counts = [format_number(row[name]) for name in ("refused", "would_reject")]
    return [owner, row["value_key"] or "-", key, *counts, row["last_seen"] or "-"]


def _group_row(row: Mapping[str, Any], kind: str) -> list[str]:
    return [
        row["value_key"] or "-",
        format_number(row["requests"]),
        format_number(row["refused"]),
        _amount(kind, row["usage"]),
        _amount(kind, row["peak"]),
        format_number(row["peak_percent"]),
        row["first_refused_at"] or "-",
    ]


def _explain(simulation: Mapping[str, Any]) -> None:
    if not simulation["complete"]:
        click.echo(INCOMPLETE_HINT, err=True)
    if simulation.get("partial"):
        click.echo(PARTIAL_HINT, err=True)


COMMANDS = (limits,)
