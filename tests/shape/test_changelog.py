"""CHANGELOG.md: Keep-a-Changelog sections, one short line per change."""

from __future__ import annotations

import re

from tests.shape.repository import read_text

SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
MAX_WORDS = 20
RELEASE = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}")


def changelog_lines() -> list[str]:
    return read_text("CHANGELOG.md").splitlines()


def test_each_change_is_one_short_line():
    changes = [line.removeprefix("- ") for line in changelog_lines() if line.startswith("- ")]
    assert changes
    assert not [change for change in changes if len(change.split()) > MAX_WORDS]
    assert not [line for line in changelog_lines() if line.startswith(" ")]


def test_releases_start_with_the_unreleased_one():
    text = read_text("CHANGELOG.md")
    title, *releases = re.split(r"^## ", text, flags=re.MULTILINE)
    assert title.startswith("# Changelog\n")
    assert "### " not in title
    names = [release.partition("\n")[0] for release in releases]
    assert names[0] == "[Unreleased]"
    assert not [name for name in names[1:] if not RELEASE.fullmatch(name)]
    # The release instructions rename this heading.
    assert f"`## {names[0]}`" in read_text("RELEASE.md")


def test_sections_are_those_of_keep_a_changelog():
    _, *releases = re.split(r"^## ", read_text("CHANGELOG.md"), flags=re.MULTILINE)
    assert releases
    for release in releases:
        sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert sections == [section for section in SECTIONS if section in sections]


def test_no_change_is_listed_twice():
    changes = [line for line in changelog_lines() if line.startswith("- ")]
    assert len(changes) == len(set(changes))
