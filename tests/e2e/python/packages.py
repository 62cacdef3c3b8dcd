"""Runner for scripts of third-party SDKs. Each script sees only those packages and nothing else of this environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gateway import Gateway

SCRIPTS_DIR = Path(__file__).parent / "sdks"
PACKAGES_DIR = Path(__file__).parents[3] / ".cache/sdk/others"
KEY = "pk-gateway-0123456789"


def run_sdk_script(
    script: str, running_gateway: Gateway, providers: list[str], key: str = KEY
) -> dict[tuple[str, str], Any]:
    """Runs a script and returns the result of each call, by provider and call."""
    done = subprocess.run(
        # An SDK may use deprecated functions; these tests ignore such warnings.
        [sys.executable, "-S", "-W", "ignore", SCRIPTS_DIR / script],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PACKAGES_DIR),
            "GATEWAY": running_gateway.base_url,
            "KEY": key,
            "PROVIDERS": " ".join(providers),
            # Keeps the SDKs from contacting any other host.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "AWS_EC2_METADATA_DISABLED": "true",
            "LANGCHAIN_TRACING_V2": "false",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {(provider, call): received for provider, call, received in map(json.loads, done.stdout.splitlines())}
