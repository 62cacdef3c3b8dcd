"""Report of a run as a Markdown table and a chart. All numbers come from the run's JSON file."""

from __future__ import annotations

import sys
from pathlib import Path

from benches.compare import figures, paired, picture
from benches.compare.figures import FIGURES, Figure, Verdict
from benches.compare.result import Result, Sample, load

FOREIGN_AT_MOST = 0.05
NOTHING = "–"
DISTURBED = " †"
TIMES = "×"

Disturbed = dict[str, dict[str, float]]


def render(result: Result) -> str:
    """Returns the complete report as Markdown."""
    known = figures.samples(result)
    parts = [
        _title(result),
        _targets(figures.verdicts(result), _disturbed(known)),
        _everyone(known, list(result.versions)),
        _notes("Left out", [f"{name}: {why}" for name, why in result.left_out.items()]),
        _notes("Invalid", sorted({_invalid(sample) for sample in known if sample.invalid})),
        _notes("Warnings", [*result.warnings, *_strangers(_disturbed(known))]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value: float) -> str:
    """Formats a number with three significant digits and thousands separators."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _title(result: Result) -> str:
    versions = ", ".join(f"{name} {version}".strip() for name, version in result.versions.items())
    machine = ", ".join(f"{name} {what}" for name, what in result.machine.items())
    kind = "quick run" if result.quick else "run"
    return (
        f"# Comparison of {result.at}\n\n"
        f"One {kind}, {result.rounds} interleaved rounds. {versions}. Machine: {machine}.\n"
        "Values are medians, with the lowest and highest round in brackets."
    )


def _targets(verdicts: list[Verdict], disturbed: Disturbed) -> str:
    rows = [
        [
            verdict.figure.title,
            verdict.figure.unit,
            limit(verdict.figure),
            _spread(verdict.reached, TIMES if verdict.figure.against else "") + _mark(disturbed, verdict.figure),
            number(verdict.ours.median) if verdict.ours else NOTHING,
            _word(verdict),
        ]
        for verdict in verdicts
    ]
    return "## Targets\n\n" + table(["work", "unit", "target", "reached", "penstock", ""], rows)


def limit(figure: Figure) -> str:
    """Formats the limit of a target."""
    if figure.at_most is None:
        return NOTHING
    if figure.against:
        return f"≤ {figure.at_most:g} {TIMES} {figure.against}"
    return f"≤ {figure.at_most:g} {figure.unit}"


def _word(verdict: Verdict) -> str:
    return {True: "met", False: "**missed**", None: "not measured"}[verdict.met]


def _spread(spread: paired.Spread | None, sign: str) -> str:
    if spread is None:
        return NOTHING
    low, high = number(spread.low), number(spread.high)
    return f"{number(spread.median)}{sign} [{low}{NOTHING}{high}]"


def _everyone(known: list[Sample], peers: list[str]) -> str:
    disturbed = _disturbed(known)
    rows = [
        [figure.title, figure.unit, *(_cell(known, figure, peer, disturbed) for peer in peers)]
        for figure in _distinct()
    ]
    measured = [row for row in rows if any(cell != NOTHING for cell in row[2:])]
    return f"## Every gateway ({TIMES} nginx)\n\n" + table(["work", "unit", *peers], measured)


def _distinct() -> list[Figure]:
    """Returns the metrics without duplicates; a value may be used by two targets."""
    return list({(figure.work, figure.value): figure for figure in reversed(FIGURES)}.values())[::-1]


def _cell(known: list[Sample], figure: Figure, peer: str, disturbed: Disturbed) -> str:
    value = paired.spread(paired.by_round(known, figure.work, peer, figure.value).values())
    if value is None:
        return NOTHING
    ratio = paired.ratios(known, figure.work, figure.value, (peer, "nginx"))
    beside = "" if ratio is None or peer == "nginx" else f" ({number(ratio.median)}{TIMES})"
    return number(value.median) + beside + (DISTURBED if peer in disturbed.get(figure.work, {}) else "")


def _invalid(sample: Sample) -> str:
    return f"{sample.peer}, {sample.work}: {sample.invalid}"


def _mark(disturbed: Disturbed, figure: Figure) -> str:
    """Returns the mark if either value of the ratio was disturbed."""
    return DISTURBED if {figures.OURS, figure.against} & disturbed.get(figure.work, {}).keys() else ""


def _disturbed(known: list[Sample]) -> Disturbed:
    """Returns the highest share of the core that other processes used, by workload and gateway. Contains only shares
    above the limit.
    """
    worst: Disturbed = {}
    for sample in known:
        share = sample.values.get("foreign", 0.0)
        if share > FOREIGN_AT_MOST and sample.peer != "direct":
            by_peer = worst.setdefault(sample.work, {})
            by_peer[sample.peer] = max(share, by_peer.get(sample.peer, 0.0))
    return worst


def _strangers(disturbed: Disturbed) -> list[str]:
    return [
        f"{DISTURBED.strip()} {work}: others used the gateway's core: {', '.join(f'{peer} {share:.0%}' for peer, share in by_peer.items())}"
        for work, by_peer in disturbed.items()
    ]


def _notes(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table whose source is aligned as well."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, rule, *rows]
    )


def write(result: Result, source: Path) -> str:
    """Writes table and chart next to the JSON file and returns the table."""
    text = render(result)
    source.with_suffix(".md").write_text(text)
    picture.draw(result, source.with_suffix(".png"))
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(write(load(Path(name)), Path(name)))
