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
CHUNK = 100_000
FASTER, HOSTILE_SECONDS = 2.0, 0.005
MANY_PIECES = {"both cases", "everything"}
"""Texts that are cut into short pieces before any merging: slow in no way but their own."""
BUILD = ("cargo", "build", "--quiet", "--release", "--package", "penstock-llm", "--example", "tokens")


class Counter:
    """Penstock's token counter, run as a separate process."""

    def __init__(self) -> None:
        subprocess.run(BUILD, cwd=ROOT, check=True)
        asked = ("cargo", "metadata", "--no-deps", "--format-version", "1")
        told = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True)
        self._program = Path(json.loads(told.stdout)["target_directory"]) / "release/examples/tokens"

    def vocabulary(self, encoding: str) -> dict[bytes, int]:
        told = subprocess.run([self._program, "vocabulary", encoding], check=True, capture_output=True, text=True)
        return {bytes.fromhex(token): rank for rank, token in enumerate(told.stdout.splitlines()) if token}

    def count(self, encoding: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Returns tokens and seconds for each text."""
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        command = [self._program, "count", encoding]
        told = subprocess.run(command, check=True, capture_output=True, text=True, input=lines)
        return [(int(tokens), int(took) / 1e9) for tokens, took in map(str.split, told.stdout.splitlines())]


@pytest.fixture(scope="module")
def counter() -> Counter:
    return Counter()


def theirs(counter: Counter, encoding: str) -> tiktoken.Encoding:
    """Returns tiktoken's encoding, with our vocabulary instead of one that tiktoken would download."""
    described = openai_public.ENCODING_CONSTRUCTORS[encoding]
    vocabulary = counter.vocabulary(encoding)

    def at_hand(*_: object, **__: object) -> dict[bytes, int]:
        return vocabulary

    with pytest.MonkeyPatch.context() as patched:
        for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patched.setattr(openai_public, name, at_hand)
        arguments = described()
    special = {name.encode() for name in arguments["special_tokens"]}
    arguments["mergeable_ranks"] = {token: rank for token, rank in vocabulary.items() if token not in special}
    return tiktoken.Encoding(**arguments)


def prose() -> list[str]:
    """Returns Python's language reference in chunks that neither counter has seen before."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return [text[at : at + CHUNK] for at in range(0, len(text) - CHUNK, CHUNK)]


def hostile(seed: int) -> dict[str, str]:
    """Returns texts that have no word breaks, or too few."""
    roll = random.Random(seed)  # noqa: S311 - nobody is to be surprised

    def drawn(alphabet: str) -> str:
        return "".join(roll.choices(alphabet, k=CHUNK // len(alphabet[0].encode())))

    lower = "abcdefghijklmnopqrstuvwxyz"
    return {
        "one letter": "a" * CHUNK,
        "letters": drawn(lower),
        "capitals": drawn(lower.upper()),
        "both cases": drawn(lower + lower.upper()),
        "words of 200 letters": re.sub(r"(.{200})", r"\1 ", drawn(lower)),
        "digits": drawn("0123456789"),
        "symbols": drawn("!#$%&()*+,-.:;<=>?@[]^_{|}~"),
        "spaces": " " * CHUNK,
        "spaces and tabs": drawn(" " * 26 + "\t"),
        "line breaks": "\n" * CHUNK,
        "signs": drawn("的一是不了人我在有他这中大来上国个到说们"),
        "syllables": drawn("가나다라마바사아자차카타파하"),
        "smileys": drawn("😀😁😂🤣😃😄😅🚀👍🎉🔥"),
        "letters, signs": drawn(lower)[: CHUNK // 2] + drawn("的一是不了人我在有他这")[: CHUNK // 6],
        "everything": drawn("aZ0 ^\n'sTb9,.-\t"),
    }


def timed(count: Callable[[str], int], text: str) -> tuple[int, float]:
    begun = time.perf_counter()
    tokens = count(text)
    return tokens, time.perf_counter() - begun


def test_prose_is_counted_twice_as_fast(
    benchmark: BenchmarkFixture, counter: Counter, capsys: pytest.CaptureFixture[str]
) -> None:
    encoding, chunks = theirs(counter, ENCODING), prose()
    encoding.encode_ordinary("warm")
    found = [timed(lambda text: len(encoding.encode_ordinary(text)), chunk) for chunk in chunks]
    ours = benchmark.pedantic(lambda: counter.count(ENCODING, chunks), rounds=5)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in found]
    ratios = [slow / fast for (_, fast), (_, slow) in zip(ours, found, strict=True)]
    benchmark.extra_info["times as fast as tiktoken"] = ratio = median(ratios)
    with capsys.disabled():
        line = f"{ratio:.1f} × tiktoken {tiktoken.__version__} (of {len(chunks)}: {min(ratios):.1f}–{max(ratios):.1f})"
        milliseconds = [median(took for _, took in side) * 1000 for side in (ours, found)]
        print(f"\n100 KB of prose: {milliseconds[0]:.2f} ms against {milliseconds[1]:.2f} ms: {line}")
    assert ratio >= FASTER


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "p50k_base", "r50k_base"])
def test_hostile_texts_are_counted_exactly_and_soon(
    benchmark: BenchmarkFixture, counter: Counter, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311 - no secret
    texts = hostile(seed)
    encoding = theirs(counter, name)
    rounds: list[list[tuple[int, float]]] = []
    benchmark.pedantic(lambda: rounds.append(counter.count(name, list(texts.values()))), rounds=5)
    with capsys.disabled():
        print(f"\n{name}, 100 KB each, ms against tiktoken's:", end="")
        for at, (what, text) in enumerate(texts.items()):
            # Takes the fastest of several rounds, because other processes use this machine too.
            tokens, soonest = rounds[0][at][0], min(one[at][1] for one in rounds)
            expected, took = timed(lambda text: len(encoding.encode_ordinary(text)), text)
            print(f" {what} {soonest * 1000:.1f}:{took * 1000:.1f}", end="", flush=True)
            assert tokens == expected, f"{what}, seed {seed}"
            assert name != ENCODING or soonest <= (took if what in MANY_PIECES else HOSTILE_SECONDS), what
