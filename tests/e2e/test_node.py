"""Runs the Node tests against a gateway whose provider is ours, and one whose provider is nobody's here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.dialects import DIALECTS, saved

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

FOLDER = Path(__file__).parent / "node"
NODE = shutil.which("node") or "node"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def run(test: str, **environment: str) -> None:
    """Run one file of Node tests and show its own report if it fails."""
    done = subprocess.run(
        [NODE, "--test", "--test-timeout=30000", test],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **environment},
        cwd=FOLDER,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_the_sdks_through_the_gateway_to_the_mock(gateway: Callable[..., Gateway]):
    served = gateway({"server": {"heartbeat_seconds": 0.05}})
    run("sdks.test.mjs", GATEWAY=served.base_url)


def test_vercels_sdk_reaches_every_provider_in_every_way_that_it_has(gateway: Callable[..., Gateway], mock: Mock):
    key = "pk-gateway-0123456789"
    keys = [{"name": "k", "id": "k-1", "key": key}]
    served = gateway({"keys": keys, "providers": saved(mock), "upstream": {"trusted_custom_hosts": ["127.0.0.1"]}})
    run("ai.test.mjs", GATEWAY=served.base_url, KEY=key, PROVIDERS=" ".join(DIALECTS))


def test_every_route_of_the_sdks_through_the_gateway(gateway: Callable[..., Gateway]):
    run("routes.test.mjs", GATEWAY=gateway().base_url)


def test_a_failure_that_stays_costs_the_portkey_sdk_no_more_than_the_config_asks_for(
    gateway: Callable[..., Gateway], mock: Mock
):
    served = gateway({"routing": {"retry_backoff_ms": 1}})
    run("retries.test.mjs", GATEWAY=served.base_url, MOCK=mock.url)


def test_the_sdks_through_the_gateway_to_aimock(gateway: Callable[..., Gateway], aimock: str):
    served = gateway({"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}})
    run("aimock.test.mjs", GATEWAY=served.base_url, AIMOCK=aimock)
