"""Renders what locust wrote as a Markdown table and a picture."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Rows = list[dict[str, str]]
TOTAL = "Aggregated"
COLUMNS = {
    "Request Count": "requests",
    "Failure Count": "failures",
    "Requests/s": "per second",
    "50%": "p50 ms",
    "95%": "p95 ms",
    "99%": "p99 ms",
    "100%": "max ms",
}


def rows(folder: Path, scenario: str, kind: str) -> Rows:
    """One of locust's CSV files; none when there is no such file."""
    path = folder / f"{scenario}_{kind}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def requests(folder: Path, scenario: str) -> int:
    """How many requests were sent: events within streams are none."""
    return sum(int(row["Request Count"]) for row in rows(folder, scenario, "stats") if row["Type"] not in ("", "EVENT"))


def failures(folder: Path, scenario: str) -> int:
    """How many answers were not as promised."""
    return sum(int(row["Failure Count"]) for row in rows(folder, scenario, "stats") if row["Name"] != TOTAL)


def write(folder: Path, scenarios: list[str], title: str) -> str:
    """Put the table and the picture into the folder and return the table."""
    text = "\n\n".join([f"# {title}", *(section(folder, scenario) for scenario in scenarios)]) + "\n"
    (folder / "report.md").write_text(text)
    draw(folder, scenarios)
    return text


def section(folder: Path, scenario: str) -> str:
    """A scenario's table, and below it what failed and how often."""
    known = [row for row in rows(folder, scenario, "stats") if row["Name"] != TOTAL]
    head = ["request", *COLUMNS.values()]
    lines = [[row["Name"], *(_number(row[column]) for column in COLUMNS)] for row in known]
    failed = [f"- {row['Name']}: {row['Error']} ({row['Occurrences']}×)" for row in rows(folder, scenario, "failures")]
    return "\n\n".join([f"## {scenario}", _table(head, lines), *(["\n".join(failed)] if failed else [])])


def _number(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def draw(folder: Path, scenarios: list[str]) -> None:
    """Requests a second and p95 over time, a row for each scenario."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and reading results needs none of it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    drawn, grid = plt.subplots(len(scenarios), 2, figsize=(10, 2.6 * len(scenarios)), squeeze=False)
    for (rate, delay), scenario in zip(grid, scenarios, strict=True):
        history = [row for row in rows(folder, scenario, "stats_history") if row["Name"] == TOTAL]
        _line(rate, history, "Requests/s", f"{scenario}: requests/s")
        _line(delay, history, "95%", f"{scenario}: p95 ms")
    drawn.tight_layout()
    drawn.savefig(folder / "report.png", dpi=120)
    plt.close(drawn)


def _line(axes: Axes, history: Rows, column: str, title: str) -> None:
    known = [(int(row["Timestamp"]), float(row[column])) for row in history if row[column] not in ("", "N/A")]
    start = known[0][0] if known else 0
    axes.plot([at - start for at, _ in known], [value for _, value in known], color="#d1495b")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("s", fontsize=8)
    axes.set_ylim(bottom=0)
