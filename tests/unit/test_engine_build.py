"""Check that the engine was built from the Rust sources of the checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import engine, engine_build
from penstock.cli import main
from penstock.errors import StartupError

RUST_FOLDER = Path(engine_build.RUST_FOLDER)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the Rust files of this checkout."""
    folder = tmp_path / "rust"
    for crate in engine_build.CRATES:
        shutil.copytree(RUST_FOLDER / crate / "src", folder / crate / "src")
    shutil.copy(RUST_FOLDER / "py" / "build.rs", folder / "py" / "build.rs")
    return folder


def test_rust_and_python_compute_the_same_digest():
    assert engine_build.digest_sources(engine_build.RUST_FOLDER) == engine.SOURCES_SHA256


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename"])
def test_serve_refuses_an_engine_of_other_sources(checkout: Path, monkeypatch: pytest.MonkeyPatch, change: str):
    engine_build.check_engine_build(str(checkout))
    file = checkout / "core" / "src" / "lib.rs"
    if change == "edit":
        file.write_text(file.read_text() + "\n")
    elif change == "add":
        file.with_name("added.rs").write_text("")
    elif change == "remove":
        file.unlink()
    else:
        file.rename(file.with_name("renamed.rs"))
    with pytest.raises(
        StartupError, match=r"was built from other sources than those in '.*rust'; hint: run `make build`"
    ):
        engine_build.check_engine_build(str(checkout))
    # The command reports it before it creates anything.
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(engine_build.check_engine_build, "__defaults__", (str(checkout),))
    done = CliRunner().invoke(main, ["serve", "--port", "0"])
    assert (done.exit_code, "make build" in done.output) == (1, True)
    assert not (checkout / "penstock-data").exists()


def test_files_that_are_not_rust_sources_need_no_build(checkout: Path):
    (checkout / "core" / "src" / "lib.rs.swp").write_text("")
    (checkout / "core" / "tests").mkdir()
    (checkout / "core" / "tests" / "it.rs").write_text("")
    engine_build.check_engine_build(str(checkout))


def test_an_installed_package_has_no_sources_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine_build.check_engine_build(str(tmp_path / "rust"))
    monkeypatch.setattr(engine, "VERSION", "0.0.9")
    with pytest.raises(StartupError, match=r"the engine has version 0\.0\.9, but Penstock is"):
        engine_build.check_engine_build(str(tmp_path / "rust"))
