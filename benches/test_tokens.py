"""Token counting benchmark against tiktoken. Both must return the same counts."""

from __future__ import annotations

import json
import pydoc_data.topics
import random
import re
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
import tiktoken
from tiktoken_ext import openai_public

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).parents[1]
ENCODING = "o200k_base"
TEXT_SIZE = 100_000
MIN_SPEEDUP, MAX_HOSTILE_TEXT_SECONDS = 2.0, 0.005
SHORT_PIECE_TEXTS = {"both cases", "everything"}
"""Names of hostile texts that are split into short parts before any merging. Their time limit is tiktoken's time."""
BUILD_COMMAND = ("cargo", "build", "--quiet", "--release", "--package", "penstock-llm", "--example", "tokens")


class TokenCounter:
    """Penstock's token counter, run as a separate process."""

    def __init__(self) -> None:
        subprocess.run(BUILD_COMMAND, cwd=ROOT, check=True)
        command = ("cargo", "metadata", "--no-deps", "--format-version", "1")
        completed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        self._program = Path(json.loads(completed.stdout)["target_directory"]) / "release/examples/tokens"

    def read_vocabulary(self, encoding: str) -> dict[bytes, int]:
        completed = subprocess.run([self._program, "vocabulary", encoding], check=True, capture_output=True, text=True)
        return {bytes.fromhex(token): rank for rank, token in enumerate(completed.stdout.splitlines()) if token}

    def count_tokens(self, encoding: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Returns tokens and seconds for each text."""
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        command = [self._program, "count", encoding]
        completed = subprocess.run(command, check=True, capture_output=True, text=True, input=lines)
        return [(int(tokens), int(elapsed) / 1e9) for tokens, elapsed in map(str.split, completed.stdout.splitlines())]


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter()


def tiktoken_encoding(counter: TokenCounter, encoding: str) -> tiktoken.Encoding:
    """Returns tiktoken's encoding, with our vocabulary instead of one that tiktoken would download."""
    described = openai_public.ENCODING_CONSTRUCTORS[encoding]
    vocabulary = counter.read_vocabulary(encoding)

    def load_vocabulary(*_: object, **__: object) -> dict[bytes, int]:
        return vocabulary

    with pytest.MonkeyPatch.context() as patched:
        for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patched.setattr(openai_public, name, load_vocabulary)
        arguments = described()
    special = {name.encode() for name in arguments["special_tokens"]}
    arguments["mergeable_ranks"] = {token: rank for token, rank in vocabulary.items() if token not in special}
    return tiktoken.Encoding(**arguments)


def prose_chunks() -> list[str]:
    """Returns Python's language reference in chunks that neither counter has seen before."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return [text[at : at + TEXT_SIZE] for at in range(0, len(text) - TEXT_SIZE, TEXT_SIZE)]


def hostile_texts(seed: int) -> dict[str, str]:
    """Returns texts that have no word breaks, or too few."""
    roll = random.Random(seed)  # noqa: S311 - not for cryptography

    def random_text(alphabet: str) -> str:
        return "".join(roll.choices(alphabet, k=TEXT_SIZE // len(alphabet[0].encode())))

    lower = "abcdefghijklmnopqrstuvwxyz"
    return {
        "one letter": "a" * TEXT_SIZE,
        "letters": random_text(lower),
        "capitals": random_text(lower.upper()),
        "both cases": random_text(lower + lower.upper()),
        "words of 200 letters": re.sub(r"(.{200})", r"\1 ", random_text(lower)),
        "digits": random_text("0123456789"),
        "symbols": random_text("!#$%&()*+,-.:;<=>?@[]^_{|}~"),
        "spaces": " " * TEXT_SIZE,
        "spaces and tabs": random_text(" " * 26 + "\t"),
        "line breaks": "\n" * TEXT_SIZE,
        "signs": random_text("的一是不了人我在有他这中大来上国个到说们"),
        "syllables": random_text("가나다라마바사아자차카타파하"),
        "smileys": random_text("😀😁😂🤣😃😄😅🚀👍🎉🔥"),
        "letters, signs": random_text(lower)[: TEXT_SIZE // 2]
        + random_text("的一是不了人我在有他这")[: TEXT_SIZE // 6],
        "everything": random_text("aZ0 ^\n'sTb9,.-\t"),
    }


def time_count(count: Callable[[str], int], text: str) -> tuple[int, float]:
    started_at = time.perf_counter()
    tokens = count(text)
    return tokens, time.perf_counter() - started_at


def test_counts_prose_twice_as_fast_as_tiktoken(
    benchmark: BenchmarkFixture, counter: TokenCounter, capsys: pytest.CaptureFixture[str]
) -> None:
    encoding, chunks = tiktoken_encoding(counter, ENCODING), prose_chunks()
    encoding.encode_ordinary("warm")
    result = [time_count(lambda text: len(encoding.encode_ordinary(text)), chunk) for chunk in chunks]
    results = benchmark.pedantic(lambda: counter.count_tokens(ENCODING, chunks), rounds=5)
    assert [tokens for tokens, _ in results] == [tokens for tokens, _ in result]
    ratios = [slow / fast for (_, fast), (_, slow) in zip(results, result, strict=True)]
    benchmark.extra_info["times as fast as tiktoken"] = ratio = median(ratios)
    with capsys.disabled():
        line = f"{ratio:.1f} × tiktoken {tiktoken.__version__} (of {len(chunks)}: {min(ratios):.1f}–{max(ratios):.1f})"
        milliseconds = [median(elapsed for _, elapsed in side) * 1000 for side in (results, result)]
        print(f"\n100 KB of prose: {milliseconds[0]:.2f} ms against {milliseconds[1]:.2f} ms: {line}")
    assert ratio >= MIN_SPEEDUP


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "p50k_base", "r50k_base"])
def test_counts_hostile_texts_exactly_and_fast(
    benchmark: BenchmarkFixture, counter: TokenCounter, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311 - not for cryptography
    texts = hostile_texts(seed)
    encoding = tiktoken_encoding(counter, name)
    rounds: list[list[tuple[int, float]]] = []
    benchmark.pedantic(lambda: rounds.append(counter.count_tokens(name, list(texts.values()))), rounds=5)
    with capsys.disabled():
        print(f"\n{name}, 100 KB each, ms against tiktoken's:", end="")
        for at, (text_name, text) in enumerate(texts.items()):
            # Takes the fastest of several rounds, because other processes use this machine too.
            tokens, soonest = rounds[0][at][0], min(results[at][1] for results in rounds)
            expected, elapsed = time_count(lambda text: len(encoding.encode_ordinary(text)), text)
            print(f" {text_name} {soonest * 1000:.1f}:{elapsed * 1000:.1f}", end="", flush=True)
            assert tokens == expected, f"{text_name}, seed {seed}"
            limit = elapsed if text_name in SHORT_PIECE_TEXTS else MAX_HOSTILE_TEXT_SECONDS
            assert name != ENCODING or soonest <= limit, text_name
