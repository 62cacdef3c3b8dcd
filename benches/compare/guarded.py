"""Configs with guardrails: five checks that other gateways have, too, with the same parameters."""

from __future__ import annotations

from typing import Any

CHECKS: tuple[dict[str, Any], ...] = (
    {"id": "default.contains", "parameters": {"words": ["canary", "secret"], "operator": "none"}},
    {"id": "default.regexMatch", "parameters": {"rule": "[A-Z]{3}-[0-9]{6}", "not": True}},
    {"id": "default.wordCount", "parameters": {"minWords": 1, "maxWords": 5000}},
    {"id": "default.characterCount", "parameters": {"minCharacters": 1, "maxCharacters": 50_000}},
    {"id": "default.sentenceCount", "parameters": {"minSentences": 1, "maxSentences": 5000}},
)
# Names of the two configs. They are equal, except that `guarded` has checks.
UNGUARDED, GUARDED = CONFIG_NAMES = ("unguarded", "guarded")


def make_config(name: str, target: dict[str, Any]) -> dict[str, Any]:
    """Returns a config with one target, with or without the checks."""
    if name == UNGUARDED:
        return target
    return {**target, "before_request_hooks": [{"type": "guardrail", "id": "checks", "checks": list(CHECKS)}]}
