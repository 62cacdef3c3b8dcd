"""Table of faults in `tests/README.md`: every test that it names exists, and every line names one."""

from __future__ import annotations

import re

from tests.shape.repository import ROOT, read_text

TABLE = "tests/README.md"
LINE = re.compile(r"^\| (?!fault |rule |---)(?P<fault>.+?) \| (?P<tests>`.+`) \|$", re.MULTILINE)
GOLDEN = ROOT / "rust/llm/tests/golden"


def test_every_test_of_the_table_exists():
    lines = [match["tests"] for match in LINE.finditer(read_text(TABLE))]
    rows = [line for line in read_text(TABLE).splitlines() if line.startswith("| ")]
    headings = [line for line in rows if re.match(r"\| (fault|rule) \|", line)]
    assert len(lines) == len(rows) - len(headings), "a line of the table has another form"
    missing = []
    for name in re.findall(r"`([^`]+)`", " ".join(lines)):
        path, _, test = name.partition("::")
        if not test:
            exists = (GOLDEN / path).is_dir()
        else:
            exists = bool(re.search(rf"\b(fn|def) {re.escape(test)}\(", read_text(path)))
        if not exists:
            missing.append(name)
    assert not missing
