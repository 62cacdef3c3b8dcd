"""Shared parts of the SDK scripts: inputs from the environment, and the output of each call's result as a line of JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GATEWAY, KEY = os.environ["GATEWAY"], os.environ["KEY"]
PROVIDERS = os.environ["PROVIDERS"].split()
PROMPT = "say something"
TOOL_ARGUMENTS = {"city": "Oslo"}
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def model_name(provider: str) -> str:
    """Returns the name of a model of the provider that is saved under this slug."""
    return f"@{provider}/mock"


def mock_headers(**mock: str) -> dict[str, str]:
    """Returns headers that set the mock provider's behaviour and make the gateway forward them."""
    fields = {f"x-mock-{key}": value for key, value in mock.items()}
    return {**fields, "x-gateway-forward-headers": ",".join(fields)} if fields else {}


def tool_call_headers(tool: str = "weather") -> dict[str, str]:
    return mock_headers(call=tool, arguments=json.dumps(TOOL_ARGUMENTS))


MOCK_REJECTION = {"status": "429"}


def report_call(provider: str, call: str, action: Callable[[], object]) -> None:
    try:
        received = action()
    except Exception as error:  # noqa: BLE001 — whatever it is, the test shows it
        received = f"{type(error).__name__}: {error}"
    print(json.dumps([provider, call, received]), flush=True)


def failure_status(
    created: Callable[[], object], kind: type[Exception], status: Callable[[Exception], object]
) -> object:
    """Returns the status with which a call fails, as the SDK's own exception reports it."""
    try:
        created()
    except kind as error:
        return status(error)
    return "it did not fail"
