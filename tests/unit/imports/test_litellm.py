"""LiteLLM configurations of many shapes: each is imported without unsupported values, and the result is valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.declarative.document import ENV_REFERENCE_PATTERN
from penstock.declarative.plan import find_shape_problems
from penstock.errors import SettingsError
from penstock.imports.findings import Status, iter_leaves, render_path
from penstock.imports.litellm import import_litellm
from penstock.imports.output import check_state, find_config_errors
from penstock.imports.source import Source, parse_yaml
from penstock.integrations.provider_options import check_options
from tests.unit.imports_rendering import render_targets

if TYPE_CHECKING:
    from penstock.imports.output import ImportedState

FOLDER = Path(__file__).with_name("litellm_configs")
# Targets of each model in the order in which they are tried, as LiteLLM tries them.
EXPECTED: dict[str, dict[str, str]] = {
    "aliases": {
        "gpt-4o gpt-4": "openai/gpt-4o",
        "haiku gpt-3.5-turbo": "anthropic/claude-haiku-4-5",
    },
    "azure_entra": {
        "gpt-4o": "azure-openai/gpt-4o",
        "private": "azure-openai/gpt-4.1",
    },
    "azure_foundry": {
        "command-r": "azure-ai/command-r-plus",
        "phi": "azure-ai/phi-4",
    },
    "azure_from_environment": {
        "gpt-4": "azure-openai/chatgpt-v-2",
    },
    "azure_load_balancing": {
        "gpt-4o": "(azure-openai/gpt-4o-eu*6 | azure-openai/gpt-4o-ca*6 | azure-openai/gpt-4o-fr*1440)",
    },
    "azure_one_resource": {
        "chat": "azure-openai/chat-deployment",
        "embed": "azure-openai/embed-deployment",
    },
    "bedrock": {
        "claude": "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "nova": "bedrock/amazon.nova-pro-v1:0",
        "titan": "bedrock/amazon.titan-embed-text-v2:0",
    },
    "budgets": {
        "gpt-4o": "openai/gpt-4o",
    },
    "cache_in_redis": {
        "gpt-4o": "openai/gpt-4o",
    },
    "cache_local_short": {
        "gpt-4o": "openai/gpt-4o",
    },
    "cache_semantic": {
        "gpt-4o": "openai/gpt-4o",
    },
    "callbacks_and_alerts": {
        "gpt-4o": "openai/gpt-4o",
    },
    "chain_of_tiers": {
        "local": "(ollama/llama3.1 > (openai/gpt-4o-mini > openai/gpt-4o))",
        "cloud": "(openai/gpt-4o-mini > openai/gpt-4o)",
        "heavy": "openai/gpt-4o",
    },
    "circular_fallbacks": {
        "a": "(openai/gpt-4o > anthropic/claude-haiku-4-5)",
        "b": "(anthropic/claude-haiku-4-5 > openai/gpt-4o)",
    },
    "content_policy": {
        "strict": "(openai/gpt-4o >400> mistral-ai/mistral-large-latest)",
        "lenient": "mistral-ai/mistral-large-latest",
    },
    "credential_list": {
        "gpt-4o": "azure-openai/gpt-4o",
        "gpt-4.1": "azure-openai/gpt-4.1",
    },
    "custom_provider_field": {
        "house-model": "openai/house-model-v2",
        "unnamed-provider": "openai/acme-7b",
    },
    "default_fallbacks": {
        "a": "(openai/gpt-4o > groq/llama-3.1-8b-instant)",
        "b": "(anthropic/claude-haiku-4-5 > (openai/gpt-4o > groq/llama-3.1-8b-instant))",
        "spare": "groq/llama-3.1-8b-instant",
    },
    "embeddings_rerank_audio": {
        "embed": "voyage/voyage-3-large",
        "rerank": "cohere/rerank-v3.5",
        "jina-rerank": "jina/jina-reranker-v2-base-multilingual",
        "whisper": "openai/whisper-1",
        "tts": "openai/gpt-4o-mini-tts",
        "image": "openai/gpt-image-1",
    },
    "fallbacks": {
        "small": "((openai/gpt-4o-mini >> (openai/gpt-4o >400,413> anthropic/claude-sonnet-4-5) >> anthropic/claude-sonnet-4-5) >400,413> (openai/gpt-4o >400,413> anthropic/claude-sonnet-4-5))",
        "large": "(openai/gpt-4o >400,413> anthropic/claude-sonnet-4-5)",
        "other": "anthropic/claude-sonnet-4-5",
    },
    "files_and_pass_through": {
        "gpt-4o": "openai/gpt-4o",
    },
    "guardrails": {
        "gpt-4o": "openai/gpt-4o",
    },
    "included_files": {
        "gpt-4o": "openai/gpt-4o",
    },
    "local_servers": {
        "llama": "ollama/llama3.1",
        "qwen": "ollama/qwen3:32b",
        "vllm": "openai/meta-llama/Llama-3.1-8B-Instruct",
        "studio": "openai/local-model",
        "lm": "openai/qwen2.5-7b-instruct",
    },
    "many_providers": {
        "groq-llama": "groq/llama-3.3-70b-versatile",
        "mistral": "mistral-ai/mistral-large-latest",
        "deepseek": "deepseek/deepseek-chat",
        "grok": "x-ai/grok-4",
        "gemini": "google/gemini-2.5-pro",
        "together": "together-ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "fireworks": "fireworks-ai/accounts/fireworks/models/deepseek-v3",
        "perplexity": "perplexity-ai/sonar-pro",
        "router": "openrouter/anthropic/claude-sonnet-4.5",
        "command": "cohere/command-a-03-2025",
        "cerebras": "cerebras/llama3.1-8b",
        "nim": "openai/meta/llama3-70b-instruct",
    },
    "no_keys": {
        "gpt-4o-mini": "openai/gpt-4o-mini",
        "sonnet": "anthropic/claude-sonnet-4-5-20250929",
        "embeddings": "openai/text-embedding-3-small",
    },
    "one_model": {
        "gpt-4o": "openai/gpt-4o",
    },
    "order_of_rows": {
        "chat": "(openai/gpt-4o > (anthropic/claude-sonnet-4-5*2 | mistral-ai/mistral-large-latest*1))",
    },
    "prices": {
        "house": "openai/house-7b",
        "mini": "openai/gpt-4o-mini",
    },
    "provider_wildcards": {
        "mini": "(openai/gpt-4o-mini > anthropic/claude-haiku-4-5)",
        "anthropic/claude-haiku-4-5 haiku": "anthropic/claude-haiku-4-5",
        "^house/gpt-.*$": "azure-ai/*",
        "^anthropic/.*$": "anthropic/*",
        "^groq/.*$": "groq/*",
    },
    "redis_router": {
        "gpt-4o": "(openai/gpt-4o*10000 | azure-openai/gpt-4o*90000)",
    },
    "request_parameters": {
        "creative": "openai/gpt-4o",
        "thinking": "anthropic/claude-sonnet-4-5",
    },
    "retry_policy": {
        "gpt-4o": "openai/gpt-4o",
    },
    "tags_and_teams": {
        "gpt-4o": "(openai/gpt-4o | azure-openai/gpt-4o)",
    },
    "vertex": {
        "gemini-pro": "vertex-ai/gemini-2.5-pro",
        "gemini-flash": "vertex-ai/gemini-2.5-flash",
        "claude-vertex": "vertex-ai/claude-sonnet-4-5@20250929",
    },
    "weights": {
        "chat": "(openai/gpt-4o*9 | anthropic/claude-sonnet-4-5*1)",
    },
    "wildcards": {
        "gpt-4o": "openai/gpt-4o",
        "^claude-.*$": "anthropic/*",
        "^local/.*$": "openai/house-7b",
        "^.*$": "openai/*",
    },
}


def import_text(text: str, name: str = "config.yaml") -> ImportedState:
    return check_state(import_litellm([parse_yaml(name, text)]))


def findings_of(imported: ImportedState, status: Status) -> dict[str, str]:
    return {finding.path: finding.message for finding in imported.findings if finding.status is status}


def with_values(value: Any) -> Any:
    """Replaces references to environment variables with values that any field accepts."""
    if isinstance(value, dict):
        return {name: with_values(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_values(item) for item in value]
    return "https://x.test" if isinstance(value, str) and ENV_REFERENCE_PATTERN.fullmatch(value) else value


def test_every_file_has_an_expectation():
    assert {file.stem for file in FOLDER.glob("*.yaml")} == EXPECTED.keys()
    assert len(EXPECTED) >= 30


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_imports_a_configuration(name: str):
    text = (FOLDER / f"{name}.yaml").read_text()
    imported = import_text(text)
    assert render_targets(imported.state) == EXPECTED[name]
    assert findings_of(imported, Status.UNSUPPORTED) == {}
    assert list(find_shape_problems(imported.state)) == []
    for row in imported.state["organisation"]["integrations"]:
        check_options("configurations", row["ai_provider_id"], with_values(row.get("configurations", {})))
    for workspace in imported.state["workspaces"]:
        for row in workspace["configs"]:
            assert find_config_errors(row["config"]) == []
    # Line numbers of findings refer to the imported file.
    lines = text.splitlines()
    for finding in imported.findings:
        last = re.split(r"[.\[]", finding.path.rstrip("]"))[-1].strip('"')
        assert finding.line is not None
        assert last.isdigit() or last in lines[finding.line - 1] or "<<" in text


def test_every_value_has_one_finding():
    for name in EXPECTED:
        source = parse_yaml(name, (FOLDER / f"{name}.yaml").read_text())
        actual = import_litellm([source]).findings
        assert [item.path for item in actual] == [render_path(leaf) for leaf in iter_leaves(source.tree)]


SECTIONS = ("model_list", "litellm_settings", "router_settings", "general_settings", "credential_list", "include")
NAMES = st.sampled_from(
    [
        *SECTIONS,
        *("model_name", "litellm_params", "model_info", "model", "api_key", "api_base", "rpm", "weight", "order"),
        *("fallbacks", "context_window_fallbacks", "default_fallbacks", "model_group_alias", "num_retries", "timeout"),
        *("cache", "cache_params", "ttl", "type", "retry_policy", "max_budget", "budget_duration", "allowed_fails"),
        *("LiteLLM_VerificationToken", "LiteLLM_TeamTable", "LiteLLM_UserTable", "LiteLLM_BudgetTable", "token"),
        *("team_id", "models", "metadata", "user_id", "user_email", "budget_id", "extra_body", "extra_headers", "a"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**12),
    st.floats(),
    st.sampled_from(
        [
            "openai/gpt-4o",
            "azure/x",
            "bedrock/y",
            "vertex_ai/z",
            "gpt-4o",
            "*",
            "a/*",
            "os.environ/KEY",
            "os.environ/-",
            "",
        ]
    ),
    st.text(max_size=8),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=6), inner, max_size=5),
    max_leaves=25,
)
MODELS = st.fixed_dictionaries(
    {},
    optional={
        "model_name": SCALARS,
        "litellm_params": st.dictionaries(NAMES, TREES, max_size=3).map(lambda row: {"model": "openai/gpt-4o", **row})
        | TREES,
        "model_info": TREES,
    },
)
ROWS = st.fixed_dictionaries(
    {"token": st.just("0" * 64) | SCALARS},
    optional=dict.fromkeys(("models", "team_id", "metadata", "max_budget", "budget_id", "expires", "spend"), TREES),
)


@given(
    tree=st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS[1:], TREES) | {"model_list": st.lists(MODELS)})
    | TREES,
    rows=st.fixed_dictionaries(
        {},
        optional={
            "LiteLLM_VerificationToken": st.lists(ROWS, max_size=3) | TREES,
            "LiteLLM_TeamTable": st.lists(st.dictionaries(NAMES, TREES, max_size=4), max_size=2),
            "LiteLLM_UserTable": st.lists(st.dictionaries(NAMES, TREES, max_size=4), max_size=2),
            "LiteLLM_BudgetTable": TREES,
        },
    ),
)
@settings(max_examples=150, deadline=None)
def test_no_value_is_dropped_silently(tree: Any, rows: Any):
    imported = check_state(import_litellm([Source("file", tree), Source("database", rows, is_table=True)]))
    counted = sum(finding.count for finding in imported.findings if finding.source != "state document")
    assert counted == sum(1 for source in (tree, rows) for _ in iter_leaves(source))
    assert list(find_shape_problems(imported.state)) == []


def test_secrets_are_in_the_state_alone():
    text = """
