"""References of configs to saved providers, as `@slug` or in `virtual_key`. A stored config may be saved before its
providers, so a missing provider is only a warning. In a settings file without a store it is an error.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import MAX_PROBLEMS, Problem, shorten
from penstock.similar_names import NameSuggester

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def iter_providers(config: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the slug of each saved provider that a config or one of its targets names."""
    if not isinstance(config, dict):
        return
    table = cast("dict[str, Any]", config)
    provider, virtual_key = table.get("provider"), table.get("virtual_key")
    if isinstance(provider, str) and provider.startswith("@"):
        yield f"{path}.provider", provider[1:]
    if isinstance(virtual_key, str):
        yield f"{path}.virtual_key", virtual_key
    targets = table.get("targets")
    for index, target in enumerate(cast("list[object]", targets) if isinstance(targets, list) else []):
        yield from iter_providers(target, f"{path}.targets[{index}]")


def find_missing(config: object, path: str, existing: Collection[str], location: str) -> list[Problem]:
    """Returns a problem for each saved provider that a config names and that does not exist, at most `MAX_PROBLEMS`."""
    missing = [(at, slug) for at, slug in iter_providers(config, path) if slug not in existing]
    suggester, candidates = NameSuggester(), sorted(existing) if missing else []
    problems: list[Problem] = []
    for at, slug in islice(missing, MAX_PROBLEMS):
        similar = suggester.find(slug, candidates)
        hint = f"; did you mean '@{similar}'?" if similar else ""
        problems.append(
            Problem(at, f"names the saved provider '@{shorten(slug)}', which does not exist {location}{hint}")
        )
    return problems
