"""Layers of the Rust crates `core`, `net` and `llm`. A module may import only modules of its own and lower layers."""

from __future__ import annotations

import re

import pytest

from tests.shape.repository import read_text
from tests.shape.rust_modules import Crate, Graph, Module, find_cycles, load_crate

# From bottom to top. A prefix stands for its modules; the longest prefix that fits a module decides.
CORE_LAYERS = [
    ["ingress::lenient_path"],
    ["ingress::message", "ingress::client_sdk", "ingress::route", "ingress::trace_context"],
    ["error"],
    ["process"],
    ["ingress"],
    ["jose"],
    ["parse"],
    ["prompts"],
    ["guardrails"],
    ["features"],
    [
        "accounting::record::json_writer",
        "accounting::record::masking",
        "accounting::record::metadata",
        "accounting::prices",
        "accounting::saved_models",
    ],
    ["strategies"],
    ["config"],
    ["state::shared"],
    ["limits"],
    ["accounting"],
    ["auth::gateway_key"],
    ["auth::jwt"],
    ["state::snapshot"],
    ["auth"],
    ["resolve"],
    [
        "credentials::issued",
        "credentials::payload_hash",
        "credentials::credential_cache",
        "credentials::aws_instance",
        "credentials::aws",
        "credentials::sigv4",
        "credentials::token_endpoint",
    ],
    ["gateway_state"],
    ["credentials"],
    ["response"],
    ["request"],
    ["endpoints"],
    ["routing"],
    [
        "endpoints::batches::line_check",
        "endpoints::batches::provider_or_store",
        "endpoints::client_endpoint",
        "endpoints::guardrail_trials",
        "endpoints::prompts",
    ],
    ["gateway"],
]
NET_LAYERS = [
    ["error", "headers", "uri", "memory_budget", "coarse_timer"],
    ["settings"],
    ["body"],
    ["deadline"],
    ["connect::address"],
    ["connect"],
    ["client"],
]

LLM_LAYERS = [
    ["json", "xml", "timestamp", "stream::sse", "stream::aws_event_stream"],
    ["errors", "error_details", "fields"],
    ["avro"],
    ["api_format"],
    ["operation", "http_form", "error_response", "model_list"],
    ["usage"],
    ["reports"],
    [
        "chat::field_scope",
        "chat::finish_reason",
        "chat::call_ids",
        "chat::claude_version",
        "chat::client_tools",
        "chat::file_types",
        "chat::generated_text",
        "chat::tool_call_signatures",
        "chat::tool_names",
        "chat::tool_schema",
        "chat::unsigned_thinking",
    ],
    ["chat::foreign_history"],
    ["citations"],
    ["chat::event", "chat::request", "chat::response_context", "chat::response_writer", "chat::thinking_param"],
    [
        "catalog::options",
        "catalog::path_info",
        "catalog::path_segment",
        "catalog::operation_groups",
        "catalog::param_map",
        "catalog::prefill",
        "catalog::vertex_publishers",
    ],
    ["files"],
    ["catalog::row"],
    ["translation_input"],
    ["embeddings::request", "images::request", "rerank::request"],
    ["jobs::job_list", "jobs::fine_tuning", "jobs::batch"],
    ["provider_format"],
    ["chat::providers", "embeddings", "images", "rerank", "jobs"],
    ["chat"],
    ["catalog"],
    ["stream"],
    ["texts"],
    ["tokens"],
    ["translation"],
]
LAYERS = {"core": CORE_LAYERS, "llm": LLM_LAYERS, "net": NET_LAYERS}
MAX_CYCLE_MODULES = 5
MAX_PIPELINE_LINES = 250
# Words for requests that an endpoint handles. Neither code nor comments of the pipeline may need them.
SPECIAL_CASES = {
    "batch", "batches", "blob", "blobs", "catalogue", "comparison", "comparisons", "explain", "explains", "file",
    "files", "google", "guardrail", "guardrails", "image", "images", "management", "prompt", "prompts", "realtime",
    "trial", "trials",
}  # fmt: skip


def layer_of(module: Module, layers: list[list[str]]) -> int:
    """Returns the number of a module's layer. Fails for a module that no layer lists."""
    for length in range(len(module), 0, -1):
        prefix = "::".join(module[:length])
        for number, layer in enumerate(layers):
            if prefix in layer:
                return number
    raise AssertionError(f"{'::'.join(module)} is in no layer")


def upward_imports(graph: Graph, layers: list[list[str]]) -> list[str]:
    """Returns the imports that point from a lower to a higher layer. Folder modules that only list others have none."""
    return [
        f"{'::'.join(module)} -> {'::'.join(target)}"
        for module, targets in sorted(graph.items())
        for target in sorted(targets)
        if target in graph and layer_of(target, layers) > layer_of(module, layers)
    ]


def without_folders(crate: Crate) -> Graph:
    """Returns the graph without folder modules that contain declarations only."""
    graph = crate.graph()
    listing = {module for module in graph if not has_items(crate, module)}
    return {module: targets - listing for module, targets in graph.items() if module not in listing}


def has_items(crate: Crate, module: Module) -> bool:
    source = crate.sources[module]
    return any(
        line.startswith(("fn ", "pub ", "impl", "const", "static", "struct", "enum", "async ", "use "))
        and " mod " not in line
        for line in source.splitlines()
    )


@pytest.mark.parametrize("crate", LAYERS)
def test_imports_point_down(crate: str):
    assert not upward_imports(without_folders(load_crate(crate)), LAYERS[crate])


def test_documented_layers_are_those_of_the_list():
    page = read_text("docs/architecture/crates-and-layers.md")
    section = page.partition("## Layers of `rust/core`")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    assert [re.findall(r"`([^`]+)`", modules) for _, modules, *_ in rows] == CORE_LAYERS[::-1]
    assert all(stage.strip() for _, _, stage, _ in rows)


@pytest.mark.parametrize("crate", LAYERS)
def test_every_layer_has_modules(crate: str):
    modules = ["::".join(module) for module in load_crate(crate).sources]
    stale = [
        name
        for layer in LAYERS[crate]
        for name in layer
        if not any(f"{module}::".startswith(f"{name}::") for module in modules)
    ]
    assert not stale


@pytest.mark.parametrize("crate", LAYERS)
def test_cycles_are_small_and_stay_in_one_layer(crate: str):
    cycles = find_cycles(without_folders(load_crate(crate)))
    assert not [cycle for cycle in cycles if len(cycle) > MAX_CYCLE_MODULES]
    assert not [cycle for cycle in cycles if len({layer_of(module, LAYERS[crate]) for module in cycle}) > 1]


def test_pipeline_is_short_and_names_no_special_case():
    pipeline = load_crate("core").sources["gateway",]
    assert len(pipeline.splitlines()) <= MAX_PIPELINE_LINES
    assert not [word for word in re.findall(r"[a-z]+", pipeline.lower()) if word in SPECIAL_CASES]


def test_nothing_imports_the_pipeline():
    graph = load_crate("core").graph()
    assert not [
        module
        for module, targets in graph.items()
        if module[0] != "gateway" and any(target[0] == "gateway" for target in targets)
    ]


@pytest.mark.parametrize(("source", "expected"), [("use crate::{a::{b, self}, c};", {("a", "b"), ("a",), ("c",)})])
def test_grouped_imports_are_seen(source: str, expected: set[Module]):
    crate = Crate.__new__(Crate)
    crate.sources = {("x",): source, ("a",): "", ("a", "b"): "", ("c",): ""}
    actual = {crate.resolve(path, ("x",)) for path in crate.named_paths(("x",))}
    assert actual == expected