model_list:
  - model_name: a
    litellm_params:
      model: openai/gpt-4o
      api_key: sk-canary-1
      extra_headers: {x-token: canary-2}
      vertex_credentials: canary-3
      unknown: canary-4
litellm_settings: {cache: true, cache_params: {type: redis, password: canary-5}}
environment_variables: {KEY: canary-6}
general_settings: {master_key: sk-canary-7, database_url: "postgresql://u:canary-8@h/d"}
"""
    imported = import_text(text)
    report = json.dumps([str(finding) for finding in imported.findings])
    assert "canary" not in report
    state = json.dumps(imported.state)
    assert "sk-canary-1" in state
    assert "canary-2" in state
    assert all(f"canary-{number}" not in state for number in (5, 6, 7, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("a: sk-canary\na: sk-canary-2", "a key is there twice in line 2"),
        ("a: &x [*x]", "more than 64 levels"),
        (
            (
                "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]"
            ),
            "more than 500000 values",
        ),
        ("a: !!python/object:os.system x", "is not YAML"),
    ],
)
def test_rejects_files_that_are_not_plain_yaml(text: str, message: str):
    with pytest.raises(SettingsError, match=message) as raised:
        parse_yaml("c.yaml", text)
    assert "canary" not in str(raised.value)


def test_settings_of_the_router_become_options_of_the_config():
    config = import_text((FOLDER / "redis_router.yaml").read_text()).state["workspaces"][0]["configs"][0]["config"]
    assert config["retry"] == {"attempts": 2}
    assert config["request_timeout"] == 30_000
    assert (config["cb_config"]["failure_threshold"], config["cb_config"]["cooldown_interval"]) == (1, 30_000)
    assert "cache" not in config
    config = import_text((FOLDER / "cache_local_short.yaml").read_text()).state["workspaces"][0]["configs"][0]["config"]
    assert config["cache"] == {"mode": "simple", "max_age": 60}
    config = import_text((FOLDER / "retry_policy.yaml").read_text()).state["workspaces"][0]["configs"][0]["config"]
    assert config["retry"] == {"attempts": 4, "on_status_codes": [408, 429, 500, 502, 503, 504, 529]}


def test_settings_of_a_row_become_options_of_its_target():
    config = import_text((FOLDER / "request_parameters.yaml").read_text()).state["workspaces"][0]["configs"][0][
        "config"
    ]
    target = config["targets"][0]
    assert target["default_params"]["temperature"] == 0.9
    assert target["override_params"] == {"model": "gpt-4o", "service_tier": "flex"}
    assert (target["drop_params"], target["request_timeout"]) == (["response_format"], 12_500)
    assert (target["retry"], config["targets"][1]["retry"]) == ({"attempts": 1}, {"attempts": 4})


def test_rows_of_whole_providers_cut_the_provider_off_the_model():
    imported = import_text((FOLDER / "provider_wildcards.yaml").read_text())
    targets = imported.state["workspaces"][0]["configs"][0]["config"]["targets"]
    prefixes = {target["name"]: target.get("drop_model_prefix") for target in targets[:-1]}
    assert prefixes == {
        "mini": None,
        "anthropic/claude-haiku-4-5": None,
        "house/gpt-*": "house/",
        "anthropic/*": "anthropic/",
        "groq/*": "groq/",
    }
    missing = "names no model of model_list, so it is left out"
    manual = findings_of(imported, Status.MANUAL)
    assert manual["router_settings.fallbacks[0].mini[1]"] == missing
    assert manual["router_settings.model_group_alias.nothing"] == missing
    others = import_text(
        "model_list:\n- {model_name: 'my-*', litellm_params: {model: 'openai/gpt-*'}}\n"
        "- {model_name: '*', litellm_params: {model: '*'}}"
    )
    manual = findings_of(others, Status.MANUAL)
    assert "send `@openai/<model>` as model" in manual["model_list[0].model_name"]
    assert "such as `openai/*`" in manual["model_list[1].model_name"]
    assert findings_of(others, Status.UNSUPPORTED) == {}


def test_budget_and_prices_are_imported():
    state = import_text((FOLDER / "budgets.yaml").read_text()).state
    assert state["workspaces"][0]["usage_limits"] == [{"type": "cost", "credit_limit": 100, "periodic_reset_days": 30}]
    state = import_text((FOLDER / "prices.yaml").read_text()).state
    (model,) = state["organisation"]["integrations"][0]["models"]
    rates = model["pricing_config"]["pay_as_you_go"]
    assert rates == {"request_token": {"price": 0.00002}, "response_token": {"price": 0.00006}}


def test_reports_what_cannot_be_imported():
    imported = import_text(
        "model_list:\n- {model_name: a, litellm_params: {model: watsonx/granite}}\n- 5\nrouter_settings: {magic: 1}"
    )
    actual = findings_of(imported, Status.UNSUPPORTED)
    assert actual["model_list[0].litellm_params.model"].startswith("the provider 'watsonx' is not supported")
    assert actual["model_list[1]"] == "must be a mapping"
    assert actual["router_settings.magic"] == "is not known to the importer"


def test_included_files_are_sources():
    config = parse_yaml("config.yaml", "include: [models.yaml, other.yaml]")
    models = parse_yaml("folder/models.yaml", "model_list: [{model_name: a, litellm_params: {model: openai/gpt-4o}}]")
    imported = import_litellm([config, models])
    assert render_targets(imported.state) == {"a": "openai/gpt-4o"}
    assert findings_of(imported, Status.MANUAL) == {"include[1]": "give this file as another source of the command"}


def test_fallbacks_of_models_that_do_not_exist_are_reported():
    fallbacks = "[{m: [m2]}, {alias: [m2]}, {gone: [m2]}, {'*': [m2]}]"
    rows = "\n".join(f"  - {{model_name: {name}, litellm_params: {{model: openai/gpt-4o}}}}" for name in ("m", "m2"))
    imported = import_text(
        f"model_list:\n{rows}\nrouter_settings:\n  model_group_alias: {{alias: m}}\n  fallbacks: {fallbacks}\n"
        "litellm_settings: {cache: true, cache_params: {ttl: 1e3}}\n"
    )
    messages = {finding.path: finding.message for finding in imported.findings if finding.status is Status.MANUAL}
    assert messages == {
        "router_settings.fallbacks[2].gone[0]": "is the fallback of no model of model_list, so it is left out"
    }
