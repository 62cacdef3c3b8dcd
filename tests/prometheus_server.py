"""Prometheus server for tests. It scrapes one gateway, and answers queries over its HTTP API."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}
scrape_configs:
  - job_name: penstock
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["{target}"]}}]
"""


def find_program(name: str) -> str:
    """Returns the path of a program of the Debian package."""
    actual = shutil.which(name)
    if actual is None:
        raise FileNotFoundError(f"{name} is missing; hint: make test")
    return actual


class PrometheusServer:
    """One Prometheus server on loopback."""

    def __init__(self, folder: Path, target: str, token: str, interval: str = "1s") -> None:
        self.port = free_port()
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(target=target, token=token, interval=interval))
        command = [
            find_program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self.program = Program(command, folder / "prometheus.log", env={}, cwd=folder)
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10, verify=False)
        wait_for("Prometheus", self._is_ready, 20)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an expression now. Raises an error with Prometheus' message if it is not valid."""
        response = self._client.get("/api/v1/query", params={"query": expression})
        body = msgspec.json.decode(response.content)
        assert body["status"] == "success", f"{expression}: {body}"
        return body["data"]["result"]

    def value(self, expression: str) -> float | None:
        """Returns the value of an expression with one series; `None` if it has none."""
        actual = self.query(expression)
        assert len(actual) <= 1, actual
        return float(actual[0]["value"][1]) if actual else None

    def targets(self) -> list[dict[str, Any]]:
        """Returns the scraped targets with their health and last error."""
        return msgspec.json.decode(self._client.get("/api/v1/targets").content)["data"]["activeTargets"]

    def stop(self) -> None:
        self._client.close()
        self.program.kill()

    def _is_ready(self) -> bool | None:
        self.program.check_alive()
        try:
            return self._client.get("/-/ready").status_code == httpx2.codes.OK or None
        except httpx2.TransportError:
            return None
