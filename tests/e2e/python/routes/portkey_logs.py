"""Uses logs, feedback, exports and analytics with the portkey-ai SDK. Prints one line of JSON for each call."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import portkey_ai

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_URL = os.environ["GATEWAY"] + "/v1"
TRACE = "trace-of-the-sdk"
CLIENT = portkey_ai.Portkey(api_key=os.environ["KEY"], base_url=BASE_URL, provider="mock", trace_id=TRACE)
NOW = dt.datetime.now(dt.UTC)
RANGE = {
    "time_of_generation_min": (NOW - dt.timedelta(hours=1)).isoformat(),
    "time_of_generation_max": (NOW + dt.timedelta(hours=1)).isoformat(),
}
CUSTOM = {
    "request": {"url": "https://api.openai.com/v1/chat/completions", "body": {"model": "gpt-4o", "messages": []}},
    "response": {"status": 200, "body": {"usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}}},
    "metadata": {"trace_id": "custom-of-the-sdk", "_user": "ann"},
}
WAIT_SECONDS = 15
CREATED: dict[str, Any] = {}


def store_created(name: str, created: Any) -> Any:
    CREATED[name] = created
    return created


def wait_for(probe: Callable[[], Any]) -> Any:
    """Calls `probe` until it returns something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (actual := probe()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return actual


def wait_for_requests(count: int) -> int:
    """Waits until the graph counts at least this many requests; returns its number."""

    def count_logs() -> int:
        total: int = CLIENT.analytics.graphs.requests(**RANGE).summary["total"]
        return total if total >= count else 0

    return wait_for(count_logs)


def download_export() -> list[str]:
    """Returns the trace ids in the rows of the export, each once."""
    export_id = CREATED["export"].id
    wait_for(lambda: CLIENT.logs.exports.retrieve(export_id=export_id).status == "success")
    url = CLIENT.logs.exports.download(export_id=export_id).signed_url
    rows = httpx.get(url, timeout=10).text.splitlines()
    return sorted({json.loads(row)["trace_id"] for row in rows})


# The order matters: each call depends on those before it.
CALLS: dict[str, Callable[[], object]] = {
    "chat.completions.create": lambda: bool(
        CLIENT.chat.completions.create(model="mock", messages=[{"role": "user", "content": "hi"}]).choices
    ),
    "logs.create": lambda: bool(CLIENT.logs.create(**CUSTOM)),
    "feedback.create": lambda: (
        store_created(
            "feedback", CLIENT.feedback.create(trace_id=TRACE, value=5, weight=0.5, metadata={"by": "ann"})
        ).status
    ),
    "feedback.bulk_create": lambda: len(
        CLIENT.feedback.bulk_create(feedbacks=[{"trace_id": TRACE, "value": value} for value in (1, 2)]).feedback_ids
    ),
    "feedback.update": lambda: (
        CLIENT.feedback.update(feedback_id=CREATED["feedback"].feedback_ids[0], value=7, weight=1.0, metadata={}).status
    ),
    "analytics.graphs.requests": lambda: wait_for_requests(2),
    "analytics.graphs.tokens": lambda: CLIENT.analytics.graphs.tokens(**RANGE).summary["total"] > 12,
    "analytics.graphs.errors": lambda: CLIENT.analytics.graphs.errors(**RANGE).summary["total"],
    "analytics.graphs.feedbacks": lambda: wait_for(
        lambda: CLIENT.analytics.graphs.feedbacks(**RANGE).summary["total"] == 3
    ),
    "analytics.groups.users": lambda: [row["user"] for row in CLIENT.analytics.groups.users(**RANGE).data],
    "analytics.groups.ai_models": lambda: bool(CLIENT.analytics.groups.ai_models(**RANGE).data),
    "analytics.groups.metadata": lambda: bool(CLIENT.analytics.groups.metadata(metadata_key="_user", **RANGE).data),
    "analytics.summary.cache": lambda: bool(CLIENT.analytics.summary.cache(**RANGE)),
    "logs.exports.create": lambda: bool(
        store_created(
            "export",
            CLIENT.logs.exports.create(
                filters=RANGE, workspace_id=os.environ["WORKSPACE"], description="d", requested_data=["id", "trace_id"]
            ),
        ).id
    ),
    "logs.exports.update": lambda: bool(
        CLIENT.logs.exports.update(
            export_id=CREATED["export"].id,
            workspace_id=os.environ["WORKSPACE"],
            filters=RANGE,
            requested_data=["id", "trace_id", "cost"],
        )
    ),
    "logs.exports.start": lambda: bool(CLIENT.logs.exports.start(export_id=CREATED["export"].id)),
    "logs.exports.download": download_export,
    "logs.exports.list": lambda: len(CLIENT.logs.exports.list(workspace_id=os.environ["WORKSPACE"]).data),
}

for name, call in CALLS.items():
    try:
        result: object = call()
    except Exception as error:  # noqa: BLE001 — it has several, of its own and of what it brings along
        result = f"{type(error).__name__}: {error}"
    print(json.dumps([name, result]))
sys.stderr.write(portkey_ai.__version__)
