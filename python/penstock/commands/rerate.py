"""CLI command that computes the costs of stored logs again, after a price was wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.commands.connection import open_remote, with_connection_options
from penstock.commands.logs import TIME
from penstock.commands.terminal_output import COLUMN_WIDTH, format_cost, format_number, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.remote import ManagementClient

COUNTS = ("logs", "corrected", "unpriced", "skipped")
COSTS = ("old_cost", "new_cost")
COST_DIGITS = 7


class RatedModel(msgspec.Struct, kw_only=True):
    """Figures of one model, summed over the parts of the time range. Each part is re-rated by one request. Costs are in
    cents.
    """

    ai_org: str
    ai_model: str
    logs: int = 0
    corrected: int = 0
    unpriced: int = 0
    skipped: int = 0
    old_cost: float = 0
    new_cost: float = 0

    def add(self, part: Mapping[str, Any]) -> None:
        """Adds the figures of one part of the time range."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + part[name])
        for name in COSTS:
            setattr(self, name, round(getattr(self, name) + part[name], COST_DIGITS))


@click.command(epilog="Example: penstock rerate --from 2026-11-01 --model gpt-4o --dry-run")
@with_connection_options
@click.option("--from", "start", type=TIME, required=True, help="Start of the range, such as 2026-11-01.")
@click.option("--to", "end", type=TIME, help="End of the range. [default: now]")
@click.option("--model", help="Only these models, separated by commas.")
@click.option("--provider", help="Only these providers, such as openai, separated by commas.")
@click.option("--workspace", help="Only this workspace: id or slug. [default: all workspaces]")
@click.option("--dry-run", is_flag=True, help="Show the costs without changing them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; costs are in cents.")
def rerate(url: str, api_key: str, start: datetime, end: datetime | None, **options: Any) -> None:  # noqa: ANN401 - click says no more
    """Compute the costs of stored logs again with the prices of today.

    Needed after a price was wrong or missing. Corrects the logs whose cost differs; running it twice changes nothing the
    second time.
    """
    body = {
        "time_of_generation_min": start.isoformat(),
        "time_of_generation_max": (end or datetime.now(UTC)).isoformat(),
        "ai_model": options["model"],
        "ai_org_model": _to_filter(options["provider"]),
        "workspace_slug": options["workspace"],
        "dry_run": options["dry_run"],
    }
    models: dict[tuple[str, str], RatedModel] = {}
    is_partial = False
    with open_remote(url, api_key) as remote:
        for part in _read_parts(remote, {name: value for name, value in body.items() if value is not None}):
            is_partial |= part.get("partial", False)
            for row in part["data"]:
                key = row["ai_org"], row["ai_model"]
                models.setdefault(key, RatedModel(ai_org=key[0], ai_model=key[1])).add(row)
    rows = sorted(models.values(), key=lambda item: (-item.logs, item.ai_org, item.ai_model))
    total = RatedModel(ai_org="total", ai_model="")
    for row in rows:
        total.add(msgspec.structs.asdict(row))
    if options["as_json"]:
        sums = {name: getattr(total, name) for name in (*COUNTS, *COSTS)}
        data = [msgspec.structs.asdict(row) for row in rows]
        print_json({"object": "rerating", "dry_run": options["dry_run"], "data": data, "total": sums})
        return
    if not rows:
        click.echo("no logs with tokens in this range")
        return
    heads = ("provider", "model", "logs", "old cost", "new cost", "difference", "corrected")
    print_table(heads, map(_to_row, rows), total=_to_row(total))
    _explain(total, is_dry_run=options["dry_run"], is_partial=is_partial)


def _to_filter(providers: str | None) -> str | None:
    """Returns the filter of all models of these providers."""
    names = [name.strip() for name in (providers or "").split(",") if name.strip()]
    return ",".join(f"{name}__" for name in names) or None


def _read_parts(remote: ManagementClient, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        part = remote.request("POST", "/v1/admin/logs/rerate", body)
        yield part
        if part["next_cursor"] is None:
            return
        body["cursor"] = part["next_cursor"]


def _to_row(item: RatedModel) -> list[str]:
    difference = round(item.new_cost - item.old_cost, COST_DIGITS)
    return [
        item.ai_org or "-",
        item.ai_model[:COLUMN_WIDTH],
        format_number(item.logs),
        format_cost(item.old_cost),
        format_cost(item.new_cost),
        "-" if not difference else f"{'+' if difference > 0 else ''}{format_cost(difference)}",
        format_number(item.corrected),
    ]


def _explain(total: RatedModel, *, is_dry_run: bool, is_partial: bool) -> None:
    click.echo(
        f"dry run: {format_number(total.corrected)} logs would be corrected; nothing was changed"
        if is_dry_run
        else f"{format_number(total.corrected)} logs corrected"
    )
    if total.unpriced:
        click.echo(f"{format_number(total.unpriced)} logs have no price today and keep their cost", err=True)
    if total.skipped:
        click.echo(
            f"{format_number(total.skipped)} logs keep their cost: nothing had to be paid, or their saved provider no longer exists",
            err=True,
        )
    if is_partial:
        click.echo("only the logs of one node were re-rated; run this on each node", err=True)


COMMANDS = (rerate,)
