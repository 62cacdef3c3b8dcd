"""`python -m benches.compare.publish`: writes the table of a run into docs/comparison.md, so that no figure is copied by
hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benches.compare import figures, report
from benches.compare.result import Result, load_result

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).resolve().parents[2] / "docs/comparison.md"
OUTPUT_DIR = Path(__file__).resolve().parent / "out"
BEGIN, END = "<!-- begin of the measured table -->", "<!-- end of the measured table -->"
# Workload and value of each row, in the order of the page. The other metrics are for developers.
ROWS = (
    ("whole64", "cpu_us"),
    ("whole64", "rps"),
    ("realistic64", "cpu_us"),
    ("latency", "added_p50_us"),
    ("latency", "added_p99_us"),
    ("paced", "cpu_us"),
    ("cache", "cpu_us"),
    ("body", "cpu_us"),
    ("hold", "kb_per_stream"),
    ("start", "start_s"),
    ("start", "idle_mb"),
)
# Peer without a gateway. It has no column: latencies in the table are the differences to this peer.
UNLISTED_PEER = "direct"


def render_section(result: Result) -> str:
    """Returns the text between the markers: how it was measured, and a table with a column for each gateway."""
    peers = [name for name in result.versions if name != UNLISTED_PEER]
    versions = ", ".join(f"{name} {result.versions[name]}".strip() for name in peers)
    kind = "quick run" if result.quick else "run"
    machine = f"{result.machine.get('cpu', 'an unknown processor')}, {result.machine.get('cores', '?')} cores"
    samples = figures.add_latency_overhead(result)
    table = report.render_peer_table(samples, peers, [_find_metric(workload, key) for workload, key in ROWS])
    return (
        f"Measured on {result.at[:10]} in one {kind} of {result.rounds} interleaved rounds, on {machine}. Versions: "
        f"{versions}. Values are medians, in parentheses as a multiple of nginx. `–`: not measured, or failed.\n\n{table}"
    )


def _find_metric(workload: str, value_key: str) -> figures.Metric:
    return next(item for item in figures.METRICS if (item.workload, item.value_key) == (workload, value_key))


def replace_section(page: str, section: str) -> str:
    """Returns the page with another text between the markers. Raises `ValueError` if the page has no markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        message = f"the page has no lines {BEGIN!r} and {END!r}"
        raise ValueError(message)
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the table. Returns 1 if there is no run, or if the run was quick and `--allow-quick` is missing."""
    parser = argparse.ArgumentParser(prog="python -m benches.compare.publish", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="JSON file of a run; default: the newest in out/")
    parser.add_argument("--allow-quick", action="store_true", help="accept a quick run")
    options = parser.parse_args(arguments)
    runs = [options.file] if options.file else sorted(OUTPUT_DIR.glob("*.json"))
    if not runs:
        print("there is no run; hint: make compare", file=sys.stderr)
        return 1
    result = load_result(runs[-1])
    if result.quick and not options.allow_quick:
        print(f"{runs[-1]} is a quick run; hint: make compare, or --allow-quick", file=sys.stderr)
        return 1
    PAGE.write_text(replace_section(PAGE.read_text(), render_section(result)))
    print(f"{runs[-1].name}: written into {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
