"""Runs the Node tests against gateways whose provider is our mock provider or aimock."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.saved_providers import PATH_PREFIXES, provider_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

NODE_TESTS_DIR = Path(__file__).parent / "node"
NODE_BINARY = shutil.which("node") or "node"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def run_node_test(test: str, **environment: str) -> None:
    """Runs one Node test file and shows its report if it fails."""
    done = subprocess.run(
        [NODE_BINARY, "--test", "--test-timeout=30000", test],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **environment},
        cwd=NODE_TESTS_DIR,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_node_sdks_reach_the_mock_provider(gateway: Callable[..., Gateway]):
    running_gateway = gateway({"server": {"heartbeat_seconds": 0.05}})
    run_node_test("sdks.test.mjs", GATEWAY=running_gateway.base_url)


def test_vercel_sdk_reaches_every_provider(gateway: Callable[..., Gateway], mock: Mock):
    key = "pk-gateway-0123456789"
    keys = [{"name": "k", "id": "k-1", "key": key}]
    running_gateway = gateway(
        {"keys": keys, "providers": provider_rows(mock), "upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
    )
    run_node_test("ai.test.mjs", GATEWAY=running_gateway.base_url, KEY=key, PROVIDERS=" ".join(PATH_PREFIXES))


def test_node_sdks_reach_every_route(gateway: Callable[..., Gateway]):
    run_node_test("routes.test.mjs", GATEWAY=gateway().base_url)


def test_permanent_failure_takes_only_configured_attempts(gateway: Callable[..., Gateway], mock: Mock):
    running_gateway = gateway({"routing": {"retry_backoff_ms": 1}})
    run_node_test("retries.test.mjs", GATEWAY=running_gateway.base_url, MOCK=mock.url)


def test_node_sdks_reach_aimock(gateway: Callable[..., Gateway], aimock: str):
    running_gateway = gateway({"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}})
    run_node_test("aimock.test.mjs", GATEWAY=running_gateway.base_url, AIMOCK=aimock)
