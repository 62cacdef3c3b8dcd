"""No secret is to be found in anything that the gateway writes, shows or says, however it is spelled there."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from typing import TYPE_CHECKING

from tests.integration.serving import running
from tests.integration.wire import CHAT, JSON, MESSAGES, Wire, ask, asked, request
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.wire import Answer

    Call = tuple[str, str, bytes | None, dict[str, str]]

PARTIAL = 8
MADE: dict[str, str] = {}


def canary(name: str) -> str:
    """A secret like no other, the same whenever it is asked for by this name."""
    return MADE.setdefault(name, base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()[:26].lower())


def basic(name: str) -> str:
    return "Basic " + base64.b64encode(f"user:{canary(name)}".encode()).decode()


def signed(access_key_id: str, name: str) -> str:
    scope = f"{access_key_id}/20261121/eu-west-1/bedrock/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={canary(name)}"


TABLES = {
    "keys": [{"name": "k", "key": canary("gateway key")}, {"name": "old", "key": canary("old key"), "expires_at": 1}],
    "providers": [
        {"slug": "mine", "provider": "mock", "api_key": canary("stored")},
        {"slug": "env", "provider": "mock", "api_key": "${CANARY_KEY}"},
    ],
    "configs": [{"slug": "pc", "config": {"provider": "mock", "api_key": canary("stored in a config")}}],
    "records": {"sensitive_headers": ["X-Team"], "headers_to_metadata": ["Authorization", "x-team", "x-private"]},
    "log": {"level": "debug"},
    "metrics": {"enabled": True},
    "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
}
CALLER = {"x-gateway-provider": "mock", "x-gateway-api-key": canary("gateway key"), **JSON}
AWS = {
    "aws_access_key_id": canary("aws id"),
    "aws_secret_access_key": canary("aws"),
    "aws_session_token": canary("sts"),
}
INLINE = json.dumps({"provider": "mock", "api_key": canary("inline"), "more": {"api_key": canary("unknown")}, **AWS})


def places() -> list[dict[str, str]]:
    """Header fields for every place that a secret may be in."""
    return [
        {"authorization": f"Bearer {canary('bearer')}"},
        {"authorization": basic("basic")},
        {"authorization": canary("no scheme")},
        {"authorization": signed(canary("access key id"), "signature")},
        {"authorization": signed(canary("gateway key"), "signature of ours"), "x-gateway-api-key": ""},
        {"x-api-key": canary("x-api-key"), "api-key": canary("api-key"), "x-goog-api-key": canary("x-goog-api-key")},
        {"x-api-key": canary("gateway key"), "x-gateway-api-key": ""},
        {"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{canary('protocol')}"},
        {"cookie": f"session={canary('cookie')}", "proxy-authorization": basic("proxy")},
        {"x-amz-security-token": canary("amz")},
        {"x-team": canary("team")},
        {
            "x-private": canary("private"),
            "x-gateway-sensitive-headers": "x-private, X-Other",
            "x-gateway-forward-headers": "x-private, x-other",
        },
        {"x-other": canary("other"), "x-gateway-sensitive-headers": "x-private,X-Other"},
        {"referer": f"https://host/?token={canary('referer')}"},
        {"x-gateway-config": INLINE},
        {"x-gateway-config": " " + INLINE},
        {"x-portkey-config": INLINE, "x-portkey-api-key": canary("gateway key")},
        {"x-gateway-config": INLINE[:-1]},
        {"x-gateway-config": f'["{canary("in a list")}"]'},
        {"x-gateway-config": json.dumps({"api_key": canary("refused"), "retry": "wrong"})},
        {"x-gateway-config": json.dumps({"api_key": [canary("wrong type")], "provider": {"a": canary("wrong too")}})},
        {"x-gateway-config": "pc"},
        {"x-gateway-provider": "@mine"},
        {"x-gateway-provider": "@env"},
        {"x-gateway-provider": "@mine", "x-gateway-custom-host": "http://127.0.0.1:1"},
        {"x-gateway-api-key": canary("wrong key")},
        {"x-gateway-api-key": canary("old key")},
        {"x-gateway-aws-secret-access-key": canary("aws field"), "x-gateway-aws-session-token": canary("sts field")},
        {"x-gateway-vertex-service-account-json": json.dumps({"private_key": canary("service account")})},
        {"x-gateway-azure-ad-token": canary("entra"), "x-gateway-oracle-private-key": canary("oracle")},
        {"x-gateway-custom-host": f"http://user:{canary('userinfo')}@127.0.0.1:1/v1"},
        {"x-gateway-custom-host": f"http://user:?{canary('odd userinfo')}#@127.0.0.1:1/v1"},
        {"x-gateway-custom-host": f"http://127.0.0.1:1/v1?key={canary('query of a host')}"},
        # Hosts that refuse, that are not allowed, that are not there: each with somebody's credential on its way to it.
        {"x-gateway-custom-host": "http://127.0.0.1:1/v1", "authorization": f"Bearer {canary('refusing host')}"},
        {"x-gateway-custom-host": "http://10.0.0.1/v1", "authorization": f"Bearer {canary('private host')}"},
        {"x-gateway-custom-host": "http://nobody.invalid/v1", "authorization": f"Bearer {canary('no host')}"},
    ]


def calls() -> Iterator[Call]:
    """Good calls, refused ones, and each way in which a provider fails, with a secret wherever one may be."""
    for fields in places():
        headers = {**CALLER, **fields}
        yield "POST", CHAT, asked(), headers
        yield "POST", MESSAGES, asked(stream=True), headers
        yield "GET", "/v1/proxy/some/where", None, headers
        yield "POST", CHAT, asked("mock?fault=reset"), headers
        yield "POST", CHAT, asked("mock?fault=cut", stream=True), headers
    for name in ("key", "api_key", "api-key", "apiKey", "access_token", "sig%6Eature", "X-Amz-Signature", "%6Bey"):
        yield "GET", f"/v1/models?a=b&{name}={canary('query ' + name)}", None, CALLER
        yield "GET", f"/v1/files?{name}={canary('query ' + name)}&mock-fault=reset", None, CALLER
    for model in ("mock?status=99", "mock?fault=429", "mock?fault=long_length", "mock?fault=redirect_metadata"):
        yield "POST", CHAT, asked(model), {**CALLER, "authorization": f"Bearer {canary('failing ' + model)}"}
    silent = {**CALLER, "x-gateway-request-timeout": "50", "authorization": f"Bearer {canary('timeout')}"}
    yield "POST", CHAT, asked("mock?fault=silence"), silent
    yield "POST", CHAT, b'{"api_key": "' + canary("body").encode(), CALLER


def leave(gateway: Gateway) -> int:
    """Callers who leave, before the answer and within it."""
    models = ("mock?first_ms=20000", "mock?chunks=100&chunk_ms=50")
    for model in models:
        with Wire(gateway.base_url) as wire:
            headers = {**CALLER, "authorization": f"Bearer {canary('leaving ' + model)}"}
            wire.send(request("POST", CHAT, headers, asked(model, stream=True)))
            time.sleep(0.2)
    return len(models)


def reload_broken(gateway: Gateway) -> None:
    """Files that cannot be used, each with a secret near what is wrong with it."""
    said = gateway.program.output().count("the old snapshot stays")
    row = {"slug": "p", "provider": "mock", "api_key": canary("broken row")}
    good = gateway.config_file.read_text()
    for broken in (
        lambda: gateway.configure({**TABLES, "providers": [{**row, "provider": 7}]}),
        lambda: gateway.configure({**TABLES, "providers": [{**row, "provider": "nobody"}]}),
        lambda: gateway.configure({**TABLES, "providers": [{**row, "api_key": [canary("listed")]}]}),
        lambda: gateway.configure(
            {**TABLES, "providers": [{**row, "custom_host": f"http://u:{canary('toml host')}@h"}]}
        ),
        lambda: gateway.configure({**TABLES, "configs": [{"slug": "c", "config": "{" + canary("toml config")}]}),
        lambda: gateway.configure(
            {**TABLES, "keys": [{"name": "k", "key": canary("both"), "sha256": canary("no digest")}]}
        ),
        lambda: gateway.config_file.write_text(
            good + f'\nkey = {canary("unquoted")}\n[[keys]\nkey = "{canary("syntax")}"'
        ),
    ):
        broken()
        said += 1
        wait(
            "the refusal of a file",
            lambda count=said: gateway.program.output().count("the old snapshot stays") >= count or None,
        )


def spellings(secret: str) -> Iterator[bytes]:
    """Each piece of a secret that is long enough to be worth something, in each way in which it may be written."""
    raw = secret.encode()
    for start in range(len(raw) - PARTIAL + 1):
        piece = raw[start : start + PARTIAL]
        yield piece
        yield piece.upper()
        yield piece.hex().encode()
        yield piece.hex().upper().encode()
        yield b"".join(b"%%%02x" % byte for byte in piece)
        yield b"".join(b"%%%02X" % byte for byte in piece)
        yield b"".join(b"\\u%04x" % byte for byte in piece)
        # What comes before shifts the digits; those that it shares are left out.
        for shift, shared in ((0, 0), (1, 2), (2, 3)):
            digits = base64.b64encode(b"x" * shift + piece)[shared : (shift + PARTIAL) * 8 // 6]
            yield digits
            yield digits.translate(bytes.maketrans(b"+/", b"-_"))


def found(sinks: Mapping[str, bytes], secrets: Mapping[str, str]) -> set[tuple[str, str]]:
    """In which sink which secret is, by name."""
    owners = {piece: name for name, secret in secrets.items() for piece in spellings(secret)}
    lengths = {len(piece) for piece in owners}
    return {
        (sink, owners[piece])
        for sink, text in sinks.items()
        for length in lengths
        for start in range(len(text) - length + 1)
        if (piece := text[start : start + length]) in owners
    }


def test_the_search_finds_a_secret_in_every_spelling():
    secret = canary("to be found")
    part = secret[5:15].encode()
    spelled = {
        "raw": part,
        "upper": part.upper(),
        "hex": part.hex().encode(),
        "url": b"".join(b"%%%02X" % byte for byte in part),
        "json": b"".join(b"\\u%04x" % byte for byte in part),
        **{f"base64 {before}": base64.b64encode(b"y" * before + part + b"z") for before in range(4)},
        "nothing": canary("another").encode() + part[:7],
    }
    hits = found({name: b"before " + text + b" after" for name, text in spelled.items()}, {"secret": secret})
    assert hits == {(name, "secret") for name in spelled if name != "nothing"}


def shown(gateway: Gateway) -> bytes:
    """What anyone may look at."""
    fields = {"authorization": f"Bearer {canary('management')}", "cookie": canary("management cookie")}
    paths = ("/metrics", "/v1/health", "/schema/openapi.json", "/v1/nothing", "/live", f"/x?key={canary('lost')}")
    answers = [ask(gateway.base_url, path, headers=fields) for path in paths]
    return b"".join(said(answer) + answer.body for answer in answers)


def said(answer: Answer) -> bytes:
    """Every header field of an answer, and the body where it is the gateway's own: the provider repeats what it got."""
    fields = "\n".join(f"{name}: {value}" for name, value in answer.fields).encode()
    return fields + (answer.body if answer.status != 200 else b"")


