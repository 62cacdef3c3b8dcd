"""Example commands that users paste: each is complete, and its body parses."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from penstock.examples import format_examples

BASE_URL = "http://127.0.0.1:8787"


def split_commands(*, key_needed: bool) -> list[list[str]]:
    return [shlex.split(line) for line in format_examples(BASE_URL, key_needed=key_needed) if not line.startswith("#")]


@pytest.mark.parametrize("key_needed", [False, True])
def test_each_line_is_one_command_with_a_valid_body(key_needed: bool):
    fields = split_commands(key_needed=key_needed)
    assert [command[0] for command in fields] == ["curl", "curl", "curl", "curl", "python3", "sdk/bin/python"]
    bodies = [json.loads(command[command.index("-d") + 1]) for command in fields[:3]]
    assert [body.get("stream") for body in bodies] == [None, True, None]
    ast.parse(fields[5][2])
    for command in (*fields[:3], fields[5]):
        assert any("x-gateway-api-key" in word for word in command) is key_needed


def test_demo_key_is_set_first():
    lines = format_examples(BASE_URL, key_needed=True, demo_key="pk-demo")
    assert lines[1] == "export PENSTOCK_API_KEY=pk-demo"
    assert all("pk-demo" not in line for line in lines[2:])


def test_examples_cover_streaming_anthropic_and_management():
    addresses = [
        next(word for word in command if word.startswith("http")) for command in split_commands(key_needed=False)[:4]
    ]
    assert addresses == [
        f"{BASE_URL}/v1/chat/completions",
        f"{BASE_URL}/v1/chat/completions",
        f"{BASE_URL}/v1/messages",
        f"{BASE_URL}/v1/health",
    ]
