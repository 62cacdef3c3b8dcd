"""Penstock with a store, as an organisation runs it: saved provider, price, log store, and keys with different features."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benches.compare import bodies
from benches.compare.peers.peer import LaunchContext, PeerUnavailable
from benches.compare.peers.penstock import CONFIG_FILE, Penstock

if TYPE_CHECKING:
    from collections.abc import Mapping

ADMIN_KEY_PATTERN = re.compile(r"^admin key.*: (\S+)$", re.MULTILINE)
REQUEST_TIMEOUT_SECONDS = 30
# Variants of a request: `plain` logs only figures, `bodies` also logs bodies, `limits` adds policies, and `prompt` uses
# a saved prompt.
STORED_VARIANTS = ("plain", "bodies", "limits", "prompt")
PROVIDER_SLUG = "bench-openai"
PROMPT_SLUG = "bench-prompt"
CONFIG_TEMPLATE = """
[server]
host = "127.0.0.1"
port = {port}

[store]
data_dir = "{folder}/data"

[records]
enabled = {records}

[metrics]
enabled = true

[[prices]]
provider = "openai"
model = "{model}"
[prices.pay_as_you_go]
request_token = {{ price = 0.00025 }}
response_token = {{ price = 0.001 }}
"""
# Three policies that match every request of the limited workspace; their limits are never reached.
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("usage-limits", {"type": "cost", "credit_limit": 1_000_000, "group_by": [{"key": "api_key"}]}),
    ("usage-limits", {"type": "tokens", "credit_limit": 10**12, "group_by": [{"key": "model"}]}),
    ("rate-limits", {"type": "requests", "unit": "rpm", "value": 10**9, "group_by": [{"key": "api_key"}]}),
)


class StoredPenstock(Penstock):
    """Runs `penstock init` and `penstock serve`, and creates the objects through the management API."""

    def __init__(self, *, has_records: bool = True) -> None:
        super().__init__()
        self._has_records = has_records
        self._admin_key = ""
        self._keys: dict[str, str] = {}
        self._workspaces: dict[str, str] = {}

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        text = CONFIG_TEMPLATE.format(
            port=launch.port,
            folder=launch.folder,
            records=str(self._has_records).lower(),
            model=bodies.realistic_request().model,
        )
        (launch.folder / CONFIG_FILE).write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "init"], cwd=launch.folder, capture_output=True, text=True, check=False
        )
        matched = ADMIN_KEY_PATTERN.search(done.stdout)
        if done.returncode or not matched:
            message = f"`penstock init` failed: {(done.stderr or done.stdout).strip()[-200:]}"
            raise PeerUnavailable(message)
        self._admin_key = matched[1]
        return [sys.executable, "-m", "penstock", "serve"]

    def environment(self) -> dict[str, str]:
        return {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}

    def request_headers(self, launch: LaunchContext) -> dict[str, str]:
        return self.headers_for_config(launch, "plain")

    def headers_for_config(self, launch: LaunchContext, config: str) -> dict[str, str]:
        """Returns the headers of one variant: `plain`, `bodies`, `limits` or `prompt`. Only `bodies` logs bodies."""
        if not self._keys:
            self._keys = self._create_objects(launch)
        headers = {
            "authorization": "Bearer sk-pretend",
            "x-gateway-api-key": self._keys["limits" if config == "limits" else "plain"],
            **bodies.SDK_HEADERS,
        }
        if config != "bodies":
            headers["x-gateway-debug"] = "false"
        if config != "prompt":
            headers["x-gateway-provider"] = f"@{PROVIDER_SLUG}"
        return headers

    def chat_path_for_config(self, config: str) -> str:
        return f"/v1/prompts/{PROMPT_SLUG}/completions" if config == "prompt" else super().chat_path_for_config(config)

    def count_records(self, launch: LaunchContext) -> int | None:  # noqa: ARG002 - the log store is no file whose lines can be counted
        return None

    def _create_objects(self, launch: LaunchContext) -> dict[str, str]:
        """Creates two workspaces and returns a key of each. Raises `OSError` while the gateway does not listen."""
        keys = {name: self._create_workspace(launch, name) for name in ("plain", "limits")}
        for kind, policy in POLICIES:
            workspace = {"workspace_id": self._workspaces["limits"], "name": kind}
            self._create(
                launch, f"policies/{kind}", {**workspace, "conditions": [{"key": "model", "value": "*"}], **policy}
            )
        prompt = bodies.realistic_prompt()
        workspace = {"workspace_id": self._workspaces["plain"], "name": PROMPT_SLUG, "slug": PROMPT_SLUG}
        self._create(launch, "prompts", {**workspace, "virtual_key": PROVIDER_SLUG, **prompt})
        return keys

    def _create_workspace(self, launch: LaunchContext, name: str) -> str:
        """Creates a workspace with a saved provider, and returns its key."""
        workspace = self._create(launch, "admin/workspaces", {"name": name})["id"]
        self._workspaces[name] = workspace
        target_workspace = {"name": name, "workspace_id": workspace}
        configuration = {
            "ai_provider_id": "openai",
            "key": "sk-pretend",
            "configurations": {"custom_host": f"{launch.provider_url}/v1"},
        }
        integration = self._create(launch, "integrations", {**target_workspace, **configuration})["slug"]
        self._create(launch, "providers", {**target_workspace, "slug": PROVIDER_SLUG, "integration_id": integration})
        return self._create(
            launch, "api-keys/workspace/service", {**target_workspace, "scopes": ["completions.write"]}
        )["key"]

    def _create(self, launch: LaunchContext, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        headers = {"content-type": "application/json", "x-gateway-api-key": self._admin_key}
        connection = http.client.HTTPConnection("127.0.0.1", launch.port, timeout=REQUEST_TIMEOUT_SECONDS)
        try:
            connection.request("POST", f"/v1/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            message = f"POST /v1/{path}: status {response.status}: {text[:300].decode(errors='replace')}"
            raise PeerUnavailable(message)
        return json.loads(text)
