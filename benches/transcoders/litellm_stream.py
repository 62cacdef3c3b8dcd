"""LiteLLM's transformation of Anthropic's stream, event by event, as its proxy does it.

Prints the translated text once, then the nanoseconds of each round.
"""

from __future__ import annotations

import json
import sys
import time

from litellm.llms.anthropic.chat.handler import ModelResponseIterator


def transform_events(events: list[str]) -> list[str]:
    chunks = ModelResponseIterator(streaming_response=iter(()), sync_stream=True)
    out = []
    for event in events:
        for line in event.split("\n"):
            if line.startswith("data:"):
                chunk = chunks.convert_str_chunk_to_generic_chunk(line)
                out.append(f"data: {chunk.model_dump_json(exclude_none=True, exclude_unset=True)}\n\n")
    return out


stream_events = [event + "\n\n" for event in sys.stdin.read().split("\n\n") if event]
print(json.dumps("".join(transform_events(stream_events))))
for _ in range(int(sys.argv[1])):
    started_ns = time.perf_counter_ns()
    transform_events(stream_events)
    print(time.perf_counter_ns() - started_ns)
