"""Written layers of the Rust crates `core` and `llm`. A module may import only modules of its own and lower layers."""

from __future__ import annotations

import pytest

from tests.shape.rust_modules import Crate, Graph, Module, find_cycles, load_crate

# From bottom to top. A prefix stands for its modules; the longest prefix that fits a module decides.
CORE_LAYERS = [
    ["ingress::headers", "ingress::route", "ingress::trace_context"],
    ["error"],
    ["process"],
    ["ingress"],
    ["upstream"],
    ["parse"],
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
    ["gateway"],
]
MAX_CYCLE_MODULES = 5

# Imports from a lower to a higher layer of llm, and the modules of its largest cycle. Both may only fall.
MAX_LLM_CYCLE_MODULES = 91


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


def test_core_imports_point_down():
    assert not upward_imports(without_folders(load_crate("core")), CORE_LAYERS)


def test_every_layer_of_core_has_modules():
    modules = ["::".join(module) for module in load_crate("core").sources]
    stale = [
        name
        for layer in CORE_LAYERS
        for name in layer
        if not any(f"{module}::".startswith(f"{name}::") for module in modules)
    ]
    assert not stale


def test_core_cycles_are_small_and_stay_in_one_folder():
    cycles = find_cycles(without_folders(load_crate("core")))
    assert not [cycle for cycle in cycles if len(cycle) > MAX_CYCLE_MODULES]
    assert not [cycle for cycle in cycles if len({layer_of(module, CORE_LAYERS) for module in cycle}) > 1]


def test_nothing_imports_the_pipeline():
    graph = load_crate("core").graph()
    assert not [
        module
        for module, targets in graph.items()
        if module[0] != "gateway" and any(target[0] == "gateway" for target in targets)
    ]


def test_llm_cycles_only_become_smaller():
    cycles = find_cycles(without_folders(load_crate("llm")))
    assert max(map(len, cycles), default=0) <= MAX_LLM_CYCLE_MODULES


@pytest.mark.parametrize(("source", "expected"), [("use crate::{a::{b, self}, c};", {("a", "b"), ("a",), ("c",)})])
def test_grouped_imports_are_seen(source: str, expected: set[Module]):
    crate = Crate.__new__(Crate)
    crate.sources = {("x",): source, ("a",): "", ("a", "b"): "", ("c",): ""}
    found = {crate.resolve(path, ("x",)) for path in crate.named_paths(("x",))}
    assert found == expected