def answered(gateway: Gateway, call: Call) -> bytes:
    method, path, body, headers = call
    with contextlib.suppress(ConnectionError):
        return said(ask(gateway.base_url, path, body, headers, method=method))
    return b""


def test_no_secret_is_written_shown_or_said(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, **TABLES}
    every = list(calls())
    with running(tmp_path, tables, env={"CANARY_KEY": canary("referred")}) as gateway:
        answers = [answered(gateway, call) for call in every]
        left = leave(gateway)
        reload_broken(gateway)
        gateway.records(len(every) + left)
        sinks = {
            "answers": b"\n".join(answers),
            "management": shown(gateway),
            "command lines": "\n".join(gateway.pids().values()).encode(),
            "run folder": b"\n".join(
                str(path).encode() + (path.read_bytes() if path.is_file() else b"")
                for path in gateway.temporary.rglob("*")
            ),
        }
    sinks["records"] = gateway.records_file.read_bytes()
    sinks["output"] = gateway.program.log.read_bytes()
    # Everything was said that could have been: all ways to fail, by status and by outcome.
    records = [json.loads(line) for line in sinks["records"].splitlines()]
    assert {record["outcome"] for record in records} == {"complete", "refused", "aborted", "cut"}
    assert {200, 302, 400, 401, 408, 429, 502} <= {record["response_status_code"] for record in records}
    assert not found(sinks, MADE)
    # The records do hold what is no secret.
    assert b"x-gateway-provider" in sinks["records"]
    assert b"a=b&" in sinks["records"]
