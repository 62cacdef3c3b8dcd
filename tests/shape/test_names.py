"""File names that describe their content, and files that stay short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.shape.repository import files_under, read_text, repository_files

BANNED_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "base",
    "manager",
    "handler",
    "impl",
    "types",
    "v2",
    "misc",
}
CODE_SUFFIXES = (".py", ".rs", ".mjs", ".sh")
# Lookup tables grow by one row at a time and are never read from top to bottom, so they may be longer.
LONG_TABLE_FILES = {"rust/llm/src/catalog/openai_compatible.rs", "rust/llm/src/operation.rs"}


def test_no_file_or_folder_has_a_meaningless_name():
    names = {path for path in repository_files() if {part.split(".")[0].lower() for part in path.parts} & BANNED_NAMES}
    assert not names


def test_files_stay_short():
    long = {
        path.as_posix(): lines
        for path in repository_files()
        if path.suffix in CODE_SUFFIXES
        and "tests" not in path.parts
        and path.as_posix() not in LONG_TABLE_FILES
        and (lines := len(read_text(path).splitlines())) > 600
    }
    assert not long


# Text that starts with a sentence. The sentence may span several lines.
SENTENCE_PATTERN = re.compile(r"\S.*?\.(\s|$)", re.DOTALL)


def test_python_modules_start_with_a_docstring_sentence():
    silent: list[Path] = []
    for path in files_under(".", ".py"):
        source = read_text(path)
        first_paragraph = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
        if source.strip() and not SENTENCE_PATTERN.match(first_paragraph):
            silent.append(path)
    assert not silent


def test_rust_modules_start_with_a_doc_comment():
    silent = [
        path for path in files_under("rust", ".rs") if read_text(path).strip() and not read_text(path).startswith("//!")
    ]
    assert not silent


def test_core_tests_are_named_after_modules():
    """Requires one file per feature: a test file has a module's name, or is listed as an end-to-end test across
    modules.
    """
    end_to_end_tests = {
        "cluster_faults",
        "credentials",
        "deployments",
        "failover",
        "faults",
        "fine_tuning",
        "guardrail_caching",
        "guardrail_checks",
        "guardrail_defaults",
        "guardrail_fields",
        "guardrail_logs",
        "guardrail_matrix",
        "guardrail_routes",
        "guardrail_ways_around",
        "heartbeat",
        "hidden_errors",
        "limit_evasion",
        "limit_responses",
        "limits",
        "pass_through",
        "request_translation",
        "response_translation",
        "statuses",
        "streaming",
    }
    modules = {
        part
        # The tests of `core` also cover the HTTP client, as the gateway uses it.
        for folder in (Path("rust/core/src"), Path("rust/net/src"))
        for path in files_under(folder.as_posix(), ".rs")
        for part in path.relative_to(folder).with_suffix("").parts
    }
    tests = {path.stem for path in files_under("rust/core/tests/it", ".rs") if path.parent.name == "it"} - {"main"}
    assert tests & modules
    assert not tests - modules - end_to_end_tests


def test_every_feature_has_a_test_file():
    features = {path.stem for path in files_under("rust/core/src/features", ".rs")} - {"mod"}
    assert features
    assert not {name for name in features if Path(f"rust/core/tests/it/{name}.rs") not in repository_files()}


def test_python_unit_tests_mirror_the_package():
    modules = {path.relative_to("python/penstock").with_suffix("") for path in files_under("python/penstock", ".py")}
    # Benchmarks and load scenarios use one flat name: `benches/compare/report.py` becomes `compare_report`.
    modules |= {Path("_".join(path.with_suffix("").parts[1:])) for path in files_under("benches", ".py")}
    modules |= {Path(f"loadtests_{path.stem}") for path in files_under("loadtests", ".py")}
    # Files for deployments have one test file per folder.
    modules |= {Path(*path.parts[:2]) for path in repository_files() if path.parts[0] == "deploy"}
    stray = []
    for path in files_under("tests/unit", ".py"):
        mirrored = path.relative_to("tests/unit").with_name(path.stem.removeprefix("test_"))
        # Tests of a package's `__init__` are in its folder, under a name of their own.
        is_packages = mirrored.parent != Path() and mirrored.parent / "__init__" in modules
        if path.name.startswith("test_") and mirrored not in modules and not is_packages:
            stray.append(path)
    assert not stray


def test_skipped_and_xfail_tests_have_a_reason():
    marks = re.compile(r"pytest\.mark\.(skip|xfail)\b(?!.*reason=)|#\[ignore\]")
    assert not [
        path
        for path in files_under(".", ".py", ".rs")
        if path.name != "test_names.py" and marks.search(read_text(path))
    ]
