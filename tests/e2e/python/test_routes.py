"""Routes of the official SDKs through the gateway: every route, in each major version that is in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

SCRIPTS_DIR = Path(__file__).parent / "routes"
OLD_SDKS_DIR = Path(__file__).parents[3] / ".cache/sdk"
NEWEST_SDK = ""
SDKS = [
    ("openai", "openai-1", "1."),
    ("openai", "openai-2", "2."),
    ("openai", NEWEST_SDK, "3."),
    ("anthropic", "anthropic-0", "0."),
    ("anthropic", NEWEST_SDK, "2."),
]


def run_sdk_calls(script: str, folder: str, gateway: Gateway, **more: str) -> tuple[str, list[tuple[Any, Any]]]:
    """Runs a script with the SDK in that folder and nothing else of this environment. Returns the SDK's version and the
    result of each call.
    """
    alone = ["-S"] if folder else []
    done = subprocess.run(
        # An old SDK may use deprecated functions; these tests ignore such warnings.
        [sys.executable, *alone, "-W", "ignore", SCRIPTS_DIR / script],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "GATEWAY": gateway.base_url, **more}
        | ({"PYTHONPATH": str(OLD_SDKS_DIR / folder)} if folder else {}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr, [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("sdk", "folder", "major"), SDKS)
def test_sdk_understands_every_route(gateway: Callable[..., Gateway], mock: Mock, sdk: str, folder: str, major: str):
    version, calls = run_sdk_calls(f"{sdk}_sdk.py", folder, gateway())
    assert version.startswith(major)
    assert not [(route, received) for route, received in calls if received != "understood"]
    assert [strip_beta_query(f"{entry['method']} {entry['path']}") for entry in mock.ledger()] == [
        strip_beta_query(route) for route, _ in calls
    ]


@pytest.mark.slow(70)
def test_sdks_understand_responses_of_aimock(gateway: Callable[..., Gateway], aimock: str):
    # One gateway serves all SDKs, which also shows that no state leaks from one to the next.
    running_gateway = gateway({"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}})
    for sdk, folder, major in SDKS:
        version, calls = run_sdk_calls(f"{sdk}_at_aimock.py", folder, running_gateway, AIMOCK=aimock)
        assert version.startswith(major)
        assert {received for _, received in calls} == {"understood"}, (version, calls)


def strip_beta_query(route: str) -> str:
    """Returns the route without the `beta=true` that some versions of one SDK add."""
    return route.replace("?beta=true&", "?").removesuffix("?beta=true")


def mock_target(behaviour: str, **more: object) -> dict[str, Any]:
    return {"provider": "mock", "override_params": {"model": f"mock?{behaviour}"}, **more}


def fallback_config(*targets: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": {"mode": "fallback"}, "targets": list(targets)}


@pytest.mark.parametrize(
    ("config", "reply", "attempts"),
    [
        (fallback_config(mock_target("status=503"), mock_target("chunks=3")), (200, True), 2),
        (mock_target("status=503", retry={"attempts": 2}), (503, "false"), 3),
        (fallback_config(mock_target("status=503"), mock_target("status=500")), (500, "false"), 2),
    ],
)
def test_portkey_sdk_does_not_repeat_the_configs_retries(
    gateway: Callable[..., Gateway], mock: Mock, config: dict[str, Any], reply: tuple[Any, Any], attempts: int
):
    running_gateway = gateway({"routing": {"retry_backoff_ms": 1}})
    version, calls = run_sdk_calls("portkey_sdk.py", "portkey-ai-2", running_gateway, CONFIG=json.dumps(config))
    assert (version[:2], calls) == ("2.", [reply] * 3)
    assert len(mock.ledger()) == 3 * attempts
