"""Errors of the data plane, read from their Rust source for docs/errors.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def data_plane_errors(core_source: Path) -> list[list[str]]:
    """Returns code, status and message of each variant of the error types in the source folder of the core."""
    source = (core_source / "error/mod.rs").read_text()
    codes, statuses = (read_match_arms(source, method) for method in ("code", "status"))
    messages = read_match_arms((core_source / "error/message.rs").read_text(), "message")
    messages = {name: message.replace("limit.to_string()", "{limit}") for name, message in messages.items()}
    # One variant has its error code as a field. `inline_policy.rs` creates it, and names the code and header of each
    # case.
    fields_by_code = re.findall(
        r'\("(\w+_blocked)", (?:"([\w-]+)"|field)\)', (core_source / "resolve/inline_policy.rs").read_text()
    )
    # One variant returns the provider's status. The errors of prompts are a type of their own.
    statuses = {name: status.replace("*status", "the provider's") for name, status in statuses.items()}
    variants = [name for name in variant_names(source, "Error") if codes[name] not in {"code", "error.code()"}]
    rows = [[f"`{codes[name]}`", statuses[name], messages[name]] for name in variants]
    blocked = next(name for name, code in codes.items() if code == "code")
    rows += [
        [f"`{code}`", statuses[blocked], messages[blocked].replace("{field}", field or "{field}")]
        for code, field in fields_by_code
    ]
    return rows + prompt_errors((core_source / "error/prompt_error.rs").read_text())


def prompt_errors(source: str) -> list[list[str]]:
    """Returns code, status and message of each error of prompts."""
    codes, statuses, messages = (read_match_arms(source, method) for method in ("code", "status", "fmt"))
    return [
        [f"`{codes[name]}`", statuses[name], messages[name].replace("{labels}", " and its labels")]
        for name in variant_names(source, "PromptError")
    ]


def variant_names(source: str, enum: str) -> list[str]:
    """Returns the names of the variants of an enum."""
    return re.findall(r"^    (\w+)", source.split(f"pub enum {enum} {{", 1)[1].split("\n}\n", 1)[0], re.MULTILINE)


def read_match_arms(source: str, method: str) -> dict[str, str]:
    """Returns what a method of an error type returns for each variant: its string literal, else the expression."""
    body = source.split(f"fn {method}(&self", 1)[1].split("\n    }\n", 1)[0]
    pattern = r"((?:\|?\s*Self::\w+(?:\s*\{[^}]*\}|\([^)]*\))?\s*)+)=>\s*(.*?),?\n(?=\s*(?:Self|\}|_))"
    texts: dict[str, str] = {}
    for left, right in re.findall(pattern, body, re.DOTALL):
        text = re.search(r'"((?:[^"\\]|\\.)*)"', right, re.DOTALL)
        # A backslash at the end of a line continues the string.
        message = re.sub(r"\\\n\s*", "", text[1]) if text else right.strip("{} \n")
        texts |= dict.fromkeys(re.findall(r"Self::(\w+)", left), message)
    return texts
