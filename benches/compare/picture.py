"""Chart of a run: the cost of every gateway in each workload as a multiple of nginx's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.compare import figures, paired
from benches.compare.figures import METRICS, PENSTOCK, Metric

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from benches.compare.result import Result, Sample

COLOURS = ("#7f8c8d", "#95a5a6", "#c29d59", "#8e7cc3", "#b5651d", "#5b8c5a", "#44546a")
PENSTOCK_COLOUR = "#d1495b"


def draw_chart(result: Result, path: Path) -> bool:
    """Writes the chart and returns true. Returns false without matplotlib or data; the table has all values anyway."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - needed only for the chart
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - needed only for charts

    samples = figures.add_latency_overhead(result)
    displayed = [figure for figure in METRICS if figure.baseline == "nginx" and _has_nginx_value(samples, figure)]
    if not displayed:
        return False
    peers = [peer for peer in result.versions if peer not in {"direct", "nginx"}]
    drawn, axes = plt.subplots(figsize=(9, 1.2 + 0.2 * len(displayed) * (len(peers) + 1)))
    _draw_bars(axes, samples, displayed, peers)
    _format_axes(axes, displayed, result)
    drawn.tight_layout()
    drawn.savefig(path, dpi=150)
    plt.close(drawn)
    return True


def _has_nginx_value(samples: list[Sample], figure: Metric) -> bool:
    return bool(paired.values_by_round(samples, figure.workload, "nginx", figure.value_key))


def _draw_bars(axes: Axes, samples: list[Sample], displayed: list[Metric], peers: list[str]) -> None:
    height = 0.8 / max(len(peers), 1)
    for position, peer in enumerate(peers):
        spreads = [paired.ratio_spread(samples, f.workload, f.value_key, (peer, "nginx")) for f in displayed]
        rows = [(i, spread) for i, spread in enumerate(spreads) if spread and spread.median > 0]
        colour = PENSTOCK_COLOUR if peer == PENSTOCK else COLOURS[position % len(COLOURS)]
        axes.barh(
            [i + (position - (len(peers) - 1) / 2) * height for i, _ in rows],
            [spread.median for _, spread in rows],
            height=height * 0.9,
            xerr=_error_bars([spread for _, spread in rows]),
            color=colour,
            error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
            label=peer,
        )


def _error_bars(spreads: list[paired.Spread]) -> list[list[float]]:
    below = [spread.median - max(spread.low, spread.median * 0.01) for spread in spreads]
    return [[max(0.0, b) for b in below], [spread.high - spread.median for spread in spreads]]


def _format_axes(axes: Axes, displayed: list[Metric], result: Result) -> None:
    axes.axvline(1, color="#333333", linewidth=1)
    for i, figure in enumerate(displayed):
        if figure.max_value is not None:
            axes.plot([figure.max_value] * 2, [i - 0.45, i + 0.45], color="black", ls=":", lw=1.4)
    axes.set_xscale("log")
    axes.set_yticks(range(len(displayed)), [f"{f.title}\n({f.unit})" for f in displayed], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("multiple of nginx in the same round (dotted: target)")
    axes.set_title(f"{result.at}, {result.rounds} rounds", fontsize=9)
    axes.legend(fontsize=8, loc="best")
