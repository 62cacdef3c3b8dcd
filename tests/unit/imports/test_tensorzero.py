"""Import of TensorZero's models, functions and templates."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.declarative.plan import find_shape_problems
from penstock.errors import SettingsError
from penstock.imports.findings import Status, iter_leaves
from penstock.imports.output import ImportedState, check_state
from penstock.imports.source import Source, parse_toml
from penstock.imports.tensorzero import import_tensorzero
from penstock.imports.tensorzero_templates import read_templates, to_mustache
from tests.unit.imports_rendering import render_targets

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[gateway]
bind_address = "0.0.0.0:3000"

[models."gpt-4o"]
routing = ["openai", "azure"]

[models."gpt-4o".timeouts]
non_streaming.total_ms = 20000
streaming.ttft_ms = 3000

[models."gpt-4o".providers.openai]
type = "openai"
model_name = "gpt-4o-2024-08-06"
api_key_location = "env::MY_OPENAI_KEY"

[models."gpt-4o".providers.azure]
type = "azure"
deployment_id = "gpt-4o-deployment"
endpoint = "https://acme.openai.azure.com"

[models.local]
routing = ["vllm"]

[models.local.providers.vllm]
type = "vllm"
model_name = "llama"
api_base = "http://vllm:8000/v1/"
api_key_location = "none"

[models.odd]
routing = ["dummy"]

[models.odd.providers.dummy]
type = "dummy"
model_name = "x"

[embedding_models.embed]
routing = ["openai"]

[embedding_models.embed.providers.openai]
type = "openai"
model_name = "text-embedding-3-small"

[tools.weather]
description = "Weather of a place"
parameters = "tools/weather.json"

[functions.chat]
type = "chat"
tools = ["weather"]
tool_choice = "auto"

[functions.chat.variants.a]
type = "chat_completion"
model = "gpt-4o"
weight = 0.9
temperature = 0.2
retries = { num_retries = 9, max_delay_s = 10 }

[functions.chat.variants.b]
type = "chat_completion"
model = "anthropic::claude-haiku-4-5"
weight = 0.1

[functions.extract]
type = "json"
output_schema = "extract/schema.json"

[functions.extract.experimentation]
type = "static_weights"
candidate_variants = { "one" = 1.0 }

[functions.extract.variants.one]
type = "chat_completion"
model = "gpt-4o"
json_mode = "strict"
system_template = "extract/system.minijinja"
max_tokens = 100

[functions.extract.variants.two]
type = "experimental_best_of_n_sampling"
candidates = ["one"]

[metrics.good]
type = "boolean"
"""
FILES = {
    "tools/weather.json": '{"type": "object", "properties": {"place": {"type": "string"}}}',
    "extract/schema.json": '{"type": "object"}',
    "extract/system.minijinja": "You help {{ name }}.{% if tone %} Be {{ tone }}.{% endif %}",
}


def import_text(text: str) -> ImportedState:
    return check_state(import_tensorzero([parse_toml("tensorzero.toml", text)], FILES))


def paths_of(imported: ImportedState, status: Status) -> set[str]:
    return {finding.path for finding in imported.findings if finding.status is status}


def test_imports_models_and_functions():
    imported = import_text(CONFIG)
    model = "(openai/gpt-4o-2024-08-06 > azure-openai/gpt-4o-deployment)"
    assert render_targets(imported.state) == {
        "tensorzero::model_name::gpt-4o gpt-4o": model,
        "tensorzero::model_name::local local": "openai/llama",
        "tensorzero::embedding_model_name::embed embed": "openai/text-embedding-3-small",
        "tensorzero::function_name::chat": f"({model}*0.9 | anthropic/claude-haiku-4-5*0.1)",
    }
    config = imported.state["workspaces"][0]["configs"][0]["config"]
    assert config["targets"][0]["request_timeout"] == 20_000
    first = config["targets"][3]["targets"][0]
    assert (first["default_params"]["temperature"], first["retry"]) == (0.2, {"attempts": 5})
    assert first["default_params"]["tools"][0]["function"]["name"] == "weather"
    assert first["default_params"]["tool_choice"] == "auto"
    integrations = {row["slug"]: row for row in imported.state["organisation"]["integrations"]}
    assert integrations["openai-my-openai-key"]["key"] == "${MY_OPENAI_KEY}"
    local = next(row for row in integrations.values() if "custom_host" in row.get("configurations", {}))
    assert "key" not in local
    assert local["configurations"]["custom_host"] == "http://vllm:8000/v1"


