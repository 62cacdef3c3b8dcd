"""Paths of resource modules. The path of a route follows from its file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from penstock import resource_paths

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_module_name_becomes_a_path():
    assert resource_paths.path_prefixes("virtual_keys") == ("/v1/virtual-keys",)
    assert resource_paths.path_prefixes("auth.sessions") == ("/v1/auth/sessions",)
    assert resource_paths.path_prefixes("policies.rate_limits")[:2] == (
        "/v1/policies/rate-limits",
        "/v2/policies/rate-limits",
    )
    assert resource_paths.path_prefixes("metrics") == ("/metrics", "/dataservice/metrics")
    assert resource_paths.path_prefixes("internal") == ()


def test_finds_files_and_folders_except_private_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in (
        "__init__.py",
        "_shared.py",
        "status.py",
        "page.html",
        "auth/__init__.py",
        "auth/sign_in.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(resource_paths, "RESOURCES_FOLDER", str(tmp_path))
    assert resource_paths.module_names() == ["status", "auth.sign_in"]
    assert resource_paths.forwarded_prefixes() == ["/v1/status", "/v1/auth/sign-in"]


def test_edge_processes_import_neither_litestar_nor_resources():
    code = (
        "import sys, penstock.cli, penstock.serve, penstock.asgi; from penstock import resource_paths; resource_paths.forwarded_prefixes();"
        "print([name for name in sys.modules if name.startswith(('litestar', 'penstock.resources.', 'penstock.app'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
