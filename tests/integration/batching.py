"""Helpers for batch tests: workspaces with a provider, batch lines, and gateways that can be killed and restarted."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import openai

from tests.gateway import Gateway
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.raw_http import send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.gateway import Mock

TABLES: dict[str, Any] = {
    "batches": {"interval_ms": 5, "max_retries": 1, "max_lines": 60, "line_bytes": 2048, "max_unfinished": 3},
    "files": {"workspace_bytes": 400_000},
    "metrics": {"enabled": True},
}
CHAT_PATH = "/v1/chat/completions"
IMMEDIATE = "immediate"


OPEN_CLIENTS: list[openai.OpenAI] = []


def create_workspace(
    admin: Client, name: str, provider: str = "mock", slug: str = "", key: str = "sk-provider", **configurations: str
) -> Client:
    """Creates a workspace with an API key and a provider; returns a client that uses the key."""
    workspace = admin.create("/v1/admin/workspaces", {"name": name})
    own = slug or f"m-{name}"
    integration = {
        "name": provider,
        "ai_provider_id": provider,
        "key": key,
        "workspace_id": workspace["id"],
        "slug": f"m-{name}",
        "default_provider_slug": own,
        "configurations": configurations,
    }
    admin.create("/v1/integrations", integration)
    caller = admin.with_new_key(workspace_id=workspace["id"], scopes=["completions.write"])

    def is_known_at_edge() -> bool | None:
        # The key and the provider are checked before the body is parsed, so an invalid body sends nothing upstream.
        headers = {"x-gateway-api-key": caller.key, "x-gateway-provider": f"@{own}", "content-type": "application/json"}
        return (
            send_raw_request(admin.gateway.base_url, CHAT_PATH, b"{", headers).json()["error"]["code"] == "invalid_json"
            or None
        )

    wait_for("key and provider at the edge", is_known_at_edge)
    return caller


def openai_client(client: Client, **headers: str) -> openai.OpenAI:
    sent = {f"x-gateway-{name.replace('_', '-')}": value for name, value in headers.items()}
    base = f"{client.gateway.base_url}/v1"
    OPEN_CLIENTS.append(openai.OpenAI(api_key=client.key, base_url=base, default_headers=sent, max_retries=0))
    return OPEN_CLIENTS[-1]


def batch_line(number: int, content: str = "hi", **body: object) -> dict[str, Any]:
    request_body = {"model": "gpt-mock", "messages": [{"role": "user", "content": content}], **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT_PATH, "body": request_body}


def to_jsonl(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def create_batch(ai: openai.OpenAI, content: bytes, window: Any = IMMEDIATE, **more: Any) -> Any:
    here = {"x-gateway-provider": "gateway"}
    file = ai.files.create(file=("lines.jsonl", content), purpose="batch", extra_headers=here)
    return ai.batches.create(input_file_id=file.id, endpoint=CHAT_PATH, completion_window=window, **more)


def wait_until_ended(ai: openai.OpenAI, batch_id: str, seconds: float = 20.0) -> Any:
    over = {"completed", "failed", "cancelled", "expired"}

    def ended_batch() -> Any:
        batch = ai.batches.retrieve(batch_id)
        return batch if batch.status in over else None

    return wait_for(f"the end of {batch_id}", ended_batch, seconds)


def read_output_lines(ai: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id
    lines = ai.files.content(file_id).text.splitlines()
    return {item["custom_id"]: item for item in map(json.loads, lines)}


class RestartableGateway:
    """Gateway that can be killed and started again on the same folder."""

    def __init__(
        self,
        folder: Path,
        mock: Mock,
        upstream: dict[str, object] | None = None,
        prices: list[dict[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, object] | None = None,
        **batches: object,
    ) -> None:
        self.folder = folder
        own = {
            "upstream": upstream or {},
            "prices": prices or [],
            "batches": {**TABLES["batches"], **batches},
            "files": {**TABLES["files"], **(files or {})},
        }
        self.tables = {"mock": {"host": mock.url}, **TABLES, **own}
        store = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{folder}/penstock.db"}
        self.env = {**store, **(env or {})}
        self.start()

    def start(self) -> None:
        self.gateway = Gateway(self.folder, self.tables, self.env)

    def kill(self) -> None:
        self.gateway.program.kill()
        shutil.rmtree(self.gateway.temporary)

    def client_with_key(self, key: str) -> Client:
        return Client(self.gateway, key)


def status_and_code(request: Callable[[], object]) -> tuple[int, str]:
    """Calls the SDK and returns the status and the code of its error, or 200 and an empty code."""
    try:
        request()
    except openai.APIStatusError as error:
        return error.status_code, str(error.code)
    return 200, ""
