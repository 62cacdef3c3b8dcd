"""Templates of prompts: the partials that they name, and their largest size."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidError, Problem
from penstock.prompts import templates as prompt_templates

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES = [{"role": "system", "content": "{{>tone}}"}, {"role": "user", "content": [{"text": "{{> list }} {{name}}"}]}]


@pytest.mark.parametrize(
    ("template", "partials"),
    [
        ("no tags", []),
        ("{{name}} {{>one}} {{> two }} {{>one}}", ["one", "two"]),
        ("{{#section}}{{>inside}}{{/section}}{{{triple}}}{{>after}}", ["inside", "after"]),
        ("{{! comment {{>hidden}} {{>shown}}", ["shown"]),
        ("{{=<% %>=}}{{>text}} <%>tag%> <%={{ }}=%>{{>last}}", ["tag", "last"]),
        (json.dumps(MESSAGES), ["tone", "list"]),
        (
            '[{"role": "system", "content": "{{=<% %>=}}<%>one%>"}, {"role": "user", "content": "<%>text%> {{>two}}"}]',
            ["one", "two"],
        ),
        ("[not json {{>one}}", ["one"]),
        (f"{'[' * 100_000} {{{{>one}}}}", ["one"]),
    ],
)
def test_finds_the_partials_of_a_template(template: str, partials: Sequence[str]):
    assert prompt_templates.find_partials({"string": template}) == list(partials)


def test_raw_template_is_searched_as_text():
    template = '[{"content": "{{=<% %>=}}<%>one%>"}, {"content": "<%>two%>"}]'
    assert prompt_templates.find_partials({"string": template, "is_raw_template": True}) == ["one", "two"]


def check(content: dict[str, Any], notes: dict[str, Any] | None = None) -> tuple[Problem, ...]:
    try:
        asyncio.run(prompt_templates.check_template(content, notes))
    except InvalidError as error:
        return error.problems
    return ()


def test_template_and_other_fields_have_a_largest_size():
    largest = {"string": "ä" * (prompt_templates.MAX_TEMPLATE_BYTES // 2), "parameters": {}}
    assert check(largest) == ()
    assert check({**largest, "string": largest["string"] + "x"}) == (
        Problem("string", "has 1048577 bytes; at most 1048576 are allowed"),
    )
    (problem,) = check({"string": "", "parameters": {"a": "x" * 600_000}}, {"b": "x" * 600_000})
    assert (problem.path, "at most 1048576 are allowed" in problem.message) == ("parameters", True)


def nest(levels: int) -> Any:
    """Returns lists and objects in each other."""
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_fields_have_a_largest_depth():
    def content(levels: int) -> dict[str, Any]:
        return {"string": "", "parameters": {"a": nest(levels - 1)}, "tools": None}

    assert check(content(prompt_templates.MAX_DEPTH), nest(prompt_templates.MAX_DEPTH)) == ()
    message = "nests too deep; at most 64 levels of objects and lists are allowed"
    problems = [Problem(name, message) for name in ("parameters", "template_metadata")]
    assert check(content(prompt_templates.MAX_DEPTH + 1), nest(900)) == tuple(problems)


def test_problems_of_the_engine_are_reported_with_their_paths():
    problem = Problem("string", "the section `a` is not closed (line 1, column 1)")
    assert check({"string": "{{#a}}"}) == (problem,)
    (problem,) = check({"string": json.dumps([{"role": "user", "content": ["{{"]}])})
    assert problem == Problem("string[0].content[0]", "the tag is not closed: `}}` is missing (line 1, column 1)")


def test_names_of_a_template_are_listed():
    assert prompt_templates.variable_components({"string": "{{a}}{{#b}}{{c}}{{>d}}{{/b}}"}) == {
        "variables": ["a"],
        "sections": ["b"],
        "partials": ["d"],
        "sectionVariables": {"b": ["c"]},
        "variablePartials": [],
    }
