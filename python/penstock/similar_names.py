"""Suggestions for misspelt names: "did you mean". Comparing names is slow, and clients choose the names. So there are
limits for the length of a name, the candidates, and the suggestions in a response.
"""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Minimum similarity of a name to a candidate, for the candidate to be suggested.
MIN_SIMILARITY = 0.7
# Minimum similarity, without underscores, for an environment variable to count as a misspelt setting.
MIN_VARIABLE_SIMILARITY = 0.93
MAX_NAME_CHARS = 64
MAX_CANDIDATES = 300
# Maximum number of unknown names in one response for which a similar known name is looked up.
MAX_SUGGESTIONS = 10


def find_misspelt(variable: str, known: Iterable[str]) -> str | None:
    """Returns the known variable that a name probably misspells, or `None`. They differ in underscores, or in one or
    two other characters.
    """
    plain = variable.replace("_", "")
    for name in known:
        if SequenceMatcher(None, plain, name.replace("_", "")).ratio() >= MIN_VARIABLE_SIMILARITY:
            return name
    return None


def describe_unknown(name: str, allowed: Iterable[str]) -> str:
    """Returns the message about an unknown name, with the most similar allowed one and the list of all."""
    names = list(allowed)
    similar = NameSuggester().find(name, names)
    hint = f"did you mean {similar!r}? " if similar else ""
    return f"is not known; {hint}allowed: {', '.join(names)}"


class NameSuggester:
    """Finds similar names for the misspelt names of one response."""

    def __init__(self, suggestions: int = MAX_SUGGESTIONS) -> None:
        """Sets the maximum number of names that may be compared."""
        self._left = suggestions

    def find(self, name: str, candidates: Iterable[str]) -> str | None:
        """Returns the candidate most similar to a name; `None` if none is similar, or if no suggestions are left."""
        if self._left <= 0:
            return None
        self._left -= 1
        cut_name = name[:MAX_NAME_CHARS]
        # Omits candidates of very different lengths, which are never similar, so that more useful ones are within
        # `MAX_CANDIDATES`.
        shortest = MIN_SIMILARITY * len(cut_name) / (2 - MIN_SIMILARITY)
        longest = (2 - MIN_SIMILARITY) * len(cut_name) / MIN_SIMILARITY
        possible = (candidate for candidate in candidates if shortest <= len(candidate) <= longest)
        similar = get_close_matches(cut_name, list(islice(possible, MAX_CANDIDATES)), n=1, cutoff=MIN_SIMILARITY)
        return similar[0] if similar else None
