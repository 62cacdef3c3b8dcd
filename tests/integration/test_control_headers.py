"""Control headers of the specification. Each works under its own prefix and the alias, and none is forwarded to the
provider.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import engine
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import count_settled_records

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

# Other tests cover header fields of both entry modes.
ONE_ENTRY_MODE = True
KEY = "pk-0123456789"
TABLES = {
    "keys": [{"name": "k", "id": "k-1", "key": KEY}],
    "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    "configs": [{"slug": "pc-saved", "config": {"provider": "mock", "override_params": {"model": "saved"}}}],
    "providers": [{"slug": "own", "provider": "mock", "api_key": "sk-own"}],
}
HEADERS = {**MOCK_HEADERS, "x-gateway-api-key": KEY}
OVERRIDE_CONFIG = json.dumps({"provider": "mock", "override_params": {"model": "overridden"}})
CACHE_CONFIG = json.dumps({"provider": "mock", "cache": {"mode": "simple"}})
TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
# Header, its value, further headers, and the expected result: `status`, or fields of the record or of the provider's
# request.
HEADER_CASES: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("api-key", "pk-wrong", {}, {"status": 401}),
    ("provider", "nobody", {}, {"status": 400}),
    ("provider", "@own", {}, {"authorization": "Bearer sk-own"}),
    ("virtual-key", "own", {"x-gateway-provider": ""}, {"authorization": "Bearer sk-own"}),
    ("config", "pc-saved", {"x-gateway-provider": ""}, {"ai_model": "saved"}),
    ("config", OVERRIDE_CONFIG, {}, {"ai_model": "overridden"}),
    ("custom-host", "http://10.0.0.1/v1", {"x-gateway-provider": "openai"}, {"status": 400}),
    ("trace-id", "t-1", {}, {"trace_id": "t-1"}),
    ("trace-id", "t-1", {"traceparent": TRACEPARENT}, {"trace_id": "t-1", "parent_span_id": TRACEPARENT[36:52]}),
    ("span-id", "s-1", {}, {"span_id": "s-1"}),
    ("parent-span-id", "s-0", {}, {"parent_span_id": "s-0"}),
    ("span-name", "ask", {}, {"span_name": "ask"}),
    ("metadata", '{"a":"1"}', {}, {"metadata": {"a": "1"}}),
    ("metadata", '{"a":1}', {}, {"status": 400}),
    ("metadata", '{"a":"1"}', {"baggage": "a=2,b=3"}, {"metadata": {"a": "1", "b": "3"}}),
    ("cache-force-refresh", "true", {"x-gateway-config": CACHE_CONFIG}, {"cache_status": "refresh"}),
    ("cache-namespace", "of {prefix}", {"x-gateway-config": CACHE_CONFIG}, {"cache_status": "miss"}),
    ("request-timeout", "1", {}, {"status": 408}),
    ("strict-open-ai-compliance", "false", {}, {"status": 200}),
    ("strict-openai-compliance", "false", {}, {"status": 200}),
    ("forward-headers", "x-team", {"x-team": "red"}, {"x-team": "red"}),
    ("forward-headers", "x-other", {"x-team": "red"}, {"x-team": None}),
    ("forward-headers", "x-gateway-forward-headers", {}, {"status": 400}),
    ("debug", "false", {}, {"debug": False, "request_headers": None}),
    ("nitro-mode", "true", {"x-gateway-config": OVERRIDE_CONFIG}, {"ai_model": "mock?first_ms=30"}),
    # As in a config: a request for guardrails that do not exist is rejected, not served without them.
    ("default-input-guardrails", '["g-1"]', {}, {"status": 400}),
    ("default-output-guardrails", '["g-1"]', {}, {"status": 400}),
    ("default-input-guardrails", "[]", {}, {"status": 200}),
    # Accepted without effect: headers of older clients or other transports, and flags that refer to nothing here.
    *(
        (name, "x", {}, {"status": 200})
        for name in (
            "mode",
            "retry-count",
            "cache",
            "beta",
            "workspace",
            "error-details",
            "gateway-transport",
            "provider-responses-proxy",
            "audio-file-duration",
        )
    ),
]


# Headers that the specification defines for one provider each.
AZURE_HEADERS = (
    "azure-api-version azure-ad-token azure-auth-mode azure-managed-client-id azure-entra-client-id "
    "azure-entra-client-secret azure-entra-tenant-id azure-entra-scope"
)
AWS_HEADERS = (
    "aws-access-key-id aws-secret-access-key aws-session-token aws-region aws-role-arn aws-auth-type aws-external-id"
)
SPECIFIED_HEADERS = {
    "azure-openai": f"{AZURE_HEADERS} azure-resource-name azure-deployment-id azure-workload-client-id azure-model-name "
    "openai-beta",
    "azure-ai": f"{AZURE_HEADERS} azure-foundry-url azure-endpoint-name azure-extra-params anthropic-version "
    "provider-responses-proxy",
    "bedrock": f"{AWS_HEADERS} aws-s3-bucket aws-s3-object-key provider-file-name aws-bedrock-model provider-model "
    "amz-server-side-encryption amz-server-side-encryption-aws-kms-key-id anthropic-beta anthropic-version",
    "sagemaker": f"{AWS_HEADERS} amzn-sagemaker-custom-attributes amzn-sagemaker-target-model amzn-sagemaker-target-variant "
    "amzn-sagemaker-target-container-hostname amzn-sagemaker-inference-id amzn-sagemaker-enable-explanations "
    "amzn-sagemaker-inference-component amzn-sagemaker-session-id amzn-sagemaker-model-name",
    "vertex-ai": "vertex-project-id vertex-region vertex-service-account-json vertex-storage-bucket-name "
    "provider-file-name provider-model provider-batch-endpoint anthropic-beta anthropic-version vertex-auth-type",
    "openai": "openai-organization openai-project openai-beta",
    "anthropic": "anthropic-beta anthropic-version",
    "workers-ai": "workers-ai-account-id",
    "huggingface": "huggingface-base-url",
    "fireworks-ai": "fireworks-account-id file-upload-size file-purpose",
    "stability-ai": "stability-client-id stability-client-user-id stability-client-version",
    "cortex": "snowflake-account",
    "oracle": "oracle-api-version oracle-region oracle-compartment-id oracle-serving-mode oracle-tenancy oracle-user "
    "oracle-fingerprint oracle-private-key oracle-key-passphrase",
    "databricks": "databricks-workspace databricks-serving-endpoint-name",
    "byteplus": "byteplus-region",
    "claude-platform-aws": "anthropic-aws-workspace-id",
    "mistral-ai": "mistral-fim-completion",
}


@pytest.mark.parametrize("prefix", ["x-gateway-", "x-portkey-"])
@pytest.mark.parametrize("case", HEADER_CASES, ids=[f"{name}={value[:12]}" for name, value, *_ in HEADER_CASES])
def test_control_header_works_under_both_prefixes(
    running_gateway: Gateway, provider: Mock, prefix: str, case: tuple[str, str, dict[str, str], dict[str, Any]]
):
    name, value, more, expected = case
    is_refused = expected.get("status") == 401
    known = len(running_gateway.refused_records(0)) if is_refused else count_settled_records(running_gateway, HEADERS)
    provider.clear_ledger()
    headers = {**HEADERS, **more}
    headers = {key: content for key, content in headers.items() if content and key != f"x-gateway-{name}"}
    response = send_raw_request(
        running_gateway.base_url,
        CHAT_PATH,
        chat_body("mock?first_ms=30"),
        {**headers, prefix + name: value.replace("{prefix}", prefix)},
    )
    (record,) = (running_gateway.refused_records if is_refused else running_gateway.records)(known + 1)[known:]
    received = provider.ledger()
    sent = received[0]["headers"] if received else {}
    assert response.status == record["response_status_code"] == expected.get("status", 200)
    actual = {key: record.get(key, sent.get(key)) for key in expected if key != "status"}
    assert actual == {key: value for key, value in expected.items() if key != "status"}
    assert not [key for key in sent if key.startswith(("x-gateway-", "x-portkey-"))]
    assert not any(KEY in str(value) for value in sent.values())
    assert bool(received) == (response.status in {200, 408})


def test_custom_host_receives_the_request(running_gateway: Gateway, provider: Mock):
    provider.clear_ledger()
    headers = {**HEADERS, "x-gateway-provider": "openai", "x-gateway-custom-host": f"{provider.url}/own/v1"}
    assert send_raw_request(running_gateway.base_url, "/v1/proxy/some/where", chat_body(), headers).status == 200
    assert [entry["path"] for entry in provider.ledger()] == ["/own/v1/some/where"]


@pytest.mark.parametrize(("strict", "content"), [("true", "stop"), ("false", "end_turn")])
def test_without_strict_compliance_keeps_native_finish_reason(
    running_gateway: Gateway, provider: Mock, strict: str, content: str
):
    host = {"x-gateway-provider": "anthropic", "x-gateway-custom-host": f"{provider.url}/v1"}
    headers = {**HEADERS, **host, "x-gateway-strict-open-ai-compliance": strict}
    response = send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), headers)
    assert response.json()["choices"][0]["finish_reason"] == content


@pytest.mark.parametrize("slug", SPECIFIED_HEADERS)
def test_provider_headers_of_the_specification_are_options(slug: str):
    (row,) = [row for row in engine.catalogue() if row["slug"] == slug]
    known = {header for _, header in row["options"]}
    assert set(SPECIFIED_HEADERS[slug].split()) <= known
