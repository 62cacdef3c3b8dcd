"""Gateways with a budget: Penstock with a hard or a soft policy, and LiteLLM with a budget of its provider."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.compare.peers.litellm import MASTER_KEY, Litellm
from benches.compare.peers.peer import PeerUnavailable, run_command
from benches.compare.peers.penstock import CONFIG_FILE, Penstock

if TYPE_CHECKING:
    from benches.compare.gateway import RunningGateway
    from benches.compare.peers.peer import LaunchContext

ADMIN_KEY = secrets.token_hex(24)
PUBLISH_SECONDS = 30
CENTS_PER_DOLLAR = 100
PRICE_TABLE = """
[[prices]]
provider = "mock"
model = "mock"
pay_as_you_go = {{request_token = {{price = {cents:.9f}}}, response_token = {{price = {cents:.9f}}}}}
"""
LITELLM_CONFIG = """
model_list:
  - model_name: "*"
    litellm_params:
      model: "openai/*"
      api_base: "{provider}/v1"
      api_key: "sk-pretend"
      input_cost_per_token: {price:.12f}
      output_cost_per_token: {price:.12f}
router_settings:
  provider_budget_config:
    openai:
      budget_limit: {budget}
      time_period: 1d
general_settings:
  master_key: "{key}"
litellm_settings:
  telemetry: false
  num_retries: 0
"""


class BudgetPenstock(Penstock):
    """Penstock with a store, in which a policy limits the cost of all requests."""

    def __init__(self, enforcement: str, budget: float, dollars_per_token: float, workers: int) -> None:
        super().__init__(workers)
        self._enforcement, self._budget, self._price = enforcement, budget, dollars_per_token
        self._store = ""

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        self._store = f"sqlite:///{launch.folder}/penstock.db"
        command = super().prepare_command(launch)
        with (launch.folder / CONFIG_FILE).open("a") as file:
            file.write(PRICE_TABLE.format(cents=self._price * CENTS_PER_DOLLAR))
        run_command(*command[:-1], "init", cwd=launch.folder, more=self.environment())
        return command

    def environment(self) -> dict[str, str]:
        return {"PENSTOCK_STORE_URL": self._store, "PENSTOCK_ADMIN_KEY": ADMIN_KEY}

    def create_budget(self, running: RunningGateway) -> dict[str, str]:
        """Creates the policy, and a key. Returns the headers of requests that it limits."""
        workspace = _call(running, "GET", "/v1/workspaces", ADMIN_KEY)["data"][0]["id"]
        key = {"name": "spender", "workspace_id": workspace, "scopes": ["completions.write"]}
        caller = _call(running, "POST", "/v1/api-keys/workspace/service", ADMIN_KEY, key)["key"]
        policy = {
            "name": "the budget",
            "workspace_id": workspace,
            "conditions": [{"key": "model", "value": "mock"}],
            "group_by": [{"key": "workspace_id"}],
            "type": "cost",
            "credit_limit": self._budget,
            "enforcement": self._enforcement,
        }
        _call(running, "POST", "/v1/policies/usage-limits", ADMIN_KEY, policy)
        headers = {"x-gateway-api-key": caller, "x-gateway-provider": "mock"}
        _wait_until_limited(running, headers)
        return headers


class BudgetLitellm(Litellm):
    """An existing installation of LiteLLM, with a budget of the provider that all requests use."""

    def __init__(self, python: str, budget: float, dollars_per_token: float) -> None:
        self._python, self._budget, self._price = Path(python), budget, dollars_per_token

    def install(self) -> str:
        self.programs = self._python.parent
        if not (self.programs / "litellm").is_file():
            message = f"LiteLLM is not installed for {str(self._python)!r}; hint: pip install 'litellm[proxy]'"
            raise PeerUnavailable(message)
        script = "import importlib.metadata; print(importlib.metadata.version('litellm'))"
        return run_command(str(self._python), "-c", script).strip()

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        command = super().prepare_command(launch)
        config = LITELLM_CONFIG.format(
            provider=launch.provider_url, price=self._price, budget=self._budget, key=MASTER_KEY
        )
        (launch.folder / "litellm.yaml").write_text(config)
        return command


def _call(running: RunningGateway, method: str, path: str, key: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    connection = http.client.HTTPConnection(running.host, timeout=running.peer.timeout_seconds)
    try:
        headers = {"x-gateway-api-key": key, "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read().decode()
    finally:
        connection.close()
    if response.status >= HTTPStatus.BAD_REQUEST:
        message = f"{method} {path} returned {response.status}: {content}"
        raise PeerUnavailable(message)
    return json.loads(content)


def _wait_until_limited(running: RunningGateway, headers: dict[str, str]) -> None:
    """Waits until responses report the budget."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    end = time.monotonic() + PUBLISH_SECONDS
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(running.host, timeout=running.peer.timeout_seconds)
        connection.request("POST", "/v1/chat/completions", body, {**headers, "content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        connection.close()
        if response.headers.get("ratelimit"):
            return
        time.sleep(0.1)
    message = f"the budget did not apply within {PUBLISH_SECONDS} s"
    raise PeerUnavailable(message)
