"""Module graph of a Rust crate, read from its `use` trees and paths. The layer tests check it."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import tree_sitter_rust
from tree_sitter import Language, Parser

from tests.shape.repository import files_under, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

PARSER = Parser(Language(tree_sitter_rust.language()))
PATH_HEADS = {"crate", "super", "self"}


def node_text(node: Node | None) -> str:
    return (node.text or b"").decode() if node else ""


def expand_use_tree(node: Node | None, prefix: Module = ()) -> Iterator[Module]:
    """Returns the full path of every name in a `use` tree, with groups expanded: `a::{b, c::d}` is `a::b`, `a::c::d`."""
    if node is None:
        yield prefix
    elif node.type == "scoped_use_list":
        path = node.child_by_field_name("path")
        base = next(expand_use_tree(path, prefix)) if path else prefix
        yield from expand_use_tree(node.child_by_field_name("list"), base)
    elif node.type == "use_list":
        for child in node.named_children:
            if "comment" not in child.type:
                yield from expand_use_tree(child, prefix)
    elif node.type == "use_as_clause":
        yield from expand_use_tree(node.child_by_field_name("path"), prefix)
    elif node.type == "use_wildcard":
        yield from expand_use_tree(node.named_children[0] if node.named_children else None, prefix)
    elif node.type in {"scoped_identifier", "scoped_type_identifier"}:
        path = node.child_by_field_name("path")
        base = next(expand_use_tree(path, prefix)) if path else prefix
        yield (*base, node_text(node.child_by_field_name("name")))
    else:
        yield (*prefix, node_text(node))


class Crate:
    """Modules of one crate and the modules that each of them names, outside `#[cfg(test)]`."""

    def __init__(self, name: str) -> None:
        folder = f"rust/{name}/src"
        self.sources: dict[Module, str] = {}
        for path in files_under(folder, ".rs"):
            parts = path.relative_to(folder).with_suffix("").parts
            module = parts[:-1] if parts[-1] in {"mod", "lib"} else parts
            if "bin" not in parts:
                self.sources[module] = read_text(path).split("#[cfg(test)]\nmod tests")[0]

    def resolve(self, path: Module, module: Module) -> Module | None:
        """Returns the module that a path leads to, or `None` if it leads out of the crate."""
        head, depth = path[0], 0
        if head == "crate":
            target = path[1:]
        elif head == "self":
            target = (*module, *path[1:])
        elif head == "super":
            while depth < len(path) and path[depth] == "super":
                depth += 1
            target = (*module[: len(module) - depth], *path[depth:])
        elif (*module, head) in self.sources:
            target = (*module, *path)
        else:
            return None
        while target not in self.sources:
            target = target[:-1]
        return target

    def named_paths(self, module: Module) -> Iterator[Module]:
        nodes = [PARSER.parse(self.sources[module].encode()).root_node]
        while nodes:
            node = nodes.pop()
            if node.type == "use_declaration":
                yield from expand_use_tree(node.child_by_field_name("argument"))
            elif node.type in {"scoped_identifier", "scoped_type_identifier"} and re.fullmatch(
                r"[\w:]+", node_text(node)
            ):
                yield tuple(node_text(node).split("::"))
            elif node.type == "token_tree":
                for actual in re.findall(r"(?<![\w:])(?:crate|super|self)(?:::\w+)+", node_text(node)):
                    yield tuple(actual.split("::"))
            else:
                nodes += node.children

    def graph(self) -> Graph:
        """Returns the imports between modules. Imports in `lib.rs` and declarations of child modules do not count."""
        edges: Graph = {}
        for module in self.sources:
            if module:
                actual = {self.resolve(path, module) for path in self.named_paths(module) if path and path[0]}
                edges[module] = {target for target in actual if target} - {module}
        return edges


@functools.cache
def load_crate(name: str) -> Crate:
    return Crate(name)


def find_cycles(graph: Graph) -> list[list[Module]]:
    """Returns the strongly connected components with more than one module (Tarjan's algorithm)."""
    numbers: dict[Module, int] = {}
    lowest: dict[Module, int] = {}
    stack: list[Module] = []
    cycles: list[list[Module]] = []

    def visit(module: Module) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for target in sorted(graph.get(module, ())):
            if target not in numbers:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], numbers[target])
        if lowest[module] == numbers[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                cycles.append(stack[at:])
            del stack[at:]

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return cycles
