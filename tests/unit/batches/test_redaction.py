"""What is secret of a batch's header fields is found, and taken out of what somebody says."""

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
def test_a_secret_is_found_wherever_it_is_sent(name: str, value: str):
    said = SecretRedactor(secrets_in_headers({name: value})).redact(f"wrong: {KEY}!".encode())
    assert said == b"wrong: *****!"


def test_what_is_no_secret_stays():
    headers = {
        "x-gateway-provider": "vertex-ai",
        "x-gateway-virtual-key": "my-provider",
        "x-gateway-config": json.dumps({"provider": "vertex-ai", "retry": {"attempts": 1}}),
        "openai-project": "project-of-mine",
        "x-api-key": "short",
    }
    said = b"vertex-ai, my-provider, project-of-mine: too short"
    assert SecretRedactor(secrets_in_headers(headers)).redact(said) == said


def test_a_secret_is_found_as_json_spells_it():
    text = 'line one\nand "two"'
    assert SecretRedactor([text]).redact(json.dumps({"said": text}).encode()) == b'{"said": "*****"}'
