"""`penstock` as tests need it: not intercepted, with engine settings that operators do not get, or with a costly route."""

from __future__ import annotations

import json
import os

from penstock import asgi, cli, settings
from penstock.engine import Engine

BURN = os.environ.pop("TEST_BURN", "0") == "1"
INTERCEPT = os.environ.pop("TEST_INTERCEPT", "1") == "1"
ENGINE = json.loads(os.environ.pop("TEST_ENGINE", "{}"))

engine_json = settings.Settings.engine_settings_json


def changed_engine_json(self: settings.Settings, worker: int) -> bytes:
    return json.dumps({**json.loads(engine_json(self, worker)), **ENGINE}).encode()


def create(chosen: settings.Settings, worker: int, snapshot: bytes) -> asgi.EdgeApp:
    engine = Engine(chosen.engine_settings_json(worker))
    engine.apply(snapshot)
    return asgi.EdgeApp(engine, intercept=INTERCEPT)


if __name__ == "__main__":
    settings.Settings.engine_settings_json = changed_engine_json
    asgi.create_edge_app = create
    if BURN:
        # Every peer of the comparison comes with it.
        from benches.compare.peers import burning

        burning.add_route()
    cli.main()
