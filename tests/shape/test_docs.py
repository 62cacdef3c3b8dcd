"""Documents that say what is so: commands that exist, links that lead somewhere, lists that are complete."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import examples
from penstock.settings import iter_setting_specs, load_settings
from penstock.snapshot.build import build_valid_snapshot
from tests.shape.repository import ROOT, files, text, under, verbs

DOCUMENTS = [path.as_posix() for path in under(".", ".md")]


def fenced(document: str) -> list[str]:
    """The lines within code fences."""
    return [line for block in re.findall(r"```\w*\n(.*?)```", text(document), re.DOTALL) for line in block.splitlines()]


def test_the_readme_is_short_and_opens_with_the_two_commands():
    assert len(text("README.md").splitlines()) <= 120
    commands = [line for line in fenced("README.md") if line.startswith("make ")]
    assert [line.split("#")[0].strip() for line in commands[:2]] == ["make run", "make test"]
    assert text("README.md").index("make run") < 1200


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_verb_that_is_named_exists(document: str):
    named = set(re.findall(r"`make ([a-z-]+)", text(document)))
    named |= {line.split()[1] for line in fenced(document) if line.startswith("make ")}
    assert not named - verbs()


def test_every_verb_is_explained():
    missing = {verb for verb in verbs() if f"`make {verb}`" not in text("CONTRIBUTING.md")}
    assert not missing - {"again"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_and_every_path_that_is_named_leads_somewhere(document: str):
    here = (ROOT / document).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)", text(document)) if "://" not in link]
    assert not [link for link in links if not (here / link).exists()]
    tops = {path.parts[0] for path in files() if len(path.parts) > 1}
    named = [name for name in re.findall(r"`([\w./-]+/[\w./-]*)`", text(document)) if name.split("/")[0] in tops]
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_setting_has_its_row():
    page = text("docs/settings.md")
    assert not [
        entry.path for entry in iter_setting_specs() if f"`{entry.path}`" not in page or f"`{entry.env}`" not in page
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_is_named_is_one(document: str):
    known = {entry.path for entry in iter_setting_specs()}
    named = set(
        re.findall(
            rf"`((?:{'|'.join(sorted({entry.section for entry in iter_setting_specs()}))})\.[a-z_]+)`", text(document)
        )
    )
    assert not named - known


def reads(module: str) -> set[tuple[str, str]]:
    """What a module asks of settings, as section and key: `settings.<section>.<key>`, or of a section that it was given."""
    source = text(module)
    # Who is handed one section names its class; one section is a file of its own.
    named = re.findall(r"penstock\.(?:settings|issuers) import (.*)", source)
    given = {name.lower() for line in named for name in re.findall(r"\w+", line)} | {"routing"} & {Path(module).stem}
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            above = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            found |= {(section, node.attr) for section in {above, *given}}
    return found


def test_every_setting_is_read_somewhere():
    modules = [path.as_posix() for path in under("python/penstock", ".py") if "migrations" not in path.parts]
    asked = set[tuple[str, str]]().union(*map(reads, modules))
    # One section goes to the engine whole.
    engine = "".join(text(path.as_posix()) for path in under("rust/core/src", ".rs") if path.name != "settings.rs")
    asked |= {("routing", name) for name in re.findall(r"settings\(?\)?\.(\w+)", engine)}
    assert not [entry.path for entry in iter_setting_specs() if (entry.section, entry.key) not in asked]
    assert ("store", "colour") not in asked


def test_every_setting_that_is_a_time_and_every_test_in_the_table_of_times_exists():
    page = text("docs/time.md")
    times = [entry.path for entry in iter_setting_specs() if entry.key.endswith(("_ms", "_seconds"))]
    assert not [path for path in times if f"`{path}`" not in page]
    tests = {path: text(path.as_posix()) for path in files() if "tests" in path.parts and path.suffix in {".rs", ".py"}}
    named = re.findall(r"`(test_\w+|a_\w+)`", page)
    assert len(named) >= len(times)
    assert not [name for name in named if not any(f" {name}(" in source for source in tests.values())]


RUNS = {
    module
    for path in [*under(".", ".md"), *under("benches", ".py"), *under("loadtests", ".py"), Path("Makefile")]
    for module in re.findall(r"-m ((?:benches|loadtests)(?:\.\w+)*)", text(path.as_posix()))
}


@pytest.mark.parametrize("module", sorted(RUNS))
def test_every_run_that_is_named_says_what_it_takes(module: str):
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert (done.returncode, f"usage: python -m {module}" in done.stdout) == (0, True), done.stdout + done.stderr


def test_there_are_runs_to_try_and_contributing_names_those_of_the_load_tests():
    own = {
        ".".join(path.with_suffix("").parts).removesuffix(".__main__")
        for path in under("loadtests", ".py")
        if 'if __name__ == "__main__":' in text(path)
    }
    assert len(RUNS) >= 6, RUNS
    assert not {run for run in own - {"loadtests", "loadtests.report"} if f"-m {run}`" not in text("CONTRIBUTING.md")}


def test_the_readme_names_every_document():
    prose = {path for path in DOCUMENTS if path.startswith("docs/")} | {"CONTRIBUTING.md"}
    assert not {path for path in prose if f"]({path})" not in text("README.md")}


# Sets come in another order with each seed; the pages must not.
@pytest.mark.parametrize("seed", ["1", "4"])
def test_generated_pages_are_what_the_code_says(seed: str):
    command = [sys.executable, "docs/generate.py", "--check"]
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_shows_the_lines_that_make_run_prints():
    shown = re.findall(r"```sh\n(# .*?\n)```", text("README.md"), re.DOTALL)
    assert shown == ["\n".join([*examples.format_examples("http://127.0.0.1:8787", key_needed=False), ""])]


def test_the_readmes_settings_file_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```toml\n(.*?)```", text("README.md"), re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(block)
    environ = {"TEAM_A_KEY": "pk-of-team-a", "OPENAI_API_KEY": "sk-a"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert build_valid_snapshot(load_settings(str(file), environ)).keys == 1
