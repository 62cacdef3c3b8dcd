"""SSRF protection against thousands of spellings of forbidden hosts, sent to a real gateway. No address of this machine
is dialled.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import json
import random
import socket
from typing import TYPE_CHECKING

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock import engine
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, MOCK_HEADERS, RawConnection, chat_body, encode_request
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.raw_http import Response

# Thousands of requests, some of which sign with a key.
pytestmark = pytest.mark.timeout(180)
CANARY = "sk-canary-of-a-provider"
OPENAI_HEADERS = {"x-gateway-provider": "openai", "authorization": f"Bearer {CANARY}", **JSON_HEADERS}
UPGRADE_HEADERS = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
FORBIDDEN_ADDRESSES = (
    "127.0.0.1 127.1.2.3 0.0.0.0 10.0.0.1 172.16.0.1 192.168.1.1 100.64.0.1 169.254.169.254 169.254.170.2 "
    "100.100.100.200 168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1 203.0.113.7 224.0.0.1 240.0.0.1 255.255.255.255"
)
FORBIDDEN_NAMES = (
    "localhost LOCALHOST localhost. a.localhost host.docker.internal x.local x.internal x.lan x.home x.corp x.test x.onion "
    "metadata.google.internal metadata instance-data kubernetes.default.svc localtest.me lvh.me [::1] [::] [fe80::1] "
    "[fd00:ec2::254] [ff02::1] [2001:db8::1] [::1%25lo] xn--lclhst-3nf5a.example a.b.c.d.e.f.g.h.i.j.k 1.2.3.4.5 0 0x0"
)


def forbidden_addresses() -> list[ipaddress.IPv4Address]:
    chance = random.Random(11)  # noqa: S311 - the same addresses each time, and nobody's secret
    nets = [ipaddress.ip_network(net) for net in ("127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12")]
    more = [net[chance.randrange(1, net.num_addresses - 1)] for net in nets for _ in range(10)]
    return [
        *map(ipaddress.IPv4Address, FORBIDDEN_ADDRESSES.split()),
        *(ipaddress.IPv4Address(int(item)) for item in more),
    ]


def address_spellings(address: ipaddress.IPv4Address) -> list[str]:
    complete, text = int(address), str(address)
    a, b, c, d = address.packed
    high, low = complete >> 16, complete & 0xFFFF
    wide = "".join(chr(ord(digit) + 0xFEE0) for digit in text)
    encoded = "".join(f"%{ord(digit):02x}" for digit in text)
    return [
        *(
            text,
            f"{complete}",
            f"{complete:#x}",
            f"0{complete:o}",
            f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
            f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        ),
        *(
            f"{a}.{complete & 0xFFFFFF}",
            f"{a}.{b}.{low}",
            f"{a:#x}.0{b:o}.{low}",
            f"{complete + 2**32}",
            f"{a + 256}.{b}.{c}.{d}",
        ),
        *(f"{text}.", f"{text}%00", f"{text}\\.example.com", f"{text}#@api.openai.com", f"{text}?@api.openai.com"),
        *(f"api.openai.com@{text}", f"api.openai.com\\@{text}", f"{text}.nip.io", f"{text.replace('.', '-')}.sslip.io"),
        *(wide, encoded, text.replace(".", "\u3002"), text.replace("1", "\u2460"), f"{text}\u00ad", f"{text} x"),
        *(
            f"[::ffff:{text}]",
            f"[::ffff:{high:x}:{low:x}]",
            f"[::ffff:0:{text}]",
            f"[::{text}]",
            f"[::ffff:{text}%25lo]",
        ),
        *(f"[2002:{high:x}:{low:x}::1]", f"[64:ff9b::{text}]", f"[64:ff9b:1::{text}]", f"[2001:0:{high:x}:{low:x}::]"),
    ]


def forbidden_urls(port: int) -> Iterator[str]:
    for host in itertools.chain.from_iterable(
        [*map(address_spellings, forbidden_addresses()), FORBIDDEN_NAMES.split()]
    ):
        at = next((index for index, mark in enumerate(host) if mark in "#?"), len(host))
        yield f"http://{host[:at]}:{port}{host[at:]}/v1"
    yield f"http://127.0.0.1:{port}/" + "x" * 2048
    for service in (22, 25, 445, 3306, 5432, 6379, 6443, 9200, 27017):
        yield f"https://api.openai.com:{service}"


REQUESTS_BY_SURFACE: dict[str, Callable[[str], tuple[str, dict[str, str]]]] = {
    "header": lambda url: (CHAT_PATH, {**OPENAI_HEADERS, "x-gateway-custom-host": url}),
    "alias": lambda url: (CHAT_PATH, {**OPENAI_HEADERS, "x-portkey-custom-host": url}),
    "inline-config": lambda url: (CHAT_PATH, {**OPENAI_HEADERS, "x-gateway-config": json.dumps({"custom_host": url})}),
    "proxy": lambda url: ("/v1/proxy/files", {**OPENAI_HEADERS, "x-gateway-custom-host": url}),
    "form": lambda url: (
        "/v1/files",
        {**OPENAI_HEADERS, "x-gateway-custom-host": url, "content-type": "multipart/form-data"},
    ),
    "target": lambda url: (CHAT_PATH, {**OPENAI_HEADERS, "x-gateway-config": json.dumps(nested_config(url))}),
    "foundry": lambda url: (
        CHAT_PATH,
        {**OPENAI_HEADERS, "x-gateway-provider": "azure-ai", "x-gateway-azure-foundry-url": https_url(url)},
    ),
    "hugging-face": lambda url: (
        CHAT_PATH,
        {**OPENAI_HEADERS, "x-gateway-provider": "huggingface", "x-gateway-huggingface-base-url": url},
    ),
    "socket": lambda url: ("/v1/realtime?model=m", {**OPENAI_HEADERS, **UPGRADE_HEADERS, "x-gateway-custom-host": url}),
}
# Provider options that hold part of a host, or the address of a credential service.
HOST_OPTIONS: dict[str, dict[str, str]] = {
    "azure-resource-name": {"provider": "azure-openai", "deployment_id": "d", "api_version": "v"},
    "databricks-workspace": {"provider": "databricks"},
    "snowflake-account": {"provider": "cortex"},
    "aws-sts-endpoint": {
        "provider": "bedrock",
        "aws_auth_type": "assumedRole",
        "aws_role_arn": "arn:aws:iam::123456789012:role/r",
        "aws_region": "us-east-1",
        "aws_access_key_id": "a",
        "aws_secret_access_key": CANARY,
    },
    "azure-authority-host": {
        "provider": "azure-openai",
        "azure_auth_mode": "entra",
        "azure_entra_tenant_id": "t",
        "azure_entra_client_id": "c",
        "azure_entra_client_secret": CANARY,
        "resource_name": "r",
        "deployment_id": "d",
        "api_version": "v",
    },
    "vertex-service-account-json": {"provider": "vertex-ai", "vertex_region": "us-central1", "vertex_project_id": "p"},
}


@functools.cache
def private_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(kind, form, serialization.NoEncryption()).decode()


def service_account_json(token_uri: str) -> str:
    return json.dumps({"client_email": "a@b.example", "private_key": private_key(), "token_uri": token_uri})


def nested_config(url: str) -> dict[str, object]:
    """Returns a config with this custom host in a nested target."""
    target = {"provider": "openai", "api_key": CANARY, "custom_host": url}
    return {"strategy": {"mode": "single"}, "targets": [{"strategy": {"mode": "fallback"}, "targets": [target]}]}


def https_url(url: str) -> str:
    return url.replace("http://", "https://", 1)


@pytest.fixture(scope="module")
def unused_listener() -> Iterator[socket.socket]:
    """Listens on all addresses of this machine, and checks that nothing connects."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096) as listener:
        yield listener
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture(scope="module")
def restricted_gateway(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that trusts only the mock provider's host."""
    with run_gateway(tmp_path_factory.mktemp("restricted"), {"mock": {"host": provider.url}}) as gateway:
        yield gateway


@contextlib.contextmanager
def request_sender(gateway: Gateway) -> Iterator[Callable[[str, dict[str, str]], Response]]:
    """Yields a function that sends requests over one connection; header values are sent as UTF-8 bytes."""
    with RawConnection(gateway.base_url) as connection:

        def send_request(path: str, headers: dict[str, str]) -> Response:
            fields = {name: value.encode().decode("latin-1") for name, value in headers.items()}
            return connection.request(path, None if "upgrade" in headers else chat_body(), fields)

        yield send_request


def assert_refused(response: Response, url: str) -> None:
    assert response.status == 400, (url, response)
    code = response.json()["error"]["code"]
    is_ones_own = code == "invalid_provider_option" or (code == "invalid_config" and b"custom_host" in response.body)
    assert code == "invalid_custom_host" or is_ones_own, (url, response)
    assert CANARY.encode() not in response.body, url


@pytest.mark.parametrize("surface", REQUESTS_BY_SURFACE)
def test_forbidden_host_in_request_is_not_dialled(
    restricted_gateway: Gateway, unused_listener: socket.socket, surface: str
):
    urls = list(forbidden_urls(unused_listener.getsockname()[1]))
    assert len(urls) >= 2000
    with request_sender(restricted_gateway) as send:
        for url in urls:
            assert_refused(send(*REQUESTS_BY_SURFACE[surface](url)), url)


@pytest.mark.parametrize("option", HOST_OPTIONS)
def test_forbidden_host_in_provider_option_is_not_dialled(
    restricted_gateway: Gateway, unused_listener: socket.socket, option: str
):
    port = unused_listener.getsockname()[1]
    parts = [url for url in forbidden_urls(port) if len(url) < 2048]
    # Also each of them as a plain name, because the gateway builds a host from the option.
    parts += [url.removeprefix("http://").partition(":")[0] + f":{port}/x?" for url in parts]
    with request_sender(restricted_gateway) as send:
        for part in parts:
            credential = service_account_json(part) if option == "vertex-service-account-json" else part
            config = {**HOST_OPTIONS[option], option.replace("-", "_"): credential}
            response = send(CHAT_PATH, {**JSON_HEADERS, "x-gateway-config": json.dumps(config)})
            refused = {"invalid_provider_option", "invalid_config", "invalid_custom_host", "credential_unavailable"}
            assert response.status in (400, 502), (part, response)
            assert response.json()["error"]["code"] in refused, (part, response)
            assert CANARY.encode() not in response.body, part


def test_raw_proxy_path_cannot_reach_another_host(
    restricted_gateway: Gateway, provider: Mock, unused_listener: socket.socket
):
    urls = [
        url
        for url in forbidden_urls(unused_listener.getsockname()[1])
        if url.isascii() and " " not in url and "#" not in url
    ]
    with request_sender(restricted_gateway) as send:
        assert {send(f"/v1/proxy/{url}", MOCK_HEADERS).status for url in urls} <= {200, 400}
    assert provider.ledger()


def test_forbidden_host_in_saved_provider_is_not_dialled(tmp_path: Path, unused_listener: socket.socket):
    providers: list[dict[str, str]] = []
    refused = 0
    for number, url in enumerate(forbidden_urls(unused_listener.getsockname()[1])):
        row = {"slug": f"p-{number}", "provider": "openai", "api_key": CANARY, "custom_host": url}
        try:
            engine.check("snapshot", msgspec.json.encode({"epoch": "1", "providers": [row]}))
            providers.append(row)
        except engine.EngineError:
            refused += 1
    assert min(refused, len(providers)) > 300
    configs = [
        {"slug": f"c-{row['slug']}", "config": {"provider": "openai", "custom_host": row["custom_host"]}}
        for row in providers
    ]
    with (
        run_gateway(tmp_path, {"providers": providers, "configs": configs}) as gateway,
        request_sender(gateway) as send,
    ):
        for row in providers:
            assert_refused(
                send(CHAT_PATH, {"x-gateway-provider": f"@{row['slug']}", **JSON_HEADERS}), row["custom_host"]
            )
            assert_refused(
                send(CHAT_PATH, {"x-gateway-config": f"c-{row['slug']}", **OPENAI_HEADERS}), row["custom_host"]
            )


def test_trusted_host_is_dialled_from_every_surface(provider: Mock, tmp_path: Path):
    port = provider.url.rsplit(":", 1)[1]
    urls = [f"http://{host}:{port}/v1" for host in ("127.0.0.1", "2130706433", "0x7f.1", "LocalHost")]
    env = {"TRUSTED_CUSTOM_HOSTS": "*.localhost, 127.0.0.1"}
    saved = {"slug": "near", "provider": "openai", "custom_host": urls[0]}
    with run_gateway(tmp_path, {"providers": [saved]}, env=env) as gateway, request_sender(gateway) as send:
        # Foundry URLs use TLS, which the mock provider does not support.
        plain = [surface for surface in REQUESTS_BY_SURFACE if surface not in ("foundry", "socket")]
        for url, surface in itertools.product(urls, plain):
            assert send(*REQUESTS_BY_SURFACE[surface](url)).status == 200, (url, surface)
        path, headers = REQUESTS_BY_SURFACE["socket"](urls[0])
        with RawConnection(gateway.base_url) as connection:
            connection.send(encode_request("GET", path, headers))
            assert connection.read_head().status == 101
        dialled = send(*REQUESTS_BY_SURFACE["foundry"](urls[0]))
        assert (dialled.status, dialled.json()["error"]["code"]) == (502, "upstream_connect_failed")
        assert send(CHAT_PATH, {**OPENAI_HEADERS, "x-gateway-provider": "@near"}).status == 200
    # Plus the WebSocket and the saved provider.
    assert len(provider.ledger()) == len(urls) * len(plain) + 2
