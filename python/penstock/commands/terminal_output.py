"""Output of commands for people: tables, figures, bars and sparklines of block characters, and JSON for programs."""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BAR_WIDTH, COLUMN_WIDTH, SPARKLINE_WIDTH = 40, 48, 72
BLOCKS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"
NUMBER_CHARACTERS = frozenset("0123456789.,-+$% ")
CENTS_PER_DOLLAR = 100
WIDE = frozenset("WF")
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def format_number(value: float) -> str:
    """Formats a figure with at most four digits after the point."""
    return f"{value:,.4f}".rstrip("0").rstrip(".") if value % 1 else f"{value:,.0f}"


def format_cost(cents: float) -> str:
    """Formats cents as dollars: two digits after the point, and more for less than a dollar."""
    dollars = cents / CENTS_PER_DOLLAR
    sign, dollars = "-" if dollars < 0 else "", abs(dollars)
    if dollars >= 1 or not dollars:
        return f"{sign}${dollars:,.2f}"
    # Shows at least two significant digits. The smallest possible cost is a billionth of a dollar.
    for digits in range(4, 10):
        if dollars >= 10 ** (1 - digits):
            return f"{sign}${dollars:.{digits}f}"
    return f"{sign}${dollars:.9f}"


def draw_bar(value: float, largest: float, width: int = BAR_WIDTH) -> str:
    """Draws a bar with eighths of a character; a value above zero is always visible."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    return BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8].strip()


def draw_sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """Draws one character for each value. If there are more values than `width`, a character stands for the largest of
    several. A space means zero.
    """
    count = min(len(values), width)
    bounds = [len(values) * at // count for at in range(count + 1)] if count else []
    columns = [max(values[start:end]) for start, end in itertools.pairwise(bounds)]
    largest = max(columns, default=0)
    return "".join(
        SPARKS[min(len(SPARKS) - 1, int(value / largest * len(SPARKS)))] if value > 0 else " " for value in columns
    ).rstrip()


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, total: Sequence[str] | None = None) -> None:
    """Prints a table. Columns of numbers are aligned to the right. `total` is a last row below a line."""
    lines = [[clean_text(cell) for cell in row] for row in rows]
    every = [*lines, *([list(total)] if total else [])]
    widths = [max(_width(line[at]) for line in [heads, *every]) for at in range(len(heads))]
    numeric = [
        bool(every)
        and any(line[at] for line in every)
        and all(NUMBER_CHARACTERS.issuperset(line[at]) for line in every)
        for at in range(len(heads))
    ]
    _print_line(heads, widths, numeric)
    for line in lines:
        _print_line(line, widths, numeric)
    if total:
        click.echo("─" * (sum(widths) + 2 * (len(widths) - 1)))
        _print_line(total, widths, numeric)


def _print_line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> None:
    padded = [
        " " * (width - _width(cell)) + cell if is_number else cell + " " * (width - _width(cell))
        for cell, width, is_number in zip(cells, widths, numeric, strict=True)
    ]
    click.echo("  ".join(padded).rstrip())


def clean_text(text: str) -> str:
    """Replaces control characters, on which a terminal would act. Clients choose the names of models, users and
    metadata.
    """
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "�" for letter in text)


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(item) in WIDE else 1 for item in text)


def print_result(text: str, fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the result of a command: `text`, or with `--json` its `fields`."""
    if as_json:
        print_json(dict(fields))
    else:
        click.echo(text)


def print_json(content: object) -> None:
    """Prints JSON with indentation."""
    click.echo(msgspec.json.format(msgspec.json.encode(cast("Any", content)), indent=2).decode())
