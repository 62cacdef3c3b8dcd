"""Parameters and type names of the Rust crates. Each parameter has a name of its own, and a name means one type."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.shape.repository import files_under, read_text
from tests.shape.rust_modules import PARSER, load_crate, node_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

CRATES = sorted({path.parts[1] for path in files_under("rust", ".toml") if len(path.parts) == 3})

# Every client format has one of each. Only the module of its format imports it.
ONE_PER_FORMAT = {"ResponseBuilder", "StreamWriter"}

# A trait with more methods is split by capability.
MAX_TRAIT_METHODS = 8

TYPE_KINDS = {"struct_item", "enum_item", "union_item", "trait_item", "type_item"}


def find_nodes(source: str, kinds: set[str]) -> Iterator[Node]:
    nodes = [PARSER.parse(source.encode()).root_node]
    while nodes:
        node = nodes.pop()
        if node.type in kinds:
            yield node
        nodes += node.children


def is_tuple(kind: Node | None, aliases: set[str]) -> bool:
    """Returns true for a tuple, an alias of one, a reference to one and an optional one. A list of tuples is none."""
    if kind is None:
        return False
    if kind.type == "tuple_type":
        # Parentheses around a single type are no tuple.
        return any(child.type == "," for child in kind.children)
    if kind.type == "reference_type":
        return is_tuple(kind.child_by_field_name("type"), aliases)
    if kind.type == "generic_type" and node_text(kind.child_by_field_name("type")) == "Option":
        arguments = kind.child_by_field_name("type_arguments")
        return arguments is not None and any(is_tuple(argument, aliases) for argument in arguments.named_children)
    return node_text(kind) in aliases


def tuple_aliases(source: str) -> set[str]:
    """Returns the names of the type aliases that stand for a tuple."""
    return {
        node_text(alias.child_by_field_name("name"))
        for alias in find_nodes(source, {"type_item"})
        if is_tuple(alias.child_by_field_name("type"), set())
    }


def tuple_parameters(source: str, aliases: set[str]) -> list[str]:
    """Returns function name and parameter for each parameter that is a tuple."""
    return [
        f"{node_text(function.child_by_field_name('name'))}: {node_text(parameter)}"
        for function in find_nodes(source, {"function_item", "function_signature_item"})
        if (parameters := function.child_by_field_name("parameters"))
        for parameter in parameters.named_children
        if parameter.type == "parameter" and is_tuple(parameter.child_by_field_name("type"), aliases)
    ]


def type_names(source: str) -> Iterator[str]:
    """Yields the name of each type, trait and alias that a file defines. Associated types belong to their trait."""
    for node in find_nodes(source, TYPE_KINDS):
        owner = node.parent.parent if node.parent and node.parent.type == "declaration_list" else None
        if owner is None or owner.type not in {"impl_item", "trait_item"}:
            yield node_text(node.child_by_field_name("name"))


@pytest.mark.parametrize("crate", CRATES)
def test_no_parameter_is_a_tuple(crate: str):
    sources = load_crate(crate).sources
    aliases = set().union(*map(tuple_aliases, sources.values()))
    actual = {"::".join(module): tuple_parameters(source, aliases) for module, source in sources.items()}
    assert not {module: parameters for module, parameters in actual.items() if parameters}


@pytest.mark.parametrize("crate", CRATES)
def test_types_of_one_crate_have_different_names(crate: str):
    counts = Counter(name for source in load_crate(crate).sources.values() for name in type_names(source))
    assert counts
    assert not {name for name, count in counts.items() if count > 1} - ONE_PER_FORMAT


def test_conventional_names_are_in_use():
    counts = Counter(name for source in load_crate("llm").sources.values() for name in type_names(source))
    assert all(counts[name] > 1 for name in ONE_PER_FORMAT)


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("(a, b): (A, B)", True),
        ("pair: (A, B)", True),
        ("pair: &mut (A, B)", True),
        ("pair: Option<&(A, B)>", True),
        ("pair: Pair", True),
        ("value: &(impl Serialize + ?Sized)", False),
        ("pairs: &[(A, B)]", False),
        ("pairs: impl Iterator<Item = (A, B)>", False),
        ("done: ()", False),
        ("a: A", False),
    ],
)
def test_tuples_are_found_in_each_kind_of_parameter(parameter: str, expected: bool):
    source = f"type Pair = (A, B);\nimpl Type {{ fn run(&self, {parameter}) {{}} }}"
    assert bool(tuple_parameters(source, tuple_aliases(source))) is expected


def test_nested_types_have_names_and_associated_types_do_not():
    source = "struct A; impl T for A { type Item = u8; fn run() { enum B {} } } mod inner { type C = u8; }"
    assert sorted(type_names(source)) == ["A", "B", "C"]


def trait_sizes(source: str) -> Iterator[tuple[str, int]]:
    """Yields the name and the number of methods of each trait."""
    for node in find_nodes(source, {"trait_item"}):
        body = node.child_by_field_name("body")
        members = body.named_children if body else []
        methods = [member for member in members if member.type in {"function_item", "function_signature_item"}]
        yield node_text(node.child_by_field_name("name")), len(methods)


def test_traits_are_small():
    sizes = [(path.as_posix(), *size) for path in files_under("rust", ".rs") for size in trait_sizes(read_text(path))]
    assert len(sizes) > 25
    assert not [size for size in sizes if size[2] > MAX_TRAIT_METHODS]


def test_methods_of_a_trait_are_counted():
    source = "trait Shape: Stream { type Item; const A: u8; fn read(&self); fn write(&self) { self.read() } }"
    assert list(trait_sizes(source)) == [("Shape", 2)]
