"""Checks that code does not compare provider slugs. What a provider does differently is a field of its row in the catalog."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

import pytest

from tests.shape.repository import files_under, read_text
from tests.shape.rust_modules import PARSER, node_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

CATALOG = "rust/llm/src/catalog"
ROW = re.compile(r"(?:ProviderRow::new|\b(?:templated_)?row)\(\s*\"([a-z0-9-]+)\"")
RUST_FOLDERS = ["rust/llm/src", "rust/core/src", "rust/py/src"]
# Names of values that hold a slug.
SLUG_NAME = re.compile(r"slug|provider", re.IGNORECASE)
MIN_LISTED_SLUGS = 2


def without_tests(source: str) -> str:
    return source.split("#[cfg(test)]\nmod tests", maxsplit=1)[0]


@functools.cache
def catalog_slugs() -> frozenset[str]:
    sources = [without_tests(read_text(path)) for path in files_under(CATALOG, ".rs")]
    return frozenset(slug for source in sources for slug in ROW.findall(source))


def string_literals(node: Node) -> list[str]:
    """Returns the strings of a pattern or of a list whose elements are strings."""
    text = node_text(node)
    return re.findall(r'"([^"]*)"', text) if re.fullmatch(r'[\s&|,\[\]()]*(?:"[^"]*"[\s&|,\[\]()]*)+', text) else []


def quoted_strings(node: Node) -> list[str]:
    """Returns all strings of a pattern, also of one with other parts, such as `("groq", Some(host))`."""
    return re.findall(r'"([^"]*)"', node_text(node))


def rust_comparisons(source: str, slugs: frozenset[str]) -> Iterator[str]:
    """Yields the comparisons of a slug: `==`, `!=`, arms of a `match`, and lists of slugs."""
    nodes = [PARSER.parse(source.encode()).root_node]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "binary_expression" and node_text(node.child_by_field_name("operator")) in {"==", "!="}:
            remaining, right = node_text(node.child_by_field_name("left")), node_text(node.child_by_field_name("right"))
            for literal, value in ((remaining, right), (right, remaining)):
                if literal.strip('&"') in slugs and '"' in literal and SLUG_NAME.search(value):
                    yield node_text(node)
        elif node.type == "match_expression" and SLUG_NAME.search(node_text(node.child_by_field_name("value"))):
            body = node.child_by_field_name("body")
            arms = [arm for arm in body.children if arm.type == "match_arm"] if body else []
            patterns = [pattern for arm in arms if (pattern := arm.child_by_field_name("pattern"))]
            yield from (node_text(pattern) for pattern in patterns if slugs.intersection(quoted_strings(pattern)))
        elif node.type == "macro_invocation" and node_text(node.child_by_field_name("macro")) == "matches":
            value, _, pattern = node_text(node).partition(",")
            if SLUG_NAME.search(value) and slugs.intersection(re.findall(r'"([^"]*)"', pattern)):
                yield node_text(node)
        elif node.type == "array_expression":
            listed = string_literals(node)
            if len(listed) >= MIN_LISTED_SLUGS and slugs.issuperset(listed):
                yield node_text(node)


def python_comparisons(source: str, slugs: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            is_slug = any(isinstance(operand, ast.Constant) and operand.value in slugs for operand in operands)
            names = [ast.unparse(operand) for operand in operands if not isinstance(operand, ast.Constant)]
            if is_slug and any(SLUG_NAME.search(name) for name in names):
                yield ast.unparse(node)


def test_the_catalog_has_slugs():
    assert {"openai", "anthropic", "groq", "databricks", "stability-ai"} <= catalog_slugs()


def test_rust_compares_no_slugs():
    paths = [path for folder in RUST_FOLDERS for path in files_under(folder, ".rs")]
    actual = {str(path): list(rust_comparisons(without_tests(read_text(path)), catalog_slugs())) for path in paths}
    assert not {path: comparisons for path, comparisons in actual.items() if comparisons}


def test_python_compares_no_slugs():
    paths = files_under("python/penstock", ".py")
    actual = {str(path): list(python_comparisons(read_text(path), catalog_slugs())) for path in paths}
    assert not {path: comparisons for path, comparisons in actual.items() if comparisons}


@pytest.mark.parametrize(
    "source",
    [
        'fn f() { self.slug == "groq" }',
        'fn f() { "groq" != provider.slug() }',
        'fn f() { match self.slug { "groq" | "x" => 1, _ => 2 } }',
        'const A: [&str; 2] = ["groq", "openai"];',
        'fn f() { matches!(target.provider.slug(), "groq" | "x") }',
        'fn f() { match (provider.slug(), host) { ("groq", Some(host)) => 1, _ => 2 } }',
    ],
)
def test_comparisons_are_found(source: str):
    assert list(rust_comparisons(source, frozenset({"groq", "openai"})))


def test_comparisons_of_other_values_are_not_found():
    source = 'fn f() { publisher == "google" || match model { "openai" => true, _ => ["groq", "x"].contains(&model) } }'
    assert not list(rust_comparisons(source, frozenset({"google", "groq", "openai"})))
