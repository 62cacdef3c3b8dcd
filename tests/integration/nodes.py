"""Helpers for tests with two nodes: requests, configs and a folder for each node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, Response, chat_body, send_raw_request
from tests.integration.serving import read_metrics
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway

CACHED_CONFIG = {"provider": "mock", "cache": {"mode": "simple", "max_age": 60}}


def breaker_config(failures: int, cooldown_ms: int = 30_000) -> dict[str, Any]:
    """Returns a config whose first target always fails; its circuit breaker opens after this many failures."""
    return {
        "strategy": {
            "mode": "fallback",
            "cb_config": {"failure_threshold": failures - 1, "cooldown_interval": cooldown_ms},
        },
        "targets": [
            {"provider": "mock", "override_params": {"model": "mock?status=503"}},
            {"provider": "mock", "override_params": {"model": "mock?chunks=1"}},
        ],
    }


def create_node_folders(around: Path) -> tuple[Path, Path]:
    """Creates a folder for each of two nodes."""
    first, second = around / "one", around / "two"
    for folder in (first, second):
        folder.mkdir()
    return first, second


def wait_for_redis(node: Gateway, workers: int = 1) -> None:
    """Waits until every worker is connected to Redis."""
    wait_for("Redis", lambda: read_metrics(node).get("penstock_redis_up") == workers or None, 10)


def send_with_config(node: Gateway, config: object, body: bytes = b"", **headers: str) -> Response:
    """Sends a chat request with an inline config and further `x-gateway-` headers."""
    own = {f"x-gateway-{name.replace('_', '-')}": value for name, value in headers.items()}
    return send_raw_request(
        node.base_url, CHAT_PATH, body or chat_body(), {"x-gateway-config": json.dumps(config), **own, **JSON_HEADERS}
    )
