"""Runner for the calls of one SDK. Prints the result of each call as a line of JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    # Request that the provider should receive, and the call. The call returns a true value if the SDK understood the
    # response.
    Calls = list[tuple[str, Callable[[Any], object]]]

HEADERS = {"x-gateway-provider": "mock"}
# Text with which aimock responds to the weather question.
WEATHER_TEXT = "Sunny, with a light wind from the west and no cloud before the evening."


def aimock_headers(provider: str) -> dict[str, str]:
    """Returns headers that send a client's requests to aimock instead of the mock provider."""
    return {"x-gateway-provider": provider, "x-gateway-custom-host": os.environ["AIMOCK"] + "/v1"}


def run_calls(calls: Calls, client: object) -> None:
    for route, call in calls:
        print(json.dumps([route, describe_result(call, client)]))


def describe_result(call: Callable[[Any], object], client: object) -> str:
    try:
        actual = call(client)
    except Exception as error:  # noqa: BLE001 — whatever it is, the test shows it
        return f"{type(error).__name__}: {error}"
    return "understood" if actual else f"misunderstood: {actual!r}"
