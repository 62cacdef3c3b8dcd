"""Authentication with gateway keys. Covers the headers that may carry a key, and where a key must never be forwarded."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import (
    CHAT_PATH,
    JSON_HEADERS,
    MESSAGES_PATH,
    RawConnection,
    Response,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import count_settled_records, wait_for_request

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

# Other tests cover header fields of both entry modes.
ONE_ENTRY_MODE = True
KEY, BY_DIGEST, EXPIRED, LATER = "pk-one-0123456789", "pk-two-0123456789", "pk-old-0123456789", "pk-later-0123456789"
STORED_CREDENTIAL = "sk-stored-0123456789"
TABLES = {
    "keys": [
        {"name": "one", "id": "k-one", "key": KEY},
        {"name": "two", "sha256": hashlib.sha256(BY_DIGEST.encode()).hexdigest()},
        {"name": "old", "key": EXPIRED, "expires_at": 1_000_000_000},
        {"name": "later", "key": LATER, "expires_at": 4_000_000_000},
    ],
    "providers": [{"slug": "mine", "provider": "mock", "api_key": STORED_CREDENTIAL}],
    "configs": [{"slug": "pc-mine", "config": {"provider": "@mine"}}],
}
PROVIDER_HEADERS = {"x-gateway-provider": "mock", **JSON_HEADERS}


def send_request(running_gateway: Gateway, path: str = CHAT_PATH, **fields: str) -> Response:
    """Sends a request with these header fields; underscores in their names become dashes."""
    return send_raw_request(
        running_gateway.base_url,
        path,
        chat_body(),
        {**PROVIDER_HEADERS, **{name.replace("_", "-"): text for name, text in fields.items()}},
    )


@pytest.mark.parametrize("key", [KEY, BY_DIGEST, LATER])
@pytest.mark.parametrize("field", ["x_gateway_api_key", "x_portkey_api_key"])
def test_accepts_a_key_in_its_own_header(running_gateway: Gateway, provider: Mock, key: str, field: str):
    assert send_request(running_gateway, authorization="Bearer sk-provider", **{field: key}).status == 200
    received = wait_for_request(provider)["headers"]
    assert received["authorization"] == "Bearer sk-provider"
    assert key not in str(received)


def test_accepts_a_key_in_authorization_and_does_not_forward_it(running_gateway: Gateway, provider: Mock):
    assert send_request(running_gateway, authorization=f"Bearer {KEY}").status == 200
    assert KEY not in str(wait_for_request(provider)["headers"])


@pytest.mark.parametrize(
    "fields",
    [
        {"x_api_key": KEY},
        {"api_key": KEY},
        {"x_goog_api_key": KEY},
        {"api_key": KEY, "authorization": f"Bearer {KEY}"},
        {"authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20261121/eu-west-1/bedrock/aws4_request, Signature=0"},
        {"sec_websocket_protocol": f"realtime, openai-insecure-api-key.{KEY}"},
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH, "/v1/files", "/v1/proxy/x"])
def test_accepts_a_key_wherever_clients_put_it(
    running_gateway: Gateway, provider: Mock, path: str, fields: dict[str, str]
):
    assert send_request(running_gateway, path, **fields).status == 200
    assert KEY not in str(wait_for_request(provider)["headers"])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"authorization": "Bearer sk-provider"},
        {"authorization": "Bearer "},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"x_gateway_api_key": "pk-wrong"},
        {"x_gateway_api_key": KEY + "0"},
        {"x_gateway_api_key": KEY[:-1]},
        {"x_gateway_api_key": KEY.upper()},
        {"x_gateway_api_key": EXPIRED},
        {"x_gateway_api_key": "pk-wrong", "authorization": f"Bearer {KEY}"},
        {"x_gateway_api_key": "pk-wrong", "x_api_key": KEY},
        {"authorization": "Bearer OPENAI_API_KEY"},
        {"authorization": f"AWS4-HMAC-SHA256 Credential={KEY}0/20261121/eu-west-1/bedrock/aws4_request"},
        {"sec_websocket_protocol": KEY},
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, MESSAGES_PATH, "/v1/files", "/v1/proxy/x"])
def test_forwards_nothing_without_a_valid_key(
    running_gateway: Gateway, provider: Mock, path: str, fields: dict[str, str]
):
    response = send_request(running_gateway, path, **fields)
    assert response.status == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert KEY not in response.body.decode()
    assert not provider.ledger()


def test_rejects_a_large_body_without_a_key_before_it_arrives(running_gateway: Gateway, provider: Mock):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(
            encode_request("POST", "/v1/files", {**PROVIDER_HEADERS, "content-length": "50000000"}, b"only the start")
        )
        assert connection.read_response().status == 401
    assert not provider.ledger()


def test_saved_provider_uses_its_own_credential(running_gateway: Gateway, provider: Mock):
    for fields in ({"x-gateway-provider": "@mine"}, {"x-gateway-config": "pc-mine"}, {"x-gateway-virtual-key": "mine"}):
        provider.clear_ledger()
        assert (
            send_raw_request(
                running_gateway.base_url, CHAT_PATH, chat_body(), {**fields, "x-gateway-api-key": KEY, **JSON_HEADERS}
            ).status
            == 200
        )
        assert wait_for_request(provider)["headers"]["authorization"] == f"Bearer {STORED_CREDENTIAL}"


def test_inline_config_sets_provider_and_credential(running_gateway: Gateway, provider: Mock):
    fields = {"x-gateway-config": '{"provider":"mock","api_key":"sk-inline"}', "x-gateway-api-key": KEY}
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), {**fields, **JSON_HEADERS}).status == 200
    assert wait_for_request(provider)["headers"]["authorization"] == "Bearer sk-inline"


def test_stored_credential_is_not_sent_to_a_custom_host(running_gateway: Gateway, provider: Mock):
    fields = {"x-gateway-provider": "@mine", "x-gateway-custom-host": provider.url, "x-gateway-api-key": KEY}
    assert send_raw_request(running_gateway.base_url, CHAT_PATH, chat_body(), {**fields, **JSON_HEADERS}).status == 400
    assert not provider.ledger()


def test_record_contains_the_key_id_and_not_the_key(running_gateway: Gateway):
    before = count_settled_records(running_gateway, {**PROVIDER_HEADERS, "x-gateway-api-key": LATER})
    send_request(running_gateway, x_gateway_api_key=KEY)
    record = running_gateway.records(before + 1)[before]
    assert record["api_key_id"] == "k-one"
    assert KEY not in str(record)


def test_key_is_rejected_after_its_expiry(running_gateway: Gateway):
    ends = int(time.time()) + 3
    running_gateway.configure(
        {**TABLES, "keys": [*TABLES["keys"], {"name": "brief", "key": "pk-brief", "expires_at": ends}]}
    )
    statuses = []
    while time.time() < ends + 1.5:
        statuses.append(send_request(running_gateway, x_gateway_api_key="pk-brief").status)
        time.sleep(0.02)
    assert 200 in statuses
    # Unknown until the config file is reloaded, then valid, then expired.
    good = statuses.index(200)
    over = statuses.index(401, good)
    assert set(statuses[good:over]) == {200}
    assert set(statuses[over:]) == {401}
