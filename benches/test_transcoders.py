"""Benchmark of translating Anthropic's stream to chat completions, against LiteLLM and Portkey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from benches.compare.peers.portkey import Portkey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).parents[1]
SCRIPTS_DIR = ROOT / "benches/transcoders"
LITELLM_DIR = ROOT / ".cache/sdk/others"
BUILD_COMMAND = ("cargo", "build", "--quiet", "--release", "--package", "penstock-llm", "--example", "transcode")
CHUNKS, ROUNDS, REPEATS = 400, 60, 3
LITELLM_TIMES, PORTKEY_TIMES = 50, 10
MESSAGE_START_EVENT = {
    "type": "message_start",
    "message": {"id": "msg_01", "type": "message", "role": "assistant", "content": []},
}
TOOL_USE_BLOCK = {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {}}
USAGE = {"input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}


def anthropic_stream() -> bytes:
    """Returns a stream in Anthropic's format: a text in many words, then a tool call."""
    message = {**MESSAGE_START_EVENT["message"], "model": "claude-sonnet-4-5", "stop_reason": None, "usage": USAGE}
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f" word {n}"}}
            for n in range(CHUNKS)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": TOOL_USE_BLOCK},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": fragment}}
            for fragment in ("", '{"city": ', '"Oslo"}')
        ),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {**USAGE, "output_tokens": CHUNKS},
        },
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def run_transcoder(
    command: Sequence[str | Path], body: bytes, env: Mapping[str, str] | None = None
) -> tuple[str, float]:
    """Returns the translated text and the microseconds for each event, as the median of all rounds."""
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*command, str(ROUNDS)], input=body, check=True, capture_output=True, env={**path, **(env or {})}
    )
    output, *rounds = done.stdout.splitlines()
    chunks = [json.loads(line[6:]) for line in json.loads(output).splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return text, median(map(int, rounds)) / body.count(b"\n\n") / 1000


def test_translates_stream_far_faster_than_litellm_and_portkey(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    if not LITELLM_DIR.is_dir():
        pytest.skip("the SDKs are not installed; run `make test`")
    subprocess.run(BUILD_COMMAND, cwd=ROOT, check=True)
    metadata = subprocess.run(
        ("cargo", "metadata", "--no-deps", "--format-version", "1"), cwd=ROOT, check=True, capture_output=True
    )
    program = Path(json.loads(metadata.stdout)["target_directory"]) / "release/examples/transcode"
    portkey = Portkey()
    portkey.install()
    bundle = portkey.modules / "@portkey-ai/gateway/build/start-server.js"
    body = anthropic_stream()
    settings = {"PYTHONPATH": str(LITELLM_DIR), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    commands: list[tuple[Sequence[str | Path], Mapping[str, str]]] = [
        ([program], {}),
        ([sys.executable, "-S", "-W", "ignore", SCRIPTS_DIR / "litellm_stream.py"], settings),
        (["node", SCRIPTS_DIR / "portkey_stream.mjs", bundle], {}),
    ]

    def run_turn() -> list[tuple[str, float]]:
        return [run_transcoder(command, body, env) for command, env in commands]

    turns = [benchmark.pedantic(run_turn, rounds=1), *(run_turn() for _ in range(REPEATS - 1))]
    texts = {text for turn in turns for text, _ in turn}
    assert texts == {"".join(f" word {n}" for n in range(CHUNKS))}
    # Takes the minimum, because other work of the machine can only add time.
    penstock_us, litellm, portkey_us = (min(reported[at][1] for reported in turns) for at in range(3))
    slower = litellm / penstock_us, portkey_us / penstock_us
    with capsys.disabled():
        print(
            f"\nµs for each event of a stream: {penstock_us:.2f}, LiteLLM {litellm:.1f} ({slower[0]:.0f} ×), Portkey {portkey_us:.2f} ({slower[1]:.1f} ×)"
        )
    assert slower[0] >= LITELLM_TIMES
    assert slower[1] >= PORTKEY_TIMES
