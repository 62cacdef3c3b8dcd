"""Codex CLI through the gateway, to an OpenAI provider and to providers of other API formats."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.saved_providers import PATH_PREFIXES, provider_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway import Gateway, Mock

CODEX_BINARY = Path(__file__).parent / "codex/node_modules/.bin/codex"
GATEWAY_KEY = "pk-gateway-0123456789"
RESPONSE_TEXT = "Hello from the pretend provider: all is well. "
# Disables the features that only OpenAI has: web search and nested tools.
PORTABLE_SETTINGS = {"web_search": "disabled", "features": {"multi_agent": False}}


def run_codex(
    running_gateway: Gateway, home: Path, model: str, settings: dict[str, Any], **mock: str
) -> list[dict[str, Any]]:
    """Runs Codex with one prompt and without a terminal; returns the events that it prints."""
    fields = {f"x-mock-{key}": value for key, value in mock.items()}
    if fields:
        fields["x-gateway-forward-headers"] = ",".join(fields)
    provider = {
        "name": "gateway",
        "base_url": f"{running_gateway.base_url}/v1",
        "env_key": "KEY",
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "http_headers": fields,
    }
    config = {"model": model, "model_provider": "gateway", "model_providers": {"gateway": provider}, **settings}
    home.mkdir()
    content = [option for key, value in config.items() for option in ("-c", f"{key}={to_inline_toml(value)}")]
    done = subprocess.run(
        [
            CODEX_BINARY,
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            *content,
            "Hi",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=40,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "KEY": GATEWAY_KEY},
        cwd=home,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def to_inline_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_inline_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def running_gateway(gateway: Callable[..., Gateway], mock: Mock) -> Gateway:
    keys = [{"name": "k", "id": "k-1", "key": GATEWAY_KEY}]
    return gateway(
        {"keys": keys, "providers": provider_rows(mock), "upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
    )


@pytest.mark.parametrize(
    ("provider", "settings"), [(slug, {} if slug == "openai" else PORTABLE_SETTINGS) for slug in PATH_PREFIXES]
)
def test_codex_gets_text_tool_calls_and_errors(
    running_gateway: Gateway, tmp_path: Path, provider: str, settings: dict[str, Any]
):
    model = f"@{provider}/mock"
    events = run_codex(running_gateway, tmp_path / "text", model, settings)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [RESPONSE_TEXT], events
    usage = events[-1]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (12, 8)

    arguments = json.dumps({"cmd": "echo from the shell"})
    events = run_codex(running_gateway, tmp_path / "tool", model, settings, call="exec_command", arguments=arguments)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (ran,) = [item for item in items if item["type"] == "command_execution"]
    assert (ran["aggregated_output"].strip(), ran["exit_code"]) == ("from the shell", 0)
    assert [item["text"] for item in items if item["type"] == "agent_message"][-1] == RESPONSE_TEXT

    events = run_codex(running_gateway, tmp_path / "error", model, settings, status="429")
    assert events[-1]["type"] == "turn.failed"
    assert "429" in events[-1]["error"]["message"]
