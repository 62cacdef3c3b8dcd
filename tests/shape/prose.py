"""Names, comments and docstrings of the code base, for the checks of vocabulary and prose."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from typing import TYPE_CHECKING, NamedTuple

from tests.shape.repository import read_text, repository_files
from tests.shape.rust_modules import PARSER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUST_DEFINITION = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe )*(fn|struct|enum|trait|type|const|static|mod) (?:mut )?(\w+)",
    re.MULTILINE,
)
CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
# An empty line, or the start of a list item.
PAGE_BREAK = re.compile(r"(?<=\n)(?=\s*\n|\s*(?:[-*]|\d+\.) )")
RUST_COMMENT = re.compile(r"^\s*(//[/!]?)(?: (.*))?$")
SCRIPT_COMMENT = re.compile(
    r"/\*\*?(?P<block>.*?)\*/|<!--(?P<markup>.*?)-->|^[ \t]*// (?P<line>[^\n]*)$", re.MULTILINE | re.DOTALL
)
SCRIPT_SUFFIXES = {".ts", ".svelte", ".mjs", ".js"}
HASH_COMMENT = re.compile(r"^\s*#+(?: (.*))?$")
HASH_SUFFIXES = {".toml", ".yaml", ".yml"}


class Name(NamedTuple):
    """A definition: its kind (`fn`, `struct`, `class` …), its name and its file."""

    kind: str
    name: str
    path: Path


class Comment(NamedTuple):
    """A comment or docstring as one text, without its marks."""

    text: str
    path: Path
    line: int


def code_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix in {".rs", ".py"}]


@functools.cache
def definitions() -> tuple[Name, ...]:
    names: list[Name] = []
    for path in code_files():
        source = read_text(path)
        if path.suffix == ".rs":
            names += [Name(kind, name, path) for kind, name in RUST_DEFINITION.findall(source)]
        else:
            names += [Name(kind, name, path) for kind, name in _python_definitions(ast.parse(source))]
    return tuple(names)


def _python_definitions(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "fn", node.name
        elif isinstance(node, ast.ClassDef):
            yield "class", node.name


@functools.cache
def variables() -> tuple[Name, ...]:
    """Returns local variables, parameters and loop variables, each file and name once."""
    return tuple(
        Name("variable", name, path)
        for path in code_files()
        for name in sorted(set(_rust_variables(path) if path.suffix == ".rs" else _python_variables(path)))
    )


def _python_variables(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


# Nodes of the Rust grammar that bind names, with the field that holds the pattern.
RUST_BINDINGS = {"let_declaration": "pattern", "parameter": "pattern", "for_expression": "pattern"}


def _rust_variables(path: Path) -> Iterator[str]:
    nodes = [PARSER.parse(read_text(path).encode()).root_node]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "closure_parameters":
            patterns = list(node.named_children)
        elif field := RUST_BINDINGS.get(node.type):
            pattern = node.child_by_field_name(field)
            patterns = [pattern] if pattern else []
        else:
            continue
        while patterns:
            pattern = patterns.pop()
            if pattern.type == "identifier":
                yield (pattern.text or b"").decode()
            elif pattern.type in {"tuple_pattern", "mut_pattern", "reference_pattern", "ref_pattern"}:
                patterns += pattern.named_children


def _blocks(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[Comment]:
    """Joins the comment lines that follow each other."""
    first, last, texts = 0, -1, list[str]()
    for number, text in lines:
        if texts and number != last + 1:
            yield Comment("\n".join(texts), path, first)
            texts = []
        first, last = (first if texts else number), number
        texts.append(text)
    if texts:
        yield Comment("\n".join(texts), path, first)


def _rust_comments(path: Path) -> Iterator[Comment]:
    matched = (
        (number, match)
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if (match := RUST_COMMENT.match(line))
    )
    yield from _blocks(((number, match[2] or "") for number, match in matched), path)


def _script_comments(path: Path) -> Iterator[Comment]:
    """Returns the comments of TypeScript, JavaScript and Svelte files."""
    source = read_text(path)
    lines = list[tuple[int, str]]()
    for match in SCRIPT_COMMENT.finditer(source):
        number = source.count("\n", 0, match.start()) + 1
        if match["line"] is not None:
            lines.append((number, match["line"]))
            continue
        text = match["block"] if match["markup"] is None else match["markup"]
        yield Comment("\n".join(line.strip(" *") for line in text.splitlines()).strip(), path, number)
    yield from _blocks(iter(lines), path)


def _hash_comments(path: Path) -> Iterator[Comment]:
    """Returns the comments of TOML, YAML and make files that have a line of their own."""
    matched = (
        (number, match)
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if (match := HASH_COMMENT.match(line))
    )
    yield from _blocks(((number, match[1] or "") for number, match in matched), path)


def _python_comments(path: Path) -> Iterator[Comment]:
    source = read_text(path)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    marks = (token for token in tokens if token.type == tokenize.COMMENT and token.line.strip().startswith("#"))
    yield from _blocks(((token.start[0], token.string.lstrip("# ")) for token in marks), path)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield Comment(text, path, getattr(node, "lineno", 1))


def _comments_of(path: Path) -> Iterator[Comment]:
    if path.suffix == ".rs":
        yield from _rust_comments(path)
    elif path.suffix == ".py":
        yield from _python_comments(path)
    elif path.suffix in SCRIPT_SUFFIXES:
        yield from _script_comments(path)
    elif path.suffix in HASH_SUFFIXES or path.name == "Makefile":
        yield from _hash_comments(path)


@functools.cache
def comments() -> tuple[Comment, ...]:
    paths = [path for path in repository_files() if "golden" not in path.parts and not path.name.endswith(".d.ts")]
    return tuple(comment for path in paths for comment in _comments_of(path))


@functools.cache
def page_texts() -> tuple[Comment, ...]:
    """Returns the paragraphs and list items of all Markdown pages, without headings, tables and code blocks."""
    pages = [path for path in repository_files() if path.suffix == ".md" and "golden" not in path.parts]
    return tuple(text for path in pages for text in _page_texts(path))


def _page_texts(path: Path) -> Iterator[Comment]:
    source = CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), read_text(path))
    line = 1
    for part in PAGE_BREAK.split(source):
        if part.strip() and not part.lstrip().startswith(("|", "#", "    ", "<", "[")):
            yield Comment(" ".join(part.split()), path, line)
        line += part.count("\n")


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, without code blocks and table rows."""
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "|", "```"))]
    joined = re.sub(r"\s+", " ", "\n".join(re.sub(r"^\s*[-*] ", ". ", line) for line in lines))
    return [part.strip() for part in re.split(r"(?<=[.!?:;])\s+", joined) if re.search(r"[a-z]{2}", part)]


def word_count(sentence: str) -> int:
    """Returns the number of words. Text in backticks counts as one word, and so does a list of such texts."""
    return len(re.sub(r"(?:code,? )+code", "code", re.sub(r"`[^`]*`", "code", sentence)).split())
