"""The example configurations that LiteLLM publishes in its own package: each is imported, with a finding for each value.

The files are read from the locked package that `make test-installs` installs for other tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.declarative.plan import find_shape_problems
from penstock.imports.findings import Status, iter_leaves, render_path
from penstock.imports.litellm import import_litellm
from penstock.imports.output import find_config_errors
from penstock.imports.source import parse_yaml
from tests.shape.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / ".cache/sdk/others/litellm"
FILES = sorted(path for path in PACKAGE.rglob("*.y*ml") if "model_list:" in path.read_text(errors="replace"))
MIN_FILES = 15
# Values without a counterpart, by file and section. Any other unsupported value is a fault of the importer.
UNSUPPORTED = {
    # Routers that choose a model by the text of the request.
    ("adaptive_router_example.yaml", "model_list[0]"),
    # A row without `litellm_params`, and a provider that LiteLLM does not have either.
    ("langfuse_config.yaml", "model_list[0]"),
    ("load_balancer.yaml", "model_list[3]"),
    # Deployments are not chosen by the region of the client.
    ("oai_misc_config.yaml", "model_list[0]"),
}


@pytest.mark.skipif(not FILES, reason="litellm is not installed; `make test-installs` does")
def test_package_has_many_configurations():
    assert len(FILES) >= MIN_FILES


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_published_configuration_is_imported(file: Path):
    source = parse_yaml(file.name, file.read_text())
    imported = import_litellm([source])
    assert [finding.path for finding in imported.findings] == [render_path(leaf) for leaf in iter_leaves(source.tree)]
    assert list(find_shape_problems(imported.state)) == []
    for workspace in imported.state["workspaces"]:
        for row in workspace["configs"]:
            assert find_config_errors(row["config"]) == []
    unsupported = {finding.path for finding in imported.findings if finding.status == Status.UNSUPPORTED}
    assert {(file.name, path.partition(".")[0]) for path in unsupported} <= UNSUPPORTED, unsupported
