"""Report of a run as a Markdown table and a chart. All numbers come from the run's JSON file."""

from __future__ import annotations

import sys
from pathlib import Path

from benches.compare import figures, paired, picture
from benches.compare.figures import METRICS, Metric, Verdict
from benches.compare.result import Result, Sample, load_result

MAX_FOREIGN_SHARE = 0.05
DASH = "–"
DISTURBED_MARK = " †"
TIMES_SIGN = "×"

DisturbedShares = dict[str, dict[str, float]]


def render_report(result: Result) -> str:
    """Returns the complete report as Markdown."""
    samples = figures.add_latency_overhead(result)
    parts = [
        _render_header(result),
        _render_targets(figures.evaluate_targets(result), _disturbed_shares(samples)),
        _render_all_peers(samples, list(result.versions)),
        _render_notes("Left out", [f"{name}: {reason}" for name, reason in result.left_out.items()]),
        _render_notes("Invalid", sorted({_format_invalid(sample) for sample in samples if sample.invalid_reason})),
        _render_notes("Warnings", [*result.warnings, *_disturbance_warnings(_disturbed_shares(samples))]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_number(value: float) -> str:
    """Formats a number with three significant digits and thousands separators."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _render_header(result: Result) -> str:
    versions = ", ".join(f"{name} {version}".strip() for name, version in result.versions.items())
    machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    kind = "quick run" if result.quick else "run"
    return (
        f"# Comparison of {result.at}\n\n"
        f"One {kind}, {result.rounds} interleaved rounds. {versions}. Machine: {machine}.\n"
        "Values are medians, with the lowest and highest round in brackets."
    )


def _render_targets(verdicts: list[Verdict], disturbed: DisturbedShares) -> str:
    rows = [
        [
            verdict.metric.title,
            verdict.metric.unit,
            format_target(verdict.metric),
            _format_spread(verdict.measured, TIMES_SIGN if verdict.metric.baseline else "")
            + _disturbance_mark(disturbed, verdict.metric),
            format_number(verdict.penstock_value.median) if verdict.penstock_value else DASH,
            _format_outcome(verdict),
        ]
        for verdict in verdicts
    ]
    return "## Targets\n\n" + render_table(["work", "unit", "target", "reached", "penstock", ""], rows)


def format_target(figure: Metric) -> str:
    """Formats the limit of a target."""
    if figure.max_value is None:
        return DASH
    if figure.baseline:
        return f"≤ {figure.max_value:g} {TIMES_SIGN} {figure.baseline}"
    return f"≤ {figure.max_value:g} {figure.unit}"


def _format_outcome(verdict: Verdict) -> str:
    return {True: "met", False: "**missed**", None: "not measured"}[verdict.is_met]


def _format_spread(spread: paired.Spread | None, sign: str) -> str:
    if spread is None:
        return DASH
    low, high = format_number(spread.low), format_number(spread.high)
    return f"{format_number(spread.median)}{sign} [{low}{DASH}{high}]"


def _render_all_peers(samples: list[Sample], peers: list[str]) -> str:
    return f"## Every gateway ({TIMES_SIGN} nginx)\n\n" + render_peer_table(samples, peers, _distinct_metrics())


def render_peer_table(samples: list[Sample], peers: list[str], metrics: list[Metric]) -> str:
    """Returns a table with a row for each metric that was measured, and a column for each gateway."""
    disturbed = _disturbed_shares(samples)
    rows = [
        [figure.title, figure.unit, *(_render_cell(samples, figure, peer, disturbed) for peer in peers)]
        for figure in metrics
    ]
    measured = [row for row in rows if any(cell != DASH for cell in row[2:])]
    return render_table(["work", "unit", *peers], measured)


def _distinct_metrics() -> list[Metric]:
    """Returns the metrics without duplicates; a value may be used by two targets."""
    return list({(figure.workload, figure.value_key): figure for figure in reversed(METRICS)}.values())[::-1]


def _render_cell(samples: list[Sample], figure: Metric, peer: str, disturbed: DisturbedShares) -> str:
    value = paired.compute_spread(paired.values_by_round(samples, figure.workload, peer, figure.value_key).values())
    if value is None:
        return DASH
    ratio = paired.ratio_spread(samples, figure.workload, figure.value_key, (peer, "nginx"))
    suffix = "" if ratio is None or peer == "nginx" else f" ({format_number(ratio.median)}{TIMES_SIGN})"
    return format_number(value.median) + suffix + (DISTURBED_MARK if peer in disturbed.get(figure.workload, {}) else "")


def _format_invalid(sample: Sample) -> str:
    return f"{sample.peer}, {sample.workload}: {sample.invalid_reason}"


def _disturbance_mark(disturbed: DisturbedShares, figure: Metric) -> str:
    """Returns `DISTURBED_MARK` if other processes disturbed either value of a ratio; else an empty string."""
    return DISTURBED_MARK if {figures.PENSTOCK, figure.baseline} & disturbed.get(figure.workload, {}).keys() else ""


def _disturbed_shares(samples: list[Sample]) -> DisturbedShares:
    """Returns the highest share of the core that other processes used, by workload and gateway. Contains only shares
    above the limit.
    """
    worst: DisturbedShares = {}
    for sample in samples:
        share = sample.values.get("foreign", 0.0)
        if share > MAX_FOREIGN_SHARE and sample.peer != "direct":
            by_peer = worst.setdefault(sample.workload, {})
            by_peer[sample.peer] = max(share, by_peer.get(sample.peer, 0.0))
    return worst


def _disturbance_warnings(disturbed: DisturbedShares) -> list[str]:
    return [
        f"{DISTURBED_MARK.strip()} {workload}: others used the gateway's core: {', '.join(f'{peer} {share:.0%}' for peer, share in by_peer.items())}"
        for workload, by_peer in disturbed.items()
    ]


def _render_notes(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def render_table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table whose source is aligned as well."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, rule, *rows]
    )


def write_report(result: Result, source: Path) -> str:
    """Writes table and chart next to the JSON file and returns the table."""
    text = render_report(result)
    source.with_suffix(".md").write_text(text)
    picture.draw_chart(result, source.with_suffix(".png"))
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(write_report(load_result(Path(name)), Path(name)))
