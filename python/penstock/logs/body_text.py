"""Words of bodies for full-text search. Both engines index the same words, so both find the same records."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

# Maximum number of characters of a record that are indexed.
MAX_TEXT_CHARS = 64 * 1024
# Longer words are cut to this length.
MAX_WORD_CHARS = 64
MAX_SEARCH_WORDS = 20
# Longer strings without a space are not indexed: they are Base64 or other encoded data.
MAX_STRING_WITHOUT_SPACE_CHARS = 512
# Each Chinese or Japanese character is a word, because these languages do not separate words by spaces.
WORD_PATTERN = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]")


# What separates words of ASCII becomes a space, and capital letters become small ones.
ASCII_WORD_BYTES = bytes(
    ord(char.lower()) if char.isascii() and char.isalnum() else 32 for char in map(chr, range(256))
)


def split_words(text: str) -> list[str]:
    """Returns the different words of a text, in lower case and in order of appearance."""
    if text.isascii():
        # Much faster than the pattern. Most texts are ASCII, and their words take most of the time that storing a log
        # takes.
        words = text[:MAX_TEXT_CHARS].encode().translate(ASCII_WORD_BYTES).decode().split()
    else:
        text = unicodedata.normalize("NFKC", text).casefold()
        words = WORD_PATTERN.findall(text[:MAX_TEXT_CHARS].lower())
    different = dict.fromkeys(words)
    if any(len(word) > MAX_WORD_CHARS for word in different):
        different = dict.fromkeys(word[:MAX_WORD_CHARS] for word in different)
    return list(different)


def extract_text(body: bytes, limit: int | None = MAX_TEXT_CHARS, *, is_counted: bool = False) -> str:
    """Returns the strings of a JSON body, one per line, or of a stream of JSON events, up to `limit` characters. Other
    bodies have no text.

    Keys are omitted. Strings of a stream are joined without a space, because events may split a word. If the tokens are
    counted, events that repeat the text of earlier ones are omitted.
    """
    try:
        strings = _find_strings(msgspec.json.decode(body))
        joint = "\n"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        strings = list(_find_event_strings(body, without_repeats=is_counted))
        joint = ""
    return joint.join(strings)[:limit]


def _find_event_strings(body: bytes, *, without_repeats: bool) -> Iterator[str]:
    for line in body.splitlines():
        if not line.startswith(b"data:"):
            continue
        try:
            event = msgspec.json.decode(line[5:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if not (without_repeats and _repeats_text(event)):
            yield from _find_streamed_strings(event)


def _repeats_text(event: object) -> bool:
    """Returns true for events of the Responses API that contain what was streamed before, such as
    `response.output_text.done`.
    """
    kind = cast("dict[str, object]", event).get("type") if isinstance(event, dict) else None
    return isinstance(kind, str) and kind.endswith(REPEATING_TYPES)


# Ends of the types of events that repeat the text of earlier events.
REPEATING_TYPES = (".done", ".completed", ".incomplete", ".failed")
# Keys of events whose strings are part of the response. The others, such as `type` and `id`, repeat in every event.
STREAMED_KEYS = frozenset(
    {"content", "text", "delta", "arguments", "partial_json", "thinking", "reasoning_content", "refusal"}
)


def _find_strings(document: object) -> list[str]:
    """Returns the strings of a decoded document, in their order. Works without recursion."""
    texts: list[str] = []
    pending: list[Any] = [document]
    pop, extend = pending.pop, pending.extend
    while pending:
        value = pop()
        kind = cast("type[object]", type(value))
        if kind is str:
            if _is_text(value):
                texts.append(value)
        elif kind is dict:
            extend(reversed(value.values()))
        elif kind is list:
            extend(reversed(value))
    return texts


def _find_streamed_strings(event: object) -> list[str]:
    """Returns the strings of a stream's event below `STREAMED_KEYS`."""
    texts: list[str] = []
    pending: list[tuple[Any, bool]] = [(event, False)]
    while pending:
        value, is_wanted = pending.pop()
        kind = cast("type[object]", type(value))
        if kind is str:
            if is_wanted and _is_text(value):
                texts.append(value)
        elif kind is dict:
            pending += [(item, key in STREAMED_KEYS) for key, item in reversed(value.items())]
        elif kind is list:
            pending += [(item, is_wanted) for item in reversed(value)]
    return texts


def _is_text(text: str) -> bool:
    return len(text) <= MAX_STRING_WITHOUT_SPACE_CHARS or " " in text or "\n" in text
