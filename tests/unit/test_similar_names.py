"""Suggestions for misspelt names, and the limits on the work and the text that a client causes."""

from __future__ import annotations

import pytest

from penstock import similar_names
from penstock.authorization import SCOPES_BY_KEY_TYPE, reject_unusable_scopes
from penstock.config_references import find_missing
from penstock.errors import MAX_PROBLEMS, InvalidError, Problem
from penstock.integrations.provider_options import check_partial_options
from penstock.limit_fields import RateLimit
from penstock.schemas import invalid_error
from penstock.similar_names import MAX_CANDIDATES, MAX_NAME_CHARS, MAX_SUGGESTIONS, NameSuggester
from penstock.type_validation import find_problems

LONG_NAME = "n" * 100_000


def test_suggests_the_most_similar_name():
    assert NameSuggester().find("confgs.create", ["configs.create", "configs.read"]) == "configs.create"
    assert NameSuggester().find("else", ["configs.create"]) is None


def test_compares_a_bounded_part_of_each_name_with_a_bounded_number_of_candidates(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[int, int]] = []

    def find_none(name: str, candidates: list[str], **_options: object) -> list[str]:
        compared.append((len(name), len(candidates)))
        return []

    monkeypatch.setattr(similar_names, "get_close_matches", find_none)
    suggester = NameSuggester()
    for _ in range(2 * MAX_SUGGESTIONS):
        suggester.find(LONG_NAME, (f"{number:064}" for number in range(10 * MAX_CANDIDATES)))
    assert compared == [(MAX_NAME_CHARS, MAX_CANDIDATES)] * MAX_SUGGESTIONS


def test_candidates_of_another_length_do_not_hide_a_similar_one():
    assert NameSuggester().find("opnai", [*("x" * 60 for _ in range(2 * MAX_CANDIDATES)), "openai"]) == "openai"


def unknown_scopes(names: list[str]) -> list[Problem]:
    with pytest.raises(InvalidError) as caught:
        reject_unusable_scopes("scopes", "workspace-user", names)
    return list(caught.value.problems)


def unknown_options(names: list[str]) -> list[Problem]:
    with pytest.raises(InvalidError) as caught:
        check_partial_options("configurations", "openai", dict.fromkeys(names, "x"), ())
    return list(caught.value.problems)


def unknown_fields(names: list[str]) -> list[Problem]:
    return find_problems(RateLimit, {"type": "tokens", "unit": "rpm", "value": 1, **dict.fromkeys(names, 1)})


def unknown_providers(names: list[str]) -> list[Problem]:
    targets = [{"provider": f"@{name}"} for name in names]
    return find_missing({"targets": targets}, "config", {"openai", "anthropic"}, "here")


@pytest.mark.parametrize("find", [unknown_scopes, unknown_options, unknown_fields, unknown_providers])
def test_problems_are_bounded_in_number_and_size(find: object, monkeypatch: pytest.MonkeyPatch):
    assert callable(find)
    compared: list[str] = []

    def find_none(name: str, *_others: object, **_options: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(similar_names, "get_close_matches", find_none)
    problems: list[Problem] = find([f"{LONG_NAME}{number}" for number in range(1000)])
    assert len(problems) == MAX_PROBLEMS
    assert len(compared) == MAX_SUGGESTIONS
    assert max(len(problem.path) + len(problem.message) for problem in problems) < 2000


def test_alternatives_of_a_valid_value_use_up_no_suggestions():
    limit = {"type": "tokens", "unit": "rpm", "value": 1}
    listed = [limit] * 20 + [{**limit, "vale": 1}]
    (problem,) = find_problems(list[RateLimit | list[RateLimit]], listed)
    assert problem.path == "[20].vale"
    assert "did you mean 'value'?" in problem.message


def test_message_counts_the_problems_that_are_not_listed():
    error = invalid_error([Problem(f"f{number}", "is needed") for number in range(MAX_PROBLEMS + 3)])
    assert len(error.problems) == MAX_PROBLEMS
    assert error.message.endswith(f"f{MAX_PROBLEMS - 1} is needed; and 3 more")


def test_scopes_of_another_key_type_need_no_suggestion():
    foreign_scopes = sorted(SCOPES_BY_KEY_TYPE["organisation-service"] - SCOPES_BY_KEY_TYPE["workspace-user"])[:1]
    assert (
        unknown_scopes(foreign_scopes)[0].message == f"{foreign_scopes[0]!r} is not for keys of the type workspace-user"
    )
