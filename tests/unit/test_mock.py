"""The pretend provider is started, found, and never left behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import mock
from penstock.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path


def program(folder: Path, body: str) -> str:
    path = folder / "provider"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_its_address_is_read_and_it_ends_with_us(tmp_path: Path):
    said = tmp_path / "pid"
    body = f"open({str(said)!r}, 'w').write(str(os.getpid()))\nprint('listening on http://127.0.0.1:5', flush=True)\ntime.sleep(60)"
    with mock.run_mock_provider(program(tmp_path, body)) as url:
        assert url == "http://127.0.0.1:5"
        assert not gone(int(said.read_text()))
    assert gone(int(said.read_text()))


def test_one_that_says_something_else_is_an_error(tmp_path: Path):
    with (
        pytest.raises(StartupError, match="did not say where"),
        mock.run_mock_provider(program(tmp_path, "print('hello')")),
    ):
        pass


def test_one_that_is_not_there_is_an_error():
    with (
        pytest.raises(StartupError, match="cannot start the pretend provider"),
        mock.run_mock_provider("/no/such/program"),
    ):
        pass
