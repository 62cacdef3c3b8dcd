"""Test launcher of `penstock`. Can disable interception, set engine options that operators cannot set, and add a
CPU-heavy route.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from penstock import asgi, cli
from penstock.engine import Engine
from penstock.settings.engine_json import encode_engine_settings

if TYPE_CHECKING:
    from penstock.settings import Settings

ADD_BURN_ROUTE = os.environ.pop("TEST_BURN", "0") == "1"
INTERCEPT = os.environ.pop("TEST_INTERCEPT", "1") == "1"
ENGINE_OVERRIDES = json.loads(os.environ.pop("TEST_ENGINE", "{}"))


def create_edge_app(settings: Settings, worker: int, snapshot: bytes) -> asgi.EdgeApp:
    engine_settings = json.loads(encode_engine_settings(settings, worker)) | ENGINE_OVERRIDES
    engine = Engine(json.dumps(engine_settings).encode())
    engine.apply(snapshot)
    return asgi.EdgeApp(engine, intercept=INTERCEPT)


if __name__ == "__main__":
    asgi.create_edge_app = create_edge_app
    if ADD_BURN_ROUTE:
        # Imported only here, because it imports all gateways of the benchmark comparison.
        from benches.compare.peers import burning

        burning.add_burn_route()
    cli.main()
