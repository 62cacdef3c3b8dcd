"""Dependency direction between layers: in Rust by manifest and import, in Python by import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import _engine
from tests.shape.repository import ROOT, crate_dependencies, files_under, read_text, read_toml, workspace_crates

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK_CRATES = {"tokio", "hyper", "hyper-util", "reqwest", "socket2", "rustls", "tokio-rustls"}
PYTHON_CRATES = {"pyo3", "pyo3-async-runtimes", "pyo3-ffi"}


def test_llm_crate_is_pure():
    assert not crate_dependencies("penstock-llm") & (
        NETWORK_CRATES | PYTHON_CRATES | {"http", "penstock-core", "penstock-py", "penstock-mock"}
    )


def test_core_crate_has_no_python():
    assert not crate_dependencies("penstock-core") & (PYTHON_CRATES | {"penstock-py", "penstock-mock"})


def test_py_crate_depends_on_core_only():
    assert "penstock-core" in crate_dependencies("penstock-py")
    assert not crate_dependencies("penstock-py") & (
        NETWORK_CRATES - {"tokio", "socket2"} | {"penstock-llm", "penstock-mock"}
    )


def test_mock_provider_shares_no_code_with_core():
    assert not crate_dependencies("penstock-mock") & (PYTHON_CRATES | {"penstock-core", "penstock-py"})


@pytest.mark.parametrize("room", ["features", "guardrails", "limits", "credentials"])
def test_core_feature_modules_import_neither_gateway_nor_siblings(room: str):
    others = {"gateway", "routing", "features", "guardrails", "limits", "credentials"} - {room}
    pattern = re.compile(rf"crate::({'|'.join(sorted(others))})\b")
    for path in files_under(f"rust/core/src/{room}", ".rs"):
        assert not pattern.findall(read_text(path)), path


def test_features_do_not_import_each_other():
    room = Path("rust/core/src/features")
    for path in files_under(room.as_posix(), ".rs"):
        if path.stem == "mod":
            continue
        siblings = {other.stem for other in files_under(room.as_posix(), ".rs")} - {path.stem, "mod"}
        named = set(re.findall(r"features::(\w+)|super::(\w+)", read_text(path)))
        assert not siblings & {name for pair in named for name in pair}, path


# The Redis client opens its own connections. `sock_diag.rs` opens netlink sockets to the kernel, which is not a network
# peer.
ALLOWED_SOCKET_FILES = {Path("rust/core/src/shared/redis.rs"), Path("rust/core/src/edge/kernel.rs")}
SOCKET_PATTERN = (
    r"(Tcp|Unix)Stream::|(Tcp|Udp|Unix)(Socket|Datagram)\b|\bSocket::new|ToSocketAddrs|lookup_host|get_\w+_connection"
)


def test_only_upstream_modules_open_sockets():
    found = {
        path
        for crate in ("llm", "core", "py")
        for path in files_under(f"rust/{crate}/src", ".rs")
        if re.search(SOCKET_PATTERN, read_text(path).split("#[cfg(test)]\nmod tests")[0])
    }
    assert {path for path in found if not path.is_relative_to("rust/core/src/upstream")} == ALLOWED_SOCKET_FILES


def test_only_listed_modules_read_the_environment():
    looking = {
        path.stem
        for path in files_under("python/penstock", ".py")
        if "os.environ" in re.sub(r"[\"'].*", "", read_text(path))
    }
    assert looking == {"cli", "administer", "snapshot", "listen", "engine", "serve"}


def test_every_crate_uses_the_workspace_lints():
    for name, package in workspace_crates().items():
        manifest = Path(package["manifest_path"]).relative_to(ROOT).as_posix()
        assert read_toml(manifest).get("lints") == {"workspace": True}, name


def test_crates_without_test_target_contain_no_tests():
    for package in workspace_crates().values():
        untested = [
            target["src_path"] for target in package["targets"] if "lib" in target["kind"][0] and not target["test"]
        ]
        for source in untested:
            room = Path(source).parent.relative_to(ROOT).as_posix()
            assert not [path for path in files_under(room, ".rs") if "#[cfg(test)]" in read_text(path)]


def test_lib_rs_has_at_most_60_lines():
    for path in files_under("rust", ".rs"):
        if path.name == "lib.rs":
            assert len(read_text(path).splitlines()) <= 60, path


def imported_modules(path: Path) -> Iterator[str]:
    """Yields every module that a Python file imports. `from package import module` also yields `package.module`."""
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_engine_py_imports_the_extension():
    importers = {
        path.as_posix() for path in files_under("python", ".py") if "penstock._engine" in set(imported_modules(path))
    }
    assert importers <= {"python/penstock/engine.py"}


def test_edge_loads_no_web_framework():
    """Follows the imports of the edge's entry module through the package; they must never reach Litestar."""
    modules = {
        path.relative_to("python").with_suffix("").as_posix().replace("/", "."): path
        for path in files_under("python", ".py")
    }
    seen: set[str] = set()
    ahead = ["penstock.asgi"] if "penstock.asgi" in modules else []
    while ahead:
        seen.add(name := ahead.pop())
        found = (
            {imported for imported in imported_modules(modules[name]) if imported in modules}
            if name in modules
            else set()
        )
        assert not any(imported.split(".")[0] == "litestar" for imported in imported_modules(modules[name])), name
        ahead += found - seen


def parse_import_chain(line: str, mark: str) -> list[set[str]]:
    """Returns the module names of each step of an import chain."""
    return [set(re.findall(r"\w+", step)) - {"and"} for step in line.split(mark)]


def test_documented_import_chain_matches_the_contract():
    (told,) = re.findall(r"Python imports go one way, ([^;]*);", read_text("docs/architecture.md"))
    contracts = read_toml("pyproject.toml")["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    at = {name: number for number, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    steps = [{at[name] for name in step} for step in parse_import_chain(told, "▸")]
    assert all(len(step) == 1 for step in steps)
    places = [place for step in steps for place in step]
    assert places == sorted(set(places))


def class_members(declared: ast.ClassDef) -> Iterator[str]:
    for node in declared.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def test_python_rust_boundary_matches_stub_and_docs():
    declared = ast.parse(read_text("python/penstock/_engine.pyi")).body
    functions = {node.name for node in declared if isinstance(node, ast.FunctionDef)}
    classes = {
        node.name: set(class_members(node)) - {"__init__"}
        for node in declared
        # A `TypedDict` of the stub only describes the shape of a dict, so the extension does not export it.
        if isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "TypedDict" for base in node.bases)
    }
    assert {name for name in vars(_engine) if not name.startswith("_")} == functions | classes.keys()
    for name, methods in classes.items():
        assert methods == {member for member in vars(getattr(_engine, name)) if not member.startswith("_")}, name
    (told,) = re.findall(
        r"names cross from Python to Rust: (.*?)\. Bytes cross", read_text("docs/architecture.md"), re.DOTALL
    )
    assert set(re.findall(r"`(\w+)`", told)) == functions | classes.keys() | classes["Engine"]


def test_import_linter_contracts_hold():
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
