"""Scenarios for use with locust: `locust -f loadtests/locustfile.py --host http://127.0.0.1:8787 Chat`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from locust import events

from loadtests.options import RESULT_VARIABLE
from loadtests.scenarios.chat import Chat
from loadtests.scenarios.faults import Faults
from loadtests.scenarios.stream import Stream

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.stats import StatsEntry

__all__ = ["Chat", "Faults", "Stream"]


@events.quitting.add_listener
def save_results(environment: Environment, **_: object) -> None:
    """Writes the results to the file that the runner names; locust's own files lack the last second."""
    if not (result_path := os.environ.get(RESULT_VARIABLE)):
        return
    stats = environment.stats
    per_second = sorted(stats.total.num_reqs_per_sec.items())
    result = {
        "requests": [_build_row(entry) for _, entry in sorted(stats.entries.items())],
        "errors": [{"name": e.name, "error": str(e.error), "count": e.occurrences} for e in stats.errors.values()],
        "per_second": [[at - per_second[0][0], count] for at, count in per_second],
    }
    Path(result_path).write_text(json.dumps(result, indent=1))


def _build_row(entry: StatsEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "requests": entry.num_requests,
        "failures": entry.num_failures,
        "per_second": entry.total_rps,
        **{f"p{share * 100:g}_ms": entry.get_response_time_percentile(share) for share in (0.5, 0.95, 0.99)},
        "max_ms": entry.max_response_time,
    }
