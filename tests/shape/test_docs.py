"""Checks of the documentation: commands exist, links resolve, and lists are complete."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock import engine, examples
from penstock.authorization import ALL_SCOPES
from penstock.pricing import price_book
from penstock.settings import Settings, iter_setting_specs, load_settings
from penstock.settings.jwt import Jwt, parse_issuers, validate_jwt
from penstock.settings.monitoring import Metrics, validate_metrics
from penstock.snapshot.build import build_valid_snapshot
from tests.certificates import with_certificate
from tests.doc_examples import config_examples, page_examples, pages_with
from tests.shape.repository import ROOT, files_under, make_targets, read_text, repository_files

if TYPE_CHECKING:
    from penstock.errors import Problem

DOCUMENTS = [path.as_posix() for path in files_under(".", ".md")]
# Their TOML examples have tests of their own.
OTHER_TOML_PAGES = {"docs/tokens.md", "docs/monitoring.md", "docs/files-in-s3.md", "docs/migrate-from-tensorzero.md"}
# Only the settings of Codex have this key; `tests/e2e/test_docs_snippets.py` uses them.
CODEX_MARK = "model_provider ="


def fenced_lines(document: str) -> list[str]:
    """Returns the lines within code fences."""
    return [
        line for block in re.findall(r"```\w*\n(.*?)```", read_text(document), re.DOTALL) for line in block.splitlines()
    ]


def test_readme_is_short_and_starts_with_the_two_commands():
    assert len(read_text("README.md").splitlines()) <= 120
    commands = [line for line in fenced_lines("README.md") if line.startswith("make ")]
    assert [line.split("#")[0].strip() for line in commands[:2]] == ["make run", "make test"]
    assert read_text("README.md").index("make run") < 1200


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_mentioned_make_target_exists(document: str):
    names = set(re.findall(r"`make ([a-z-]+)", read_text(document)))
    names |= {line.split()[1] for line in fenced_lines(document) if line.startswith("make ")}
    assert not names - make_targets()


def test_contributing_explains_every_make_target():
    missing = {verb for verb in make_targets() if f"`make {verb}`" not in read_text("CONTRIBUTING.md")}
    assert not missing - {"again"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_and_mentioned_path_exists(document: str):
    here = (ROOT / document).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)", read_text(document)) if "://" not in link]
    assert not [link for link in links if not (here / link).exists()]
    tops = {path.parts[0] for path in repository_files() if len(path.parts) > 1}
    names = [name for name in re.findall(r"`([\w./-]+/[\w./-]*)`", read_text(document)) if name.split("/")[0] in tops]
    assert not [name for name in names if not (ROOT / name).exists()]


def heading_anchors(document: str) -> set[str]:
    """Returns the anchors of the headings, as GitHub derives them from their text."""
    text = re.sub(r"```.*?```", "", read_text(document), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_to_a_heading_resolves(document: str):
    here = Path(document).parent
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", read_text(document))
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in heading_anchors(os.path.normpath(here / target) if target else document)
    ]
    assert not missing


def test_settings_page_documents_every_setting():
    page = read_text("docs/settings.md")
    assert not [
        entry.path for entry in iter_setting_specs() if f"`{entry.path}`" not in page or f"`{entry.env}`" not in page
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_mentioned_setting_exists(document: str):
    known = {entry.path for entry in iter_setting_specs()}
    names = set(
        re.findall(
            rf"`((?:{'|'.join(sorted({entry.section for entry in iter_setting_specs()}))})\.[a-z_]+)`",
            read_text(document),
        )
    )
    # Some scopes of keys look like settings, such as `guardrails.read`.
    assert not names - known - ALL_SCOPES


def find_setting_reads(module: str) -> set[tuple[str, str]]:
    """Returns the settings that a module reads, as (section, key): `settings.<section>.<key>`, or a key of a section
    that it receives.
    """
    source = read_text(module)
    # A module that receives one section imports its class. The routing section has its own file.
    imports = re.findall(r"penstock\.settings(?:\.\w+)? import (.*)", source)
    body = {name.lower() for line in imports for name in re.findall(r"\w+", line)} | {"routing"} & {Path(module).stem}
    actual: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            above = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            actual |= {(section, node.attr) for section in {above, *body}}
    return actual


def test_every_setting_is_read_by_code():
    modules = [path.as_posix() for path in files_under("python/penstock", ".py") if "migrations" not in path.parts]
    requested = set[tuple[str, str]]().union(*map(find_setting_reads, modules))
    # The engine receives the whole routing section.
    engine = "".join(
        read_text(path.as_posix()) for path in files_under("rust/core/src", ".rs") if path.name != "settings.rs"
    )
    requested |= {("routing", name) for name in re.findall(r"settings\(?\)?\.(\w+)", engine)}
    assert not [entry.path for entry in iter_setting_specs() if (entry.section, entry.key) not in requested]
    assert ("store", "colour") not in requested


def test_timeouts_page_lists_every_time_setting_and_existing_tests():
    page = read_text("docs/timeouts.md")
    times = [entry.path for entry in iter_setting_specs() if entry.key.endswith(("_ms", "_seconds"))]
    assert not [path for path in times if f"`{path}`" not in page]
    tests = {
        path: read_text(path.as_posix())
        for path in repository_files()
        # The unit tests of a Rust module are at the end of its file.
        if path.suffix == ".rs" or ("tests" in path.parts and path.suffix == ".py")
    }
    rows = re.findall(r"^\|.*\|([^|]*)\|$", page, re.MULTILINE)
    tables = [row for row in rows if row.strip("- ") not in {"", "test"}]
    assert len(tables) >= len(times)
    assert all("`" in row for row in tables), tables
    names = {name for row in tables for name in re.findall(r"`(\w+)`", row)} | set(re.findall(r"`(test_\w+)`", page))
    assert not [name for name in names if not any(f" {name}(" in source for source in tests.values())]


RUN_MODULES = {
    module
    for path in [
        *files_under(".", ".md"),
        *files_under("benches", ".py"),
        *files_under("loadtests", ".py"),
        Path("Makefile"),
    ]
    for module in re.findall(r"-m ((?:benches|loadtests)(?:\.\w+)*)", read_text(path.as_posix()))
}


@pytest.mark.parametrize("module", sorted(RUN_MODULES))
def test_every_mentioned_run_has_help(module: str):
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert (done.returncode, f"usage: python -m {module}" in done.stdout) == (0, True), done.stdout + done.stderr


def test_contributing_names_every_load_test():
    own = {
        ".".join(path.with_suffix("").parts).removesuffix(".__main__")
        for path in files_under("loadtests", ".py")
        if 'if __name__ == "__main__":' in read_text(path)
    }
    assert len(RUN_MODULES) >= 6, RUN_MODULES
    assert not {
        run for run in own - {"loadtests", "loadtests.report"} if f"-m {run}`" not in read_text("CONTRIBUTING.md")
    }


def linked_documents(document: str) -> set[str]:
    """Returns the documents that a document links to, as paths from the root of the repository."""
    links = re.findall(r"\]\(([^)#:]+\.md)[)#]", read_text(document))
    return {os.path.normpath(Path(document).parent / link) for link in links} & set(DOCUMENTS)


def test_every_document_is_reachable_from_the_readme():
    received, unvisited = set[str](), {"README.md"}
    while unvisited:
        received.add(document := unvisited.pop())
        unvisited |= linked_documents(document) - received
    assert not {path for path in DOCUMENTS if path.startswith("docs/")} - received
    assert {"CONTRIBUTING.md", "docs/README.md"} <= linked_documents("README.md")


# The hash seed changes the order of sets; the generated pages must not depend on it.
@pytest.mark.parametrize("seed", ["1", "4"])
def test_generated_pages_match_the_code(seed: str):
    command = [sys.executable, "docs/generate.py", "--check"]
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_shows_the_output_of_make_run():
    displayed = re.findall(r"```sh\n(# .*?\n)```", read_text("README.md"), re.DOTALL)
    assert displayed == [
        "\n".join([*examples.format_examples("http://127.0.0.1:8787", key_needed=True, demo_key="…"), ""])
    ]


def test_settings_file_of_the_readme_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```toml\n(.*?)```", read_text("README.md"), re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(block)
    environ = {"TEAM_A_KEY": "pk-of-team-a", "OPENAI_API_KEY": "sk-a"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert build_valid_snapshot(load_settings(str(file), environ)).keys == 1


@pytest.mark.parametrize("document", [page for page in pages_with("json") if config_examples(page)])
def test_config_examples_are_valid(document: str):
    for example in config_examples(document):
        engine.check("config", example.encode())


def test_pages_about_routing_have_config_examples():
    topics = ("config", "fallbacks", "load-balancing", "conditional-routing", "retries", "circuit-breaker", "hedging")
    assert all(config_examples(f"docs/{topic}.md") for topic in (*topics, "stream-recovery", "caching"))


@pytest.mark.parametrize("document", [page for page in pages_with("toml") if page not in OTHER_TOML_PAGES])
def test_settings_examples_are_valid(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocks = [example.text for example in page_examples(document, "toml") if CODEX_MARK not in example.text]
    assert blocks
    for block in blocks:
        file = tmp_path / "penstock.toml"
        file.write_text(with_certificate(block, tmp_path))
        environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "value-of-an-example")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        settings = load_settings(str(file), environ)
        build_valid_snapshot(settings)
        price_book.read_price_rows(str(file))


def test_metrics_example_is_valid():
    (block,) = re.findall(r"```toml\n(.*?)```", read_text("docs/monitoring.md"), re.DOTALL)
    metrics = msgspec.convert(tomllib.loads(block)["metrics"], Metrics)
    assert not list(validate_metrics(Settings(metrics=metrics)))


def test_bucket_example_is_valid(tmp_path: Path):
    (block,) = re.findall(r"```toml\n(.*?)```", read_text("docs/files-in-s3.md"), re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(block)
    assert load_settings(str(file), {}).files.store == "s3://my-bucket/penstock"


def test_issuer_example_is_valid():
    (block,) = re.findall(r"```toml\n(.*?)```", read_text("docs/tokens.md"), re.DOTALL)
    problems: list[Problem] = []
    issuers = parse_issuers(tomllib.loads(block)["issuers"], problems)
    problems += validate_jwt(Jwt(enabled=True), issuers)
    assert (len(issuers), problems) == (1, [])
