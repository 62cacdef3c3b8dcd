"""Redaction of batch texts. Finds the secrets of a batch's headers and removes them from provider messages."""

from __future__ import annotations

import json

import pytest

from penstock.batches.redaction import SecretRedactor, secrets_in_headers

KEY = "sk-0123456789"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", f"Bearer {KEY}"),
        ("authorization", KEY),
        ("x-api-key", KEY),
        ("x-gateway-aws-secret-access-key", KEY),
        ("x-gateway-config", json.dumps({"targets": [{"provider": "mock", "api_key": KEY}]})),
        ("x-gateway-config", json.dumps({"custom_headers": {"x-team": KEY}})),
        ("x-gateway-vertex-service-account-json", json.dumps({"private_key": KEY})),
    ],
)
def test_redacts_secrets_of_every_header(name: str, value: str):
    content = SecretRedactor(secrets_in_headers({name: value})).redact(f"wrong: {KEY}!".encode())
    assert content == b"wrong: *****!"


def test_other_values_are_not_redacted():
    headers = {
        "x-gateway-provider": "vertex-ai",
        "x-gateway-virtual-key": "my-provider",
        "x-gateway-config": json.dumps({"provider": "vertex-ai", "retry": {"attempts": 1}}),
        "openai-project": "project-of-mine",
        "x-api-key": "short",
    }
    content = b"vertex-ai, my-provider, project-of-mine: too short"
    assert SecretRedactor(secrets_in_headers(headers)).redact(content) == content


def test_redacts_json_escaped_secrets():
    text = 'line one\nand "two"'
    assert SecretRedactor([text]).redact(json.dumps({"said": text}).encode()) == b'{"said": "*****"}'
