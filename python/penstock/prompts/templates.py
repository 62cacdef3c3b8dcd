"""Templates of prompts and partials: their size, their syntax, and the partials and variables that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock import engine
from penstock.errors import InvalidError, Problem
from penstock.kit.engine_validation import MAX_VALIDATION_SECONDS, check_in_engine
from penstock.kit.json_depth import nests_deeper
from penstock.schemas import field_error, invalid_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_TEMPLATE_BYTES = 1024 * 1024
# Maximum total size of the fields of a version except its template, as JSON.
MAX_DETAILS_BYTES = 1024 * 1024
# Maximum nesting of objects and lists in a field. The engine and the databases read fewer levels than a request may
# have.
MAX_DEPTH = 64
TEMPLATE_FIELD = "string"


async def check_template(content: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> None:
    """Checks the size and depth of a version's content and notes, and the syntax of its template with the engine's own
    parser. Raises `InvalidError` with all problems.
    """
    problems = [*_size_problems(content, notes), *_depth_problems({**content, "template_metadata": notes})]
    if problems:
        raise invalid_error(problems)
    try:
        await check_in_engine("prompt", content)
    except TimeoutError:
        message = f"takes longer than {MAX_VALIDATION_SECONDS} s to check; use a smaller template"
        raise field_error(TEMPLATE_FIELD, message) from None
    except engine.EngineError as error:
        problems = [
            Problem(problem["path"].removeprefix("$").removeprefix("."), problem["message"])
            for problem in error.problems
        ]
        raise InvalidError("the template cannot be used", problems or [Problem(TEMPLATE_FIELD, str(error))]) from None


def variable_components(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables, sections and partials that a template names."""
    return engine.prompt_variables(msgspec.json.encode(content))


def find_partials(content: Mapping[str, Any]) -> list[str]:
    """Returns the slugs of the partials that a template refers to, in the order of their first use."""
    return list(variable_components(content)["partials"])


def _size_problems(content: Mapping[str, Any], notes: Mapping[str, Any] | None) -> Iterator[Problem]:
    size = len(content[TEMPLATE_FIELD].encode())
    if size > MAX_TEMPLATE_BYTES:
        yield Problem(TEMPLATE_FIELD, f"has {size} bytes; at most {MAX_TEMPLATE_BYTES} are allowed")
    details = [value for name, value in content.items() if name != TEMPLATE_FIELD]
    size = len(msgspec.json.encode([*details, notes]))
    if size > MAX_DETAILS_BYTES:
        message = (
            f"has {size} bytes together with the other fields of the version; at most {MAX_DETAILS_BYTES} are allowed"
        )
        yield Problem("parameters", message)


def _depth_problems(fields: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in fields.items():
        if nests_deeper(value, MAX_DEPTH):
            yield Problem(name, f"nests too deep; at most {MAX_DEPTH} levels of objects and lists are allowed")
