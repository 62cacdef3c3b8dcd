"""Routing strategies and config features through a real gateway. Runs on both request paths: intercepted and plain
ASGI.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, Response, chat_body, send_raw_request
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Gateway, Mock

TABLES = {"routing": {"retry_backoff_ms": 1}, "upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
TARGET_LIMITS = {
    "MAX_ROOT_CONFIG_TARGETS": "2",
    "MAX_CONDITIONAL_ROOT_CONFIG_TARGETS": "3",
    "MAX_NESTED_CONFIG_TARGETS": "1",
}


def mock_target(behaviour: str, **more: object) -> dict[str, Any]:
    return {"provider": "mock", "override_params": {"model": f"mock?{behaviour}"}, **more}


BAD, WELL = mock_target("status=503"), mock_target("chunks=2")


def strategy_config(mode: str, *targets: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"strategy": {"mode": mode, **more}, "targets": list(targets)}


def send_request(gateway: Gateway, config: object, body: bytes = b"", path: str = CHAT_PATH, **more: str) -> Response:
    content = {f"x-gateway-{name.replace('_', '-')}": value for name, value in more.items()}
    text = config if isinstance(config, str) else json.dumps(config)
    return send_raw_request(
        gateway.base_url, path, body or chat_body(), {"x-gateway-config": text, **content, **JSON_HEADERS}
    )


def routing_outcome(response: Response) -> tuple[int, str | None, str | None]:
    names = ("x-gateway-last-used-option-index", "x-gateway-retry-attempt-count")
    return (response.status, *(response.get_header(name) for name in names))


PAID_CONDITION = {"query": {"$or": [{"metadata.plan": "paid"}], "params.max_tokens": {"$lte": 64}}, "then": "b"}
CONDITIONS = {"conditions": [PAID_CONDITION], "default": "a"}
NAMED_TARGETS = (mock_target("chunks=1", name="a"), mock_target("chunks=2", name="b"))
HEDGING = {"hedge": {"after_ms": 30, "max_ratio": 1}}
CIRCUIT_BREAKER = {
    "cb_config": {
        "failure_threshold": 1,
        "failure_threshold_percentage": 1,
        "minimum_requests": 1,
        "cooldown_interval": 30_000,
    }
}
STICKY_SESSION = {"sticky": {"hash_fields": ["metadata.plan"]}}
FALLBACK_ON_429 = {"on_status_codes": [429]}


@pytest.mark.parametrize(
    ("config", "expected", "attempts"),
    [
        (strategy_config("single", WELL, BAD), (200, "config.targets[0]", "0"), 1),
        (strategy_config("fallback", BAD, WELL), (200, "config.targets[1]", "0"), 2),
        (
            strategy_config("fallback", mock_target("status=404"), WELL, **FALLBACK_ON_429),
            (404, "config.targets[0]", "0"),
            1,
        ),
        (
            strategy_config("fallback", BAD, strategy_config("fallback", BAD, WELL)),
            (200, "config.targets[1].targets[1]", "0"),
            3,
        ),
        (strategy_config("loadbalance", {**BAD, "weight": 0}, WELL), (200, "config.targets[1]", "0"), 1),
        (
            strategy_config("loadbalance", {**BAD, "weight": 0}, WELL, **STICKY_SESSION),
            (200, "config.targets[1]", "0"),
            1,
        ),
        (strategy_config("conditional", *NAMED_TARGETS, **CONDITIONS), (200, "config.targets[1]", "0"), 1),
        (
            strategy_config("fallback", mock_target("fault=silence"), WELL, **HEDGING),
            (200, "config.targets[1]", "0"),
            2,
        ),
        (mock_target("status=503", retry={"attempts": 2}), (503, "config", "-1"), 3),
        (
            mock_target("fault=429&retry_after=0", retry={"attempts": 1, "use_retry_after_headers": True}),
            (429, "config", "-1"),
            2,
        ),
        (mock_target("fault=silence", request_timeout=500), (408, "config", "0"), 1),
        (
            {"provider": "mock", "requestTimeout": 500, "overrideParams": {"model": "mock?fault=silence"}},
            (408, "config", "0"),
            1,
        ),
    ],
)
def test_strategy_sends_request_to_the_expected_target(
    running_gateway: Gateway, provider: Mock, config: dict[str, Any], expected: tuple[int, str, str], attempts: int
):
    # Streaming makes no difference before the first byte.
    for number, stream in enumerate((False, True), 1):
        body = chat_body(f"m-{running_gateway.port}-{number}", stream=stream)
        response = send_request(running_gateway, config, body, metadata='{"plan": "paid"}', explain="true")
        assert routing_outcome(response) == expected, response
        reported = json.loads(response.get_header("x-gateway-explanation") or "")
        assert (reported["option"], reported["target"]["target"]) == (expected[1], expected[1])
        assert len(provider.ledger()) == number * attempts
        is_persistent = "retry" in config or config.get("strategy", {}).get("mode") == "fallback"
        assert response.get_header("x-should-retry") == ("false" if expected[0] >= 400 and is_persistent else None)


def test_response_reports_the_retry_count(running_gateway: Gateway, provider: Mock):
    config = mock_target(f"status=503&times=1&chunks={running_gateway.port}", retry={"attempts": 2})
    assert routing_outcome(send_request(running_gateway, config)) == (200, "config", "1")
    assert len(provider.ledger()) == 2


def test_circuit_breaker_skips_a_failing_target(running_gateway: Gateway, provider: Mock):
    config = strategy_config(
        "fallback", mock_target(f"status=503&chunks={running_gateway.port}"), WELL, **CIRCUIT_BREAKER
    )
    assert [routing_outcome(send_request(running_gateway, config))[1] for _ in range(3)] == ["config.targets[1]"] * 3
    assert len(provider.ledger()) == 4


def test_cache_hits_refreshes_and_separates_namespaces(running_gateway: Gateway):
    config = mock_target(
        f"chunks=2&chunk_bytes={running_gateway.port % 97 + 8}", cache={"mode": "simple", "max_age": 60}
    )
    for stream in (False, True):
        body = chat_body(stream=stream)
        received = [
            send_request(running_gateway, config, body, **more)
            for more in ({}, {}, {"cache_force_refresh": "true"}, {"cache_namespace": "n"})
        ]
        assert [item.get_header("x-gateway-cache-status") for item in received] == ["MISS", "HIT", "REFRESH", "MISS"]
        assert received[0].body == received[1].body


def test_config_changes_parameters_and_headers(running_gateway: Gateway, provider: Mock):
    config = {
        "provider": "mock",
        "default_params": {"max_tokens": 1, "seed": 7},
        "override_params": {"user": "ann"},
        "drop_params": ["messages[*].name", "tools[0].function.strict", "nowhere"],
        "forward_headers": ["x-team"],
        "custom_host": f"{provider.url}/v1",
    }
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    body = {
        "model": "mock",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "é", "name": "n"}],
        "tools": tools,
    }
    headers = {"x-gateway-config": json.dumps(config), "x-team": "blue", "x-gateway-explain": "true", **JSON_HEADERS}
    response = send_raw_request(
        running_gateway.base_url, CHAT_PATH, json.dumps(body, ensure_ascii=False).encode(), headers
    )
    assert response.status == 200
    reported = json.loads(response.get_header("x-gateway-explanation") or "")["target"]["body"]
    del body["messages"][0]["name"], tools[0]["function"]["strict"]
    assert list(reported.items()) == [*body.items(), ("seed", 7), ("user", "ann")]
    (received,) = provider.ledger()
    assert received["headers"]["x-team"] == "blue"


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/messages", "/v1/responses"])
def test_broken_stream_is_held_or_continued(running_gateway: Gateway, path: str):
    body = {"model": "m", "max_tokens": 99, "stream": True}
    body["input" if path == "/v1/responses" else "messages"] = [{"role": "user", "content": "hi"}]
    complete = send_request(running_gateway, mock_target("chunks=30"), json.dumps(body).encode(), path)

    def stream_text(response: Response) -> str:
        read = [json.loads(event.partition(b"data: ")[2]) for event in response.events if b"data: {" in event]
        content = [
            item["choices"][0]["delta"].get("content") if item.get("choices") else item.get("delta")
            for item in read
            if item.get("choices") or item.get("type", "").endswith("delta")
        ]
        return "".join(part if isinstance(part, str) else (part or {}).get("text") or "" for part in content)

    assert len(stream_text(complete)) > 100
    for mode in ("hold", "continue"):
        config = {
            **strategy_config(
                "fallback", mock_target("chunks=30&fault=cut&after=20"), mock_target("chunks=30&prefix=on")
            ),
            "recovery": mode,
        }
        response = send_request(running_gateway, config, json.dumps(body).encode(), path)
        assert (response.status, stream_text(response)) == (200, stream_text(complete)), (mode, response)


def test_passthrough_needs_a_provider_and_no_other_options(running_gateway: Gateway):
    refused = send_request(running_gateway, {"passthrough": True})
    assert (refused.status, refused.json()["error"]["code"]) == (400, "provider_unresolved")
    for other_fields in ({"targets": [WELL]}, {"strategy": {"mode": "single"}}, {"override_params": {"a": 1}}):
        refused = send_request(running_gateway, {"passthrough": True, **other_fields}, provider="mock")
        assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_config"), other_fields


@pytest.mark.parametrize(
    ("config", "location"),
    [
        (strategy_config("fallback", WELL, WELL), None),
        (strategy_config("fallback", WELL, WELL, WELL), "targets"),
        (strategy_config("conditional", *NAMED_TARGETS, WELL, **CONDITIONS), None),
        (strategy_config("conditional", *NAMED_TARGETS, WELL, WELL, **CONDITIONS), "targets"),
        (strategy_config("fallback", WELL, strategy_config("single", WELL)), None),
        (strategy_config("fallback", WELL, strategy_config("fallback", WELL, WELL)), "targets[1]"),
    ],
)
def test_operator_target_limits_apply_to_request_configs(
    limited_gateway: Gateway, config: dict[str, Any], location: str | None
):
    response = send_request(limited_gateway, config)
    if location is None:
        assert response.status == 200, response
    else:
        assert (response.status, response.json()["error"]["code"]) == (400, "invalid_config")
        assert response.json()["errors"][0].startswith(f"path: {location}, ")


@pytest.fixture(scope="module")
def limited_gateway(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with run_gateway(
        tmp_path_factory.mktemp("limited"), {"mock": {"host": provider.url}}, env=TARGET_LIMITS
    ) as gateway:
        yield gateway
