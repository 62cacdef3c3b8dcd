"""Import of Portkey's configs, virtual keys and prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.declarative.plan import find_shape_problems
from penstock.imports.findings import Status, iter_leaves
from penstock.imports.output import ImportedState, check_state
from penstock.imports.portkey import import_portkey
from penstock.imports.source import Source, parse_json

EXPORT: dict[str, Any] = {
    "virtual_keys": [
        {
            "object": "virtual-key",
            "name": "OpenAI prod",
            "slug": "openai-prod",
            "ai_provider_name": "openai",
            "masked_api_key": "sk-***abc",
            "note": "for all",
            "status": "active",
            "usage_limits": {"credit_limit": 10, "alert_threshold": 8, "periodic_reset": "monthly"},
            "rate_limits": [{"type": "requests", "unit": "rpm", "value": 100}],
            "model_config": {"custom_host": "https://models.acme.example/v1"},
        },
        {
            "name": "Azure",
            "slug": "azure-1",
            "provider": "azure-openai",
            "key": "canary-azure",
            "resourceName": "acme",
            "deploymentName": "gpt-4o",
            "apiVersion": "2024-10-21",
        },
        {"name": "x", "slug": "x", "provider": "watsonx"},
    ],
    "configs": {
        "object": "list",
        "data": [
            {
                "name": "main",
                "slug": "pc-main-123456",
                "is_default": 1,
                "status": "active",
                "config": json.dumps({"retry": {"attempts": 7, "onStatusCodes": [429]}, "virtual_key": "openai-prod"}),
            },
            {
                "name": "split",
                "slug": "pc-split",
                "config": {
                    "strategy": {"mode": "loadbalance"},
                    "cache": {"mode": "semantic", "maxAge": 10},
                    "targets": [
                        {"virtualKey": "openai-prod", "weight": 0.7, "overrideParams": {"model": "gpt-4o"}},
                        {"provider": "anthropic", "api_key": "canary-anthropic", "weight": 0.3, "magic": {"a": 1}},
                    ],
                },
            },
            {"name": "broken", "slug": "pc-broken", "config": {"targets": [{"provider": "nobody"}, {}]}},
        ],
    },
    "prompts": [
        {
            "name": "Greeting",
            "slug": "pp-greeting",
            "string": '[{"role": "user", "content": "Hello {{name}}"}]',
            "parameters": {"max_tokens": 50},
            "virtual_key": "openai-prod",
            "model": "gpt-4o",
            "tools": [],
        },
        {"name": "Half", "slug": "pp-half", "string": "x"},
    ],
    "api_keys": [{"name": "app", "key": "pk-***123"}],
    "guardrails": [{"slug": "g", "checks": []}],
}


def import_one(content: object, name: str = "workspace.json") -> ImportedState:
    return check_state(import_portkey([parse_json(name, json.dumps(content))]))


def paths_of(imported: ImportedState, status: Status) -> set[str]:
    return {finding.path for finding in imported.findings if finding.status is status}


def test_imports_an_exported_workspace():
    imported = import_one(EXPORT)
    (workspace,) = imported.state["workspaces"]
    item, azure = workspace["virtual_keys"]
    assert item == {
        "slug": "openai-prod",
        "name": "OpenAI prod",
        "provider": "openai",
        "key": "${PORTKEY_OPENAI_PROD_KEY}",
        "model_config": {"custom_host": "https://models.acme.example/v1"},
        "usage_limits": {"credit_limit": 10, "alert_threshold": 8, "periodic_reset": "monthly"},
        "rate_limits": [{"type": "requests", "unit": "rpm", "value": 100}],
        "note": "for all",
    }
    assert (azure["key"], azure["model_config"]["resourceName"]) == ("canary-azure", "acme")
    main, split = workspace["configs"]
    assert main["config"] == {"retry": {"attempts": 5, "on_status_codes": [429]}, "virtual_key": "openai-prod"}
    assert (main["slug"], main["is_default"]) == ("pc-main-123456", 1)
    assert split["config"] == {
        "strategy": {"mode": "loadbalance"},
        "cache": {"mode": "simple", "max_age": 60},
        "targets": [
            {"virtual_key": "openai-prod", "weight": 0.7, "override_params": {"model": "gpt-4o"}},
            {"provider": "anthropic", "api_key": "canary-anthropic", "weight": 0.3},
        ],
    }
    (prompt,) = workspace["prompts"]
    assert (prompt["slug"], prompt["parameters"], prompt["tools"]) == ("pp-greeting", {"max_tokens": 50}, [])
    assert list(find_shape_problems(imported.state)) == []


def test_reports_what_has_no_equivalent():
    imported = import_one(EXPORT)
    unsupported = paths_of(imported, Status.UNSUPPORTED)
    assert {"virtual_keys[2].provider", "configs.data[1].config.targets[1].magic.a"} <= unsupported
    assert "configs.data[2].config.targets[0].provider" in unsupported
    manual = paths_of(imported, Status.MANUAL)
    assert {"virtual_keys[0].slug", "prompts[1].string", "api_keys[0].key", "guardrails[0].slug"} <= manual
    assert {"configs.data[0].config", "configs.data[1].config.cache.maxAge"} <= paths_of(imported, Status.APPROXIMATE)
    assert "canary" not in json.dumps([str(finding) for finding in imported.findings])


@pytest.mark.parametrize(
    ("content", "slugs"),
    [
        ({"provider": "openai", "retry": {"attempts": 2}}, ["my-config"]),
        ([{"object": "config", "name": "a", "slug": "pc-a", "config": {"provider": "@x"}}], ["pc-a"]),
        ({"name": "one", "slug": "pc-one", "config": '{"provider": "openai"}'}, ["pc-one"]),
        ({"object": "list", "data": [{"name": "b", "slug": "a b", "config": {"provider": "@x"}}]}, ["b"]),
    ],
)
def test_reads_files_of_every_shape(content: object, slugs: list[str]):
    imported = import_one(content, "my-config.json")
    assert [row["slug"] for row in imported.state["workspaces"][0]["configs"]] == slugs
    assert paths_of(imported, Status.UNSUPPORTED) == set()


def test_imports_integrations_with_their_providers():
    integration = {"id": "i-1", "slug": "shared", "name": "Shared", "ai_provider_id": "openai", "key": "canary"}
    provider = {"slug": "ours", "name": "Ours", "integration_id": "i-1"}
    imported = import_one(
        {"integrations": [integration], "providers": [provider, {"name": "b", "integration_id": "?"}]}
    )
    (row,) = imported.state["organisation"]["integrations"]
    assert (row["slug"], row["key"], row["workspaces"]) == ("shared", "canary", [{"id": "portkey", "enabled": True}])
    assert imported.state["workspaces"][0]["providers"] == [
        {"slug": "ours", "name": "Ours", "integration_id": "shared"}
    ]
    assert "providers[1].name" in paths_of(imported, Status.MANUAL)


NAMES = st.sampled_from(
    [
        "configs",
        "virtual_keys",
        "prompts",
        "workspaces",
        "data",
        "object",
        "name",
        "slug",
        "config",
        "provider",
        "key",
        "strategy",
        "mode",
        "targets",
        "cache",
        "retry",
        "attempts",
        "usage_limits",
        "rate_limits",
        "string",
        "max_age",
        "override_params",
        "virtual_key",
        "onStatusCodes",
        "model_config",
        "integrations",
        "providers",
        "cb_config",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**7),
    st.sampled_from(["openai", "simple", "semantic", "fallback", "list", '{"provider": "openai", "x": 1}', "@a", ""]),
    st.text(max_size=6),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(TREES | st.dictionaries(NAMES, st.lists(st.dictionaries(NAMES, TREES, max_size=4), max_size=2), max_size=3))
@settings(max_examples=150, deadline=None)
def test_no_value_is_dropped_silently(tree: Any):
    imported = check_state(import_portkey([Source("file.json", tree)]))
    assert len(imported.findings) == sum(1 for _ in iter_leaves(tree))
    assert list(find_shape_problems(imported.state)) == []


def test_object_that_is_left_out_has_no_exact_value():
    row = {"name": "A", "slug": "a", "provider": "nobodys-models", "key": "sk-x", "note": "n"}
    imported = import_one({"virtual_keys": [row]})
    assert imported.state["workspaces"][0].get("virtual_keys", []) == []
    assert paths_of(imported, Status.UNSUPPORTED) == {f"virtual_keys[0].{name}" for name in row}


def test_reports_names_of_virtual_keys_that_are_missing():
    keys = [{"name": name, "slug": "used-twice", "provider": "openai"} for name in ("A", "B")]
    targets = [{"virtual_key": "used-twice"}, {"provider": "@gone"}, {"virtualKey": "gone"}, {"provider": "openai"}]
    config = {"strategy": {"mode": "loadbalance"}, "targets": targets}
    prompt = {"name": "p", "slug": "p", "string": "Hi", "virtual_key": "gone", "model": "m"}
    imported = import_one(
        {"configs": [{"name": "c", "slug": "c", "config": config}], "prompts": [prompt], "virtual_keys": keys}
    )
    messages = {
        finding.path: finding.message.split(";")[0] for finding in imported.findings if finding.status is Status.MANUAL
    }
    assert {path for path, message in messages.items() if message.startswith("no imported virtual key")} == {
        "configs[0].config.targets[1].provider",
        "configs[0].config.targets[2].virtualKey",
        "prompts[0].virtual_key",
    }
    # The second key has another slug, and the report says so.
    assert "virtual_keys[1].slug" in paths_of(imported, Status.APPROXIMATE)
    assert "virtual_keys[1].name" in messages


@pytest.mark.parametrize("content", [{}, []], ids=str)
def test_says_that_a_source_is_empty(content: object):
    (finding,) = import_one(content).findings
    assert (finding.status, finding.message) == (Status.UNSUPPORTED, "the source is empty")
