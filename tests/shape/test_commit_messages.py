"""Commit message hook: accepts `type(area): imperative subject`, and reports what is wrong with other messages."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.shape.repository import ROOT, read_text

if TYPE_CHECKING:
    from pathlib import Path

HOOK = ".ci/commit-msg"


def check_message(folder: Path, message: str) -> tuple[int, str]:
    """Runs the hook as git does. Returns its exit status and what it printed."""
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    command = [sys.executable, HOOK, file]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=30
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "fix(llm): bound memory of citations\n",
        "feat(management)!: reject unknown fields\n\nProblem: …\n",
        "docs(adr): process the open questions",
        "perf(core): embed the table",
        "style(py): sort the imports",
        "bench(llm): count tokens of long texts",
        "\n# a comment\ntest(py): address a race\n\n# Please enter the commit message\n",
        f"fix(core): {'a' * 61}",
        "fix(ci): pin it\n# ------------------------ >8 ------------------------\n" + "x" * 200,
        "Merge branch 'main' into feature",
        'Revert "fix(llm): bound memory of citations"',
        "fixup! fix(llm): bound memory of citations",
    ],
)
def test_accepts_valid_message(tmp_path: Path, message: str):
    assert check_message(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("What is told of citations grows no faster than what is said", "not `type(area): subject`"),
        ("fix: bound memory", "not `type(area): subject`"),
        ("fix(LLM): bound memory", "not `type(area): subject`"),
        ("improve(llm): bound memory", "types are feat, fix"),
        ("fix(llm):bound memory", "not `type(area): subject`"),
        ("fix(llm): Bound memory", "lower case"),
        ("fix(llm): bounded memory", "`bounded` is not imperative"),
        ("fix(llm): bounding memory", "`bounding` is not imperative"),
        ("fix(llm): bounds memory", "`bounds` is not imperative"),
        ("fix(llm): bound memory.", "full stop"),
        ("fix(llm): bound memory\nProblem: …", "second line"),
        (f"fix(core): {'a' * 62}", "73 characters; at most 72"),
    ],
)
def test_rejects_invalid_message_with_the_reason(tmp_path: Path, message: str, problem: str):
    status, printed = check_message(tmp_path, message)
    assert status == 1
    assert problem in printed
    assert "hint: " in printed


def test_reports_all_problems_at_once(tmp_path: Path):
    _, printed = check_message(tmp_path, f"fix(llm): Bound {'memory ' * 10}\nand more")
    assert printed.count("commit message: ") == 3


def test_pre_commit_installs_the_hook():
    config = read_text(".pre-commit-config.yaml")
    assert re.search(rf"entry: {re.escape(HOOK)}\n\s+language: system\n\s+stages: \[commit-msg\]", config)
    assert "default_install_hook_types: [pre-commit, commit-msg]" in config
    assert os.access(ROOT / HOOK, os.X_OK)


def test_contributing_lists_the_accepted_types():
    (documented,) = re.findall(r"^Types: (.*)\.$", read_text("CONTRIBUTING.md"), re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", documented)) == runpy.run_path(str(ROOT / HOOK))["TYPES"]
