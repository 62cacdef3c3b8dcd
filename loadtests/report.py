"""Report of the load scenarios as Markdown tables and charts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLUMNS = {
    "requests": "requests",
    "failures": "failures",
    "per_second": "per second",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "max_ms": "max ms",
}
COLOURS = {"p99_ms": "#f2c6cb", "p95_ms": "#e58f99", "p50_ms": "#d1495b"}


@dataclass(frozen=True)
class ScenarioResult:
    """Results of one scenario."""

    scenario: str
    requests: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    per_second: list[list[float]]

    @property
    def sent_count(self) -> int:
        return sum(row["requests"] for row in self.requests)

    @property
    def failed_count(self) -> int:
        return sum(row["failures"] for row in self.requests)


def read_result(path: Path) -> ScenarioResult:
    """Reads the results that the scenario wrote at its end. Returns an empty result if there is no file."""
    actual = json.loads(path.read_text()) if path.is_file() else {"requests": [], "errors": [], "per_second": []}
    return ScenarioResult(path.stem, **actual)


def write_report(folder: Path, title: str, received: list[ScenarioResult]) -> str:
    """Writes tables and charts into the folder and returns the tables."""
    text = "\n\n".join([f"# {title}", *map(render_section, received)]) + "\n"
    (folder / "report.md").write_text(text)
    draw_charts(folder / "report.png", received)
    return text


def render_section(received: ScenarioResult) -> str:
    """Renders a scenario's table, followed by its errors with their counts."""
    lines = [[row["name"], *(_format_number(row[column]) for column in COLUMNS)] for row in received.requests]
    errors = "\n".join(f"- {error['name']}, {error['count']} times: {error['error']}" for error in received.errors)
    parts = [f"## {received.scenario}", _render_table(["request", *COLUMNS.values()], lines), errors]
    return "\n\n".join(part for part in parts if part)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _render_table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def draw_charts(path: Path, received: list[ScenarioResult]) -> None:
    """Draws for each scenario the requests per second over time and the response times of each request kind."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and reading results needs none of it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - needed only for charts

    heights = [max(2.0, 0.8 + 0.22 * len(item.requests)) for item in received]
    size = (11, sum(heights))
    drawn, grid = plt.subplots(len(received), 2, figsize=size, squeeze=False, height_ratios=heights)
    for (rate, delay), item in zip(grid, received, strict=True):
        _draw_rate(rate, item)
        _draw_latencies(delay, item)
    drawn.tight_layout()
    drawn.savefig(path, dpi=120)
    plt.close(drawn)


def _draw_rate(axes: Axes, received: ScenarioResult) -> None:
    axes.plot(
        [at for at, _ in received.per_second], [count for _, count in received.per_second], color=COLOURS["p50_ms"]
    )
    axes.set_title(f"{received.scenario}: requests a second", fontsize=9)
    axes.set_xlabel("s", fontsize=8)
    axes.set_ylim(bottom=0)


def _draw_latencies(axes: Axes, received: ScenarioResult) -> None:
    """Draws the percentiles of each request as overlaid bars, the longest at the back."""
    names = [row["name"] for row in received.requests]
    for column, colour in COLOURS.items():
        axes.barh(names, [row[column] for row in received.requests], color=colour, label=COLUMNS[column])
    axes.set_title(f"{received.scenario}: ms to the last byte", fontsize=9)
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.legend(fontsize=7)
