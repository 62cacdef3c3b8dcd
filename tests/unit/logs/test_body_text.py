"""Words of bodies: strings of JSON, chunks of streams, and the limits of both."""

from __future__ import annotations

import json

import pytest

from penstock.logs.body_text import MAX_TEXT_CHARS, MAX_WORD_CHARS, WORD_PATTERN, extract_text, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, hello WORLD", ["hello", "world"]),
        ("foo-bar foo_bar", ["foo", "bar"]),
        ("Größe ﬁn", ["grösse", "fin"]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("a1 100%", ["a1", "100"]),
        ('" OR * NEAR(', ["or", "near"]),
        ("", []),
        ("x" * 100, ["x" * MAX_WORD_CHARS]),
    ],
)
def test_text_is_split_into_words(text: str, words: list[str]):
    assert split_words(text) == words


@pytest.mark.parametrize("code", range(128))
def test_words_of_ascii_are_those_of_other_texts(code: int):
    text = f"One{chr(code)}Two"
    assert split_words(text) == WORD_PATTERN.findall(text.lower())
    assert split_words(text + " é") == [*WORD_PATTERN.findall(text.lower()), "é"]


def test_strings_of_json_are_text_without_keys():
    body = {
        "model": "gpt",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}],
        "n": 1,
    }
    assert split_words(extract_text(json.dumps(body).encode())) == ["gpt", "user", "text", "hello", "there"]


def test_chunks_of_a_stream_are_joined():
    events = [{"choices": [{"delta": {"content": part}}], "id": "x"} for part in ("Good mor", "ning ", "all")]
    body = (
        b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )
    assert split_words(extract_text(body)) == ["good", "morning", "all"]


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"plain text", b"data: {", b"[" * 100_000, b"data: " + b"[" * 10_000]
)
def test_other_bodies_have_no_text(body: bytes):
    assert extract_text(body) == ""


def test_encoded_data_is_left_out():
    assert extract_text(json.dumps(["A" * 5000, "short", "with space " * 500]).encode()).startswith("short\nwith space")


def test_long_texts_are_cut():
    body = json.dumps([f"word{at} x" for at in range(100_000)]).encode()
    assert len(extract_text(body)) == MAX_TEXT_CHARS
