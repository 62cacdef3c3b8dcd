"""Test launcher of `penstock`. Can disable interception, set engine options that operators cannot set, and add a
CPU-heavy route.
"""

from __future__ import annotations

import json
import os

from penstock import asgi, cli, settings
from penstock.engine import Engine

ADD_BURN_ROUTE = os.environ.pop("TEST_BURN", "0") == "1"
INTERCEPT = os.environ.pop("TEST_INTERCEPT", "1") == "1"
ENGINE_OVERRIDES = json.loads(os.environ.pop("TEST_ENGINE", "{}"))

original_engine_json = settings.Settings.engine_settings_json


def patched_engine_json(self: settings.Settings, worker: int) -> bytes:
    return json.dumps({**json.loads(original_engine_json(self, worker)), **ENGINE_OVERRIDES}).encode()


def create_edge_app(chosen: settings.Settings, worker: int, snapshot: bytes) -> asgi.EdgeApp:
    engine = Engine(chosen.engine_settings_json(worker))
    engine.apply(snapshot)
    return asgi.EdgeApp(engine, intercept=INTERCEPT)


if __name__ == "__main__":
    settings.Settings.engine_settings_json = patched_engine_json
    asgi.create_edge_app = create_edge_app
    if ADD_BURN_ROUTE:
        # Imported only here, because it imports all gateways of the benchmark comparison.
        from benches.compare.peers import burning

        burning.add_burn_route()
    cli.main()
