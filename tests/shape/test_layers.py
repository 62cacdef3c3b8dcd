"""Dependency direction between layers: in Rust by manifest and import, in Python by import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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


def test_net_crate_knows_no_other_crate():
    others = {"penstock-llm", "penstock-core", "penstock-py", "penstock-mock"}
    assert not crate_dependencies("penstock-net") & (PYTHON_CRATES | others)


def test_core_crate_has_no_python():
    assert crate_dependencies("penstock-core") >= {"penstock-llm", "penstock-net"}
    assert not crate_dependencies("penstock-core") & (PYTHON_CRATES | {"penstock-py", "penstock-mock"})


def test_py_crate_depends_on_core_and_net_only():
    assert crate_dependencies("penstock-py") >= {"penstock-core", "penstock-net"}
    assert not crate_dependencies("penstock-py") & (
        NETWORK_CRATES - {"tokio", "socket2"} | {"penstock-llm", "penstock-mock"}
    )


def test_mock_provider_shares_no_code_with_core():
    assert not crate_dependencies("penstock-mock") & (PYTHON_CRATES | {"penstock-net", "penstock-core", "penstock-py"})


def test_features_do_not_import_each_other():
    folder = Path("rust/core/src/features")
    for path in files_under(folder.as_posix(), ".rs"):
        if path.stem == "mod":
            continue
        siblings = {other.stem for other in files_under(folder.as_posix(), ".rs")} - {path.stem, "mod"}
        imports = set(re.findall(r"features::(\w+)|super::(\w+)", read_text(path)))
        assert not siblings & {name for pair in imports for name in pair}, path


def test_kit_holds_only_what_any_resource_could_use():
    """A module that knows one kind of object stands in the package of that kind."""
    modules = {path.stem for path in files_under("python/penstock/kit", ".py")} - {"__init__"}
    assert modules == {
        "client_format",
        "client_ip",
        "collected_problems",
        "compat",
        "costly_work",
        "crud_routes",
        "cursor_pages",
        "engine_validation",
        "json_depth",
        "json_response",
        "numbered_pages",
        "openapi",
        "preconditions",
        "references",
        "refusals",
        "request_id",
        "resource",
        "route_parameters",
        "shared_fields",
        "tenant_session",
        "text_validation",
        "validation_errors",
        "versions",
    }


# The Redis client opens its own connections. `sock_diag.rs` opens netlink sockets to the kernel, which is not a network
# peer.
ALLOWED_SOCKET_FILES = {Path("rust/core/src/state/shared/redis.rs"), Path("rust/core/src/process/edge/sock_diag.rs")}
SOCKET_PATTERN = (
    r"(Tcp|Unix)Stream::|(Tcp|Udp|Unix)(Socket|Datagram)\b|\bSocket::new|ToSocketAddrs|lookup_host|get_\w+_connection"
)


def test_only_the_net_crate_opens_sockets():
    matched = {
        path
        for crate in ("llm", "net", "core", "py")
        for path in files_under(f"rust/{crate}/src", ".rs")
        if re.search(SOCKET_PATTERN, read_text(path).split("#[cfg(test)]\nmod tests")[0])
    }
    in_net = {path for path in matched if path.is_relative_to("rust/net/src")}
    assert in_net
    assert matched - in_net == ALLOWED_SOCKET_FILES


def test_only_listed_modules_read_the_environment():
    looking = {
        path.relative_to("python/penstock").as_posix()
        for path in files_under("python/penstock", ".py")
        if "os.environ" in re.sub(r"[\"'].*", "", read_text(path))
    }
    commands = {"cli.py", "commands/connection.py", "commands/imports.py", "commands/state.py"}
    assert looking == {*commands, "snapshot/build.py", "listen.py", "engine.py", "plugins/program.py", "serve.py"}


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
            folder = Path(source).parent.relative_to(ROOT).as_posix()
            assert not [path for path in files_under(folder, ".rs") if "#[cfg(test)]" in read_text(path)]


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
    received: set[str] = set()
    unvisited = ["penstock.asgi"] if "penstock.asgi" in modules else []
    while unvisited:
        received.add(name := unvisited.pop())
        actual = (
            {imported for imported in imported_modules(modules[name]) if imported in modules}
            if name in modules
            else set()
        )
        assert not any(imported.split(".")[0] == "litestar" for imported in imported_modules(modules[name])), name
        unvisited += actual - received


def test_documented_layers_match_the_contract():
    page = read_text("docs/architecture/crates-and-layers.md")
    section = page.split("## Python layers\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\d+\. (.*?): ", section, re.MULTILINE)
    documented = [set(re.findall(r"`(\w+)`", names)) for names in listed]
    contracts = read_toml("pyproject.toml")["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["penstock"])
    # A planned module is in brackets in the contract and not in the documentation.
    assert documented == [set(re.findall(r"\w+", re.sub(r"\(\w+\)", "", layer))) for layer in layers]


def class_members(declared: ast.ClassDef) -> Iterator[str]:
    for node in declared.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def test_python_rust_boundary_matches_stub_and_docs():
    declared = ast.parse(read_text("python/penstock/_engine.pyi")).body
    names = {node.name for node in declared if isinstance(node, ast.FunctionDef)}
    names |= {ast.unparse(node.target) for node in declared if isinstance(node, ast.AnnAssign)}
    classes = {
        node.name: {member for member in class_members(node) if not member.startswith("__")}
        for node in declared
        # A `TypedDict` of the stub only describes the shape of a dict, so the extension does not export it.
        if isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "TypedDict" for base in node.bases)
    }
    assert {name for name in vars(_engine) if not name.startswith("_")} == names | classes.keys()
    for name, methods in classes.items():
        assert methods == {member for member in vars(getattr(_engine, name)) if not member.startswith("_")}, name
    # The first column of the table has every exported name, and every member of a class as `Class.member`.
    section = read_text("docs/architecture/python-rust-border.md").split("## Exported names\n", 1)[1]
    cells = re.findall(r"^\|([^|]*`[^|]*)\|", section.split("\n## ", 1)[0], re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    members = {f"{name}.{member}" for name, result in classes.items() for member in result}
    assert sorted(documented) == sorted(names | classes.keys() | members)


def test_import_linter_contracts_hold():
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
