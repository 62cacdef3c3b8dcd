"""Guardrails that configs name, and default guardrails of a workspace."""

from __future__ import annotations

from penstock.guardrails.defaults import iter_guardrails
from penstock.guardrails.documents import EXCLUSIONS, effective_defaults


def test_finds_saved_guardrails_in_a_config_and_its_targets():
    config = {
        "input_guardrails": ["pg-a", {"default.wordCount": {"minWords": 1}, "deny": True}],
        "input_mutators": ["pg-b"],
        "before_request_hooks": [{"type": "guardrail", "id": "pg-own", "checks": []}],
        "targets": [{"output_guardrails": ["pg-c"], "targets": [{"output_mutators": ["pg-d"]}]}, "@provider"],
        "metadata": {"input_guardrails": ["pg-none"]},
    }
    assert list(iter_guardrails(config, "config")) == [
        ("config.input_guardrails", "pg-a"),
        ("config.input_mutators", "pg-b"),
        ("config.targets[0].output_guardrails", "pg-c"),
        ("config.targets[0].targets[0].output_mutators", "pg-d"),
    ]
    assert not list(iter_guardrails(["pg-a"], "config"))


def test_defaults_of_the_organisation_come_first_unless_excluded():
    above = {"defaults": {"input_guardrails": ["a", "b"]}, EXCLUSIONS: {"input_guardrails": ["w2"]}}
    own = {"input_guardrails": ["c", "a"], "output_guardrails": ["d"]}
    defaults = [effective_defaults({"id": id_, "defaults": own}, above, "input_guardrails") for id_ in ("w1", "w2")]
    assert defaults == [["a", "b", "c"], ["c", "a"]]
    assert effective_defaults({"id": "w1", "defaults": own}, above, "output_guardrails") == ["d"]
    assert effective_defaults({"id": "w1", "defaults": {}}, {}, "input_guardrails") == []
