"""`penstock` as tests need it: not intercepted, with engine settings that operators do not get, or with a costly route."""

from __future__ import annotations

import json
import os
import time

from penstock import cli, door, settings
from penstock.engine import Engine

BURN = os.environ.pop("TEST_BURN", "0") == "1"
INTERCEPT = os.environ.pop("TEST_INTERCEPT", "1") == "1"
ENGINE = json.loads(os.environ.pop("TEST_ENGINE", "{}"))

engine_json = settings.Settings.engine_json


def changed_engine_json(self: settings.Settings, worker: int) -> bytes:
    return json.dumps({**json.loads(engine_json(self, worker)), **ENGINE}).encode()


def create(chosen: settings.Settings, worker: int, snapshot: bytes) -> door.Door:
    engine = Engine(chosen.engine_json(worker))
    engine.apply(snapshot)
    return door.Door(engine, intercept=INTERCEPT)


def add_burn() -> None:
    """Put a management route that keeps the interpreter busy for a second below `/v1/health`."""
    from litestar import get  # noqa: PLC0415 - the edge processes of the other tests load no web framework

    from penstock.caller import anyone  # noqa: PLC0415
    from penstock.resources import health  # noqa: PLC0415

    @get("/burn", guards=[anyone], sync_to_thread=False)
    def burn() -> str:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sum(range(1000))
        return "burnt"

    health.routes.append(burn)


if __name__ == "__main__":
    settings.Settings.engine_json = changed_engine_json
    door.create = create
    if BURN:
        add_burn()
    cli.main()
