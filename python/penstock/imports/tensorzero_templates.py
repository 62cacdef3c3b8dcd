"""Reads the template and schema files that a TensorZero configuration names, and converts MiniJinja to Mustache. Only
variables, simple conditions and loops have an equivalent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from penstock.imports.source import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.imports.source import Source

# Configuration fields whose value is the name of a file.
FILE_FIELDS = frozenset(
    [
        "system_template",
        "user_template",
        "assistant_template",
        "system_schema",
        "user_schema",
        "assistant_schema",
        "output_schema",
        "parameters",
        "path",
        "__tensorzero_remapped_path",
    ]
)
MAX_FILES = 2000
TAG = re.compile(r"(\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})", re.DOTALL)
VARIABLE = re.compile(r"\{\{-?\s*([A-Za-z_][\w.]*)\s*-?\}\}\Z")
IF_TAG = re.compile(r"\{%-?\s*if\s+([A-Za-z_][\w.]*)\s*-?%\}\Z")
FOR_TAG = re.compile(r"\{%-?\s*for\s+([A-Za-z_]\w*)\s+in\s+([A-Za-z_][\w.]*)\s*-?%\}\Z")
WORD_TAG = re.compile(r"\{%-?\s*(else|endif|endfor)\s*-?%\}\Z")


def read_templates(sources: Sequence[Source], files: Sequence[Path]) -> dict[str, str]:
    """Returns the contents of the files that the sources name, by the name. Missing files are omitted."""
    contents: dict[str, str] = {}
    for source, file in zip(sources, files, strict=True):
        for name in _iter_file_names(source.tree):
            path = file.parent / name
            # Files outside of the configuration's folder are not read.
            is_inside = path.resolve().is_relative_to(file.parent.resolve())
            if name not in contents and is_inside and path.is_file() and len(contents) < MAX_FILES:
                contents[name] = read_text(path)
    return contents


def _iter_file_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if name in FILE_FIELDS and isinstance(item, str):
                yield item
            else:
                yield from _iter_file_names(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _iter_file_names(item)


def to_mustache(template: str) -> str | None:
    """Returns a MiniJinja template as Mustache; `None` if it uses something without an equivalent."""
    out: list[str] = []
    # Open blocks, the innermost last. Each has its kind (`if`, `else` or `for`), its variable, and the name of the
    # loop's item.
    blocks: list[tuple[str, str, str]] = []
    for part in TAG.split(template):
        if part.startswith("{#"):
            continue
        if not part.startswith(("{{", "{%")):
            out.append(part)
        elif (tag := _convert_tag(part, blocks)) is None:
            return None
        else:
            out.append(tag)
    return None if blocks else "".join(out)


def _convert_tag(tag: str, blocks: list[tuple[str, str, str]]) -> str | None:
    if matched := VARIABLE.match(tag):
        return f"{{{{{_name_in_loop(matched[1], blocks)}}}}}"
    if matched := IF_TAG.match(tag):
        blocks.append(("if", _name_in_loop(matched[1], blocks), ""))
    elif matched := FOR_TAG.match(tag):
        blocks.append(("for", _name_in_loop(matched[2], blocks), matched[1]))
    else:
        matched = WORD_TAG.match(tag)
        return _convert_block_keyword(matched[1], blocks) if matched and blocks else None
    return f"{{{{#{blocks[-1][1]}}}}}"


def _convert_block_keyword(word: str, blocks: list[tuple[str, str, str]]) -> str | None:
    """Converts `else`, `endif` or `endfor`; returns `None` if it does not match the innermost open block."""
    kind, name, _ = blocks[-1]
    if word == "else" and kind == "if":
        blocks[-1] = ("else", name, "")
        return f"{{{{/{name}}}}}{{{{^{name}}}}}"
    if (word == "endfor") != (kind == "for") or word == "else":
        return None
    blocks.pop()
    return f"{{{{/{name}}}}}"


def _name_in_loop(name: str, blocks: Sequence[tuple[str, str, str]]) -> str:
    """Converts a name that is used inside of loops. In Mustache, the item itself is `.`, and its fields have no
    prefix.
    """
    for kind, _, item in reversed(blocks):
        if kind == "for" and name == item:
            return "."
        if kind == "for" and name.startswith(f"{item}."):
            return name.removeprefix(f"{item}.")
    return name
