"""Which way dependencies point, in Rust by manifest and import, in Python by import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import _engine
from tests.shape.repository import ROOT, crates, needs, text, toml, under

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK = {"tokio", "hyper", "hyper-util", "reqwest", "socket2", "rustls", "tokio-rustls"}
PYTHON = {"pyo3", "pyo3-async-runtimes", "pyo3-ffi"}


def test_llm_is_pure():
    assert not needs("penstock-llm") & (NETWORK | PYTHON | {"http", "penstock-core", "penstock-py", "penstock-mock"})


def test_core_knows_no_python():
    assert not needs("penstock-core") & (PYTHON | {"penstock-py", "penstock-mock"})


def test_py_knows_the_engine_and_nothing_behind_it():
    assert "penstock-core" in needs("penstock-py")
    assert not needs("penstock-py") & (NETWORK - {"tokio", "socket2"} | {"penstock-llm", "penstock-mock"})


def test_the_pretend_provider_shares_nothing_with_what_it_tests():
    assert not needs("penstock-mock") & (PYTHON | {"penstock-core", "penstock-py"})


@pytest.mark.parametrize("room", ["features", "guardrails", "limits", "credentials"])
def test_rooms_of_core_know_neither_the_walk_nor_each_other(room: str):
    others = {"gateway", "routing", "features", "guardrails", "limits", "credentials"} - {room}
    pattern = re.compile(rf"crate::({'|'.join(sorted(others))})\b")
    for path in under(f"rust/core/src/{room}", ".rs"):
        assert not pattern.findall(text(path)), path


def test_features_do_not_know_each_other():
    room = Path("rust/core/src/features")
    for path in under(room.as_posix(), ".rs"):
        if path.stem == "mod":
            continue
        siblings = {other.stem for other in under(room.as_posix(), ".rs")} - {path.stem, "mod"}
        named = set(re.findall(r"features::(\w+)|super::(\w+)", text(path)))
        assert not siblings & {name for pair in named for name in pair}, path


# The client of Redis dials for itself, and the kernel is no other.
DIALLING = {Path("rust/core/src/shared/redis.rs"), Path("rust/core/src/edge/kernel.rs")}
SOCKETS = (
    r"(Tcp|Unix)Stream::|(Tcp|Udp|Unix)(Socket|Datagram)\b|\bSocket::new|ToSocketAddrs|lookup_host|get_\w+_connection"
)


def test_only_the_way_out_opens_sockets():
    found = {
        path
        for crate in ("llm", "core", "py")
        for path in under(f"rust/{crate}/src", ".rs")
        if re.search(SOCKETS, text(path).split("#[cfg(test)]\nmod tests")[0])
    }
    assert {path for path in found if not path.is_relative_to("rust/core/src/upstream")} == DIALLING


def test_the_environment_is_looked_at_where_it_is_said():
    looking = {
        path.stem for path in under("python/penstock", ".py") if "os.environ" in re.sub(r"[\"'].*", "", text(path))
    }
    assert looking == {"cli", "administer", "snapshot", "listen", "engine", "serve"}


def test_every_crate_obeys_the_workspaces_lints():
    for name, package in crates().items():
        manifest = Path(package["manifest_path"]).relative_to(ROOT).as_posix()
        assert toml(manifest).get("lints") == {"workspace": True}, name


def test_no_test_stands_where_none_is_run():
    for package in crates().values():
        untested = [
            target["src_path"] for target in package["targets"] if "lib" in target["kind"][0] and not target["test"]
        ]
        for source in untested:
            room = Path(source).parent.relative_to(ROOT).as_posix()
            assert not [path for path in under(room, ".rs") if "#[cfg(test)]" in text(path)]


def test_lib_rs_is_a_table_of_contents():
    for path in under("rust", ".rs"):
        if path.name == "lib.rs":
            assert len(text(path).splitlines()) <= 60, path


def imports(path: Path) -> Iterator[str]:
    """Every module that a Python file imports, `from package import module` as `package.module` too."""
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_extension_has_one_importer():
    importers = {path.as_posix() for path in under("python", ".py") if "penstock._engine" in set(imports(path))}
    assert importers <= {"python/penstock/engine.py"}


def test_the_edge_loads_no_web_framework():
    """The door's own imports, followed through the package, never reach the control process's rooms."""
    modules = {
        path.relative_to("python").with_suffix("").as_posix().replace("/", "."): path for path in under("python", ".py")
    }
    seen: set[str] = set()
    ahead = ["penstock.asgi"] if "penstock.asgi" in modules else []
    while ahead:
        seen.add(name := ahead.pop())
        found = {imported for imported in imports(modules[name]) if imported in modules} if name in modules else set()
        assert not any(imported.split(".")[0] == "litestar" for imported in imports(modules[name])), name
        ahead += found - seen


def chain(line: str, mark: str) -> list[set[str]]:
    """The steps of a chain, and the modules of each."""
    return [set(re.findall(r"\w+", step)) - {"and"} for step in line.split(mark)]


def test_the_chain_of_imports_that_is_told_is_that_of_the_contract():
    (told,) = re.findall(r"Python imports go one way, ([^;]*);", text("docs/architecture.md"))
    contracts = toml("pyproject.toml")["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    at = {name: number for number, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    steps = [{at[name] for name in step} for step in chain(told, "▸")]
    assert all(len(step) == 1 for step in steps)
    places = [place for step in steps for place in step]
    assert places == sorted(set(places))


def members(declared: ast.ClassDef) -> Iterator[str]:
    for node in declared.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def test_the_border_is_crossed_by_the_names_that_are_told_and_declared():
    declared = ast.parse(text("python/penstock/_engine.pyi")).body
    functions = {node.name for node in declared if isinstance(node, ast.FunctionDef)}
    classes = {
        node.name: set(members(node)) - {"__init__"}
        for node in declared
        # What describes the shape of a dict has no name there.
        if isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "TypedDict" for base in node.bases)
    }
    assert {name for name in vars(_engine) if not name.startswith("_")} == functions | classes.keys()
    for name, methods in classes.items():
        assert methods == {member for member in vars(getattr(_engine, name)) if not member.startswith("_")}, name
    (told,) = re.findall(
        r"names cross from Python to Rust: (.*?)\. Bytes cross", text("docs/architecture.md"), re.DOTALL
    )
    assert set(re.findall(r"`(\w+)`", told)) == functions | classes.keys() | classes["Engine"]


def test_the_contracts_of_import_linter_hold():
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
