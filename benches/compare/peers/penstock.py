"""Penstock as an operator runs it: with a gateway key check and one record for each request."""

from __future__ import annotations

import re
import secrets
import sys
import urllib.request

from benches.compare import guarded
from benches.compare.peers import burning, saved_configs
from benches.compare.peers.peer import REPOSITORY_ROOT, LaunchContext, Peer, PeerUnavailable, run_command

GATEWAY_KEY = secrets.token_hex(24)
CONFIG_FILE = "penstock.toml"
RECORDS_FILE = "records.jsonl"
STORED_PATTERN = re.compile(r"^penstock_log_records_stored_total (\S+)$", re.MULTILINE)
CACHE_CONFIG = '{"provider": "mock", "cache": {"mode": "simple"}}'
VERSION_SCRIPT = "import penstock, penstock.engine; print(penstock.__version__)"
CONFIG_TEMPLATE = """
[server]
host = "127.0.0.1"
port = {port}
{workers}
[records]
path = "{folder}/{records}"

[metrics]
enabled = true

[mock]
host = "{provider}"

[[keys]]
name = "bench"
key = "{key}"
"""


class Penstock(Peer):
    """Runs `penstock serve` with a penstock.toml in its folder and without tuning."""

    name = "penstock"

    def __init__(self, workers: int | None = None) -> None:
        """Sets the number of edge processes; without it the gateway chooses the number."""
        self._workers = f"workers = {workers}\n" if workers else ""

    def install(self) -> str:
        # Reads the version in a separate process, because this one must not load an extension that a build may replace.
        try:
            return run_command(sys.executable, "-c", VERSION_SCRIPT).strip()
        except PeerUnavailable as reason:
            message = f"`penstock` is not built for this Python: {reason}; run `make build`"
            raise PeerUnavailable(message) from reason

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        substitutions = {"port": launch.port, "folder": launch.folder, "provider": launch.provider_url}
        text = CONFIG_TEMPLATE.format(records=RECORDS_FILE, key=GATEWAY_KEY, workers=self._workers, **substitutions)
        (launch.folder / CONFIG_FILE).write_text(text)
        return [sys.executable, "-m", "penstock", "serve"]

    def request_headers(self, launch: LaunchContext) -> dict[str, str]:
        return {
            **super().request_headers(launch),
            "x-gateway-api-key": GATEWAY_KEY,
            "x-gateway-provider": "mock",
        }

    def headers_for_config(self, launch: LaunchContext, config: str) -> dict[str, str]:
        return {
            **super().request_headers(launch),
            "x-gateway-api-key": GATEWAY_KEY,
            "x-gateway-config": CACHE_CONFIG if config == "kept" else f"pc-{config}",
            # Other gateways store no bodies for the requests that are compared here.
            **({"x-gateway-debug": "false"} if config in guarded.CONFIG_NAMES else {}),
        }

    def save_configs(self, launch: LaunchContext) -> None:
        with (launch.folder / CONFIG_FILE).open("a") as file:
            file.write(saved_configs.render_tables())

    def count_records(self, launch: LaunchContext) -> int | None:
        with urllib.request.urlopen(f"http://127.0.0.1:{launch.port}/metrics", timeout=10) as response:
            match = STORED_PATTERN.search(response.read().decode())
        return int(float(match[1])) if match else 0


class BurningPenstock(Penstock):
    """Penstock with the management route that keeps its Python interpreter busy."""

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        super().prepare_command(launch)
        return [sys.executable, "-m", burning.__name__, "serve"]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY_ROOT)}