def test_variant_with_templates_becomes_a_prompt():
    (prompt,) = import_text(CONFIG).state["workspaces"][0]["prompts"]
    assert prompt["slug"] == "extract-one"
    assert json.loads(prompt["string"]) == [
        {"role": "system", "content": "You help {{name}}.{{#tone}} Be {{tone}}.{{/tone}}"},
        {"role": "user", "content": "{{input}}"},
    ]
    assert (prompt["model"], prompt["parameters"]["max_tokens"]) == ("gpt-4o-2024-08-06", 100)
    assert prompt["parameters"]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_reports_what_has_no_equivalent():
    imported = import_text(CONFIG)
    assert paths_of(imported, Status.UNSUPPORTED) == {
        "models.odd.providers.dummy.type",
        "models.odd.providers.dummy.model_name",
        "functions.extract.variants.two.type",
        "functions.extract.variants.two.candidates[0]",
    }
    manual = paths_of(imported, Status.MANUAL)
    assert {"gateway.bind_address", "metrics.good.type", "models.gpt-4o.timeouts.streaming.ttft_ms"} <= manual
    lines = {finding.path: finding.line for finding in imported.findings}
    text = CONFIG.splitlines()
    assert text[(lines["models.local.providers.vllm.api_base"] or 0) - 1].startswith("api_base")
    assert text[(lines["functions.chat.variants.a.retries.num_retries"] or 0) - 1].startswith("retries")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{{ a }} {{- b.c -}}{# note #}", "{{a}} {{b.c}}"),
        ("{% if a %}x{% else %}y{% endif %}", "{{#a}}x{{/a}}{{^a}}y{{/a}}"),
        ("{% for item in items %}- {{ item }}{% endfor %}", "{{#items}}- {{.}}{{/items}}"),
        ("{% for u in users %}{{ u.name }}{% endfor %}", "{{#users}}{{name}}{{/users}}"),
        ("{{ a | upper }}", None),
        ("{% if a == 1 %}x{% endif %}", None),
        ("{% include 'x' %}", None),
        ("{% if a %}x", None),
        ("{% for a in b %}{% endif %}", None),
    ],
)
def test_converts_simple_templates(template: str, expected: str | None):
    assert to_mustache(template) == expected


def test_reads_only_files_of_the_configuration(tmp_path: Path):
    folder = tmp_path / "config"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "inside.txt").write_text("text")
    tree = {"a": {"system_template": "inside.txt", "user_template": "../outside.txt", "path": "/etc/hostname"}}
    assert read_templates([Source("x", tree)], [folder / "tensorzero.toml"]) == {"inside.txt": "text"}


def test_rejects_what_is_not_toml():
    with pytest.raises(SettingsError, match="is not TOML: error at line 1, column") as raised:
        parse_toml("t.toml", "key = sk-canary")
    assert "canary" not in str(raised.value)


NAMES = st.sampled_from(
    [
        "models",
        "routing",
        "providers",
        "functions",
        "variants",
        "tools",
        "embedding_models",
        "a",
        "type",
        "model",
        "model_name",
        "weight",
        "experimentation",
        "candidate_variants",
        "system_template",
        "timeouts",
        "retries",
        "num_retries",
        "parameters",
        "output_schema",
        "json_mode",
        "api_base",
        "api_key_location",
        "tool_choice",
    ]
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-3, 10**7),
    st.sampled_from(
        ["openai", "azure", "a", "chat_completion", "openai::x", "env::K", "extract/schema.json", "strict"]
    ),
    st.text(max_size=5),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
MODEL = {"routing": ["a"], "providers": {"a": {"type": "openai", "model_name": "m"}}}


@given(TREES | st.dictionaries(NAMES, st.dictionaries(NAMES, TREES, max_size=3), max_size=3), TREES)
@settings(max_examples=150, deadline=None)
def test_no_value_is_dropped_silently(tree: Any, variant: Any):
    function = {"functions": {"f": {"variants": {"v": {"model": "a", "x": variant}}}}, "models": {"a": MODEL}}
    for item in (tree, function):
        imported = check_state(import_tensorzero([Source("file.toml", item)], FILES))
        assert len(imported.findings) == sum(1 for _ in iter_leaves(item))
        assert list(find_shape_problems(imported.state)) == []


def test_every_value_of_the_example_has_one_finding():
    actual = import_text(CONFIG).findings
    assert len(actual) == sum(1 for _ in iter_leaves(tomllib.loads(CONFIG)))


LEFT_OUT = """
[models.m]
routing = ["a"]
timeouts.non_streaming.total_ms = 5000
[models.m.providers.a]
type = "nobodys"
model_name = "x"
[functions.f]
type = "chat"
[functions.f.variants.v]
type = "chat_completion"
model = "openai::gpt-4o"
weight = 0.5
temperature = 0.1
system_template = "missing.minijinja"
"""


def test_left_out_variant_has_no_exact_value():
    imported = import_text(LEFT_OUT)
    assert paths_of(imported, Status.EXACT) == set()
    paths = {finding.path for finding in imported.findings}
    assert {"functions.f.type", "functions.f.variants.v.weight", "models.m.timeouts.non_streaming.total_ms"} <= paths


def test_prompt_has_no_weight():
    text = '[functions.f.variants.v]\ntype = "chat_completion"\nmodel = "openai::gpt-4o"\nweight = 0.5\n'
    imported = import_text(text + 'system_template = "extract/system.minijinja"\n')
    assert len(imported.state["workspaces"][0]["prompts"]) == 1
    assert paths_of(imported, Status.MANUAL) == {"functions.f.variants.v.weight"}
