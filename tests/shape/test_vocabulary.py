"""Names and prose follow docs/glossary.md: standard terms, short sentences, no retired words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.shape.prose import Comment, comments, definitions, page_texts, sentences, variables, word_count
from tests.shape.repository import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

# Words that say nothing about what a function does. They may be part of a longer test name such as `keeps_connection`.
BANNED_FUNCTION_NAMES = {
    "above", "asked", "cleared", "filled", "go", "hear", "heard", "held", "hold", "keep", "kept", "known", "look",
    "looks", "many", "meant", "of", "own", "pair", "said", "say", "says", "seeded", "seen", "served", "streamed",
    "taken", "tell", "told", "tokened", "walk", "whole",
}  # fmt: skip
# Names of variables and parameters that do not say what they hold: name the thing, such as `record` for `found`.
BANNED_VARIABLE_NAMES = {
    "ahead", "anew", "anybody", "apart", "aside", "asked", "asking", "behind", "beside", "beyond", "boss", "calm",
    "came", "carried", "crowd", "everybody", "everywhere", "farewell", "fate", "found", "friend", "given", "ground",
    "heard", "held", "impatient", "keeper", "kept", "lent", "look", "looks", "made", "mend", "named", "nobody", "one",
    "owed", "patient", "places", "room", "said", "scene", "seen", "shown", "speaks", "spoilt", "stranger",
    "surroundings", "taken", "talk", "talks", "tells", "thaw", "through", "told", "took", "twice", "walked", "wanted",
    "whatever", "whom", "why", "wire", "wish",
}  # fmt: skip
# Files times banned names in them. The number may only fall.
MAX_VAGUE_VARIABLES = 14
# A file name that tells nothing about its content. Test files have the name of a module or of a behaviour.
BANNED_FILE_NAMES = {"answered", "asked", "found", "founded", "heard", "kept", "needed", "said", "told", "written"}
BANNED_NAME_PARTS = {"told", "heard", "whoever", "farewell", "passport", "wallet", "desk", "dues", "unsaid", "errand"}
BANNED_TEST_OPENERS = {"of", "what", "who", "whoever", "whose"}
BANNED_OPENERS = {"Likewise", "Of", "Who", "Whoever", "Whose", "Whatever", "Whether"}
MAX_SENTENCE_WORDS = 25
# Occurrences of retired words in all comments and docstrings. The number may only fall.
MAX_RETIRED_WORDS = 0

# Retired words that are ordinary English in another sense, so only a reader can judge them.
ORDINARY_WORDS = {
    "piece",
    "pieces",
    "change_flag",
    "say",
    "said",
    "tell",
    "told",
    "hear",
    "heard",
    "debt",
    "journal",
    "neighbours",
    "rung",
    "dialect",
    "generations",
    "office",
    "handed over",
}


def glossary_rows() -> list[list[str]]:
    table = [line for line in read_text("docs/glossary.md").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def retired_words() -> list[str]:
    return [word for row in glossary_rows() for word in re.findall(r"`([^`]+)`", row[2])]


def test_glossary_rows_have_a_term_and_a_meaning():
    assert len(glossary_rows()) > 40
    assert not [row for row in glossary_rows() if len(row) != 3 or not row[0] or not row[1]]


def test_no_type_has_a_retired_name():
    retired = {word for word in retired_words() if re.fullmatch(r"[A-Z]\w+", word) and not word.isupper()}
    assert len(retired) > 20
    types = [name for name in definitions() if name.kind in {"struct", "enum", "trait", "type", "class"}]
    assert not [(name.path.as_posix(), name.name) for name in types if name.name in retired]


def test_no_constant_has_a_retired_name():
    retired = {word for word in retired_words() if re.fullmatch(r"[A-Z_]+", word)}
    assert not [(name.path.as_posix(), name.name) for name in definitions() if name.name in retired]


def test_no_function_name_is_opaque():
    functions = [name for name in definitions() if name.kind == "fn"]
    assert not [(name.path.as_posix(), name.name) for name in functions if name.name in BANNED_FUNCTION_NAMES]
    assert not [
        (name.path.as_posix(), name.name) for name in functions if BANNED_NAME_PARTS & set(name.name.lower().split("_"))
    ]


def test_vague_names_of_variables_only_become_fewer():
    vague = [(name.path.as_posix(), name.name) for name in variables() if name.name in BANNED_VARIABLE_NAMES]
    assert len(vague) <= MAX_VAGUE_VARIABLES, vague


def test_no_file_has_an_opaque_name():
    paths = {name.path for name in definitions()}
    assert not [path for path in paths if path.stem.removeprefix("test_") in BANNED_FILE_NAMES]


def test_test_names_state_a_behaviour():
    names = [name for name in definitions() if name.kind == "fn" and "tests" in name.path.parts]
    opener = re.compile(rf"(?:test_)?(?:{'|'.join(BANNED_TEST_OPENERS)})_")
    assert not [(name.path.as_posix(), name.name) for name in names if opener.match(name.name)]


def describe_locations(actual: list[Comment]) -> list[str]:
    return [f"{comment.path}:{comment.line}: {comment.text[:100]}" for comment in actual]


def test_comments_do_not_start_with_a_riddle():
    opener = re.compile(rf"(?:{'|'.join(sorted(BANNED_OPENERS))})\b")
    assert not describe_locations([comment for comment in comments() if opener.match(comment.text)])


@pytest.mark.parametrize("texts", [comments, page_texts], ids=["comments", "pages"])
def test_sentences_are_short(texts: Callable[[], tuple[Comment, ...]]):
    actual = texts()
    assert len(actual) > 1000
    assert not describe_locations(
        [text for text in actual if any(word_count(sentence) > MAX_SENTENCE_WORDS for sentence in sentences(text.text))]
    )


def test_retired_words_in_comments_only_become_fewer():
    # A capitalised word is the former name of a type and may start a sentence.
    phrases = [word for word in retired_words() if word not in ORDINARY_WORDS and not word[0].isupper()]
    pattern = re.compile(rf"(?<![\w`])(?:{'|'.join(map(re.escape, phrases))})(?![\w`])")
    matched = [comment for comment in comments() if pattern.search(comment.text)]
    assert len(matched) <= MAX_RETIRED_WORDS, "\n".join(describe_locations(matched))


@pytest.mark.parametrize("text", ["Returns the limit. Rejects `a b c d` and other text."])
def test_sentences_are_split_at_full_stops(text: str):
    assert [word_count(sentence) for sentence in sentences(text)] == [3, 5]
