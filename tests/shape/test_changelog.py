"""CHANGELOG.md: Keep-a-Changelog sections, one short line per change."""

from __future__ import annotations

import re

from tests.shape.repository import read_text

SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
MAX_WORDS = 20


def changelog_lines() -> list[str]:
    return read_text("CHANGELOG.md").splitlines()


def test_each_change_is_one_short_line():
    changes = [line.removeprefix("- ") for line in changelog_lines() if line.startswith("- ")]
    assert changes
    assert not [change for change in changes if len(change.split()) > MAX_WORDS]
    assert not [line for line in changelog_lines() if line.startswith(" ")]


def test_sections_are_those_of_keep_a_changelog():
    for release in re.split(r"^## ", read_text("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert sections == [section for section in SECTIONS if section in sections]


def test_no_change_is_listed_twice():
    changes = [line for line in changelog_lines() if line.startswith("- ")]
    assert len(changes) == len(set(changes))
