"""Log of the processes: text or JSON lines, and the access log as a part of it."""

from __future__ import annotations

import json
import subprocess
import sys

from penstock.process_log import logs_access

PROGRAM = """
import logging
from penstock import process_log
from penstock.settings.monitoring import Log
process_log.configure(Log({options}))
log = logging.getLogger("penstock")
log.debug("quiet")
log.info("hello %s", "you\\nthere")
try:
    raise ValueError("canary")
except ValueError:
    log.exception("it failed")
logging.getLogger("sqlalchemy").info("SELECT")
if process_log.logs_access():
    process_log.log_access(process_log.AccessEntry(method="GET", path="/a b", status=200, ms=1.5, id="i"))
"""


def run_program(options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(options=options)], check=True, capture_output=True, text=True
    )
    assert not done.stdout
    return done.stderr.splitlines()


def test_json_format_writes_one_object_per_line():
    lines = [json.loads(line) for line in run_program('format="json", access=True')]
    assert [line["message"] for line in lines] == ["hello you\nthere", "it failed", "access"]
    assert [line["level"] for line in lines] == ["info", "error", "info"]
    assert lines[1]["exception"].endswith("ValueError: canary")
    access = {name: lines[2][name] for name in ("method", "path", "status", "ms", "id")}
    assert access == {"method": "GET", "path": "/a b", "status": 200, "ms": 1.5, "id": "i"}
    assert "api_key_id" not in lines[2]
    assert all(line["time"].endswith("+00:00") and line["pid"] > 0 for line in lines)


def test_text_format_is_the_default_and_has_no_access_lines():
    lines = run_program("")
    assert lines[0].endswith(" INFO hello you")
    assert not [line for line in lines if "access" in line or "SELECT" in line]


def test_access_lines_do_not_depend_on_the_level():
    lines = run_program('level="error", access=True')
    assert lines[-1].endswith('INFO access method=GET path="/a b" status=200 ms=1.5 id=i')
    assert not [line for line in lines if "hello" in line]


def test_access_log_is_off_unless_it_is_set_up():
    assert not logs_access()
