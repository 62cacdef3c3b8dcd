"""Mock provider process. It is started, its address is read from its output, and it never outlives the gateway."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock import mock
from penstock.cli import main
from penstock.errors import StartupError

if TYPE_CHECKING:
    from pathlib import Path


def write_program(folder: Path, body: str) -> str:
    path = folder / "provider"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


def has_exited(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_reads_its_address_and_stops_it_on_exit(tmp_path: Path):
    content = tmp_path / "pid"
    body = f"open({str(content)!r}, 'w').write(str(os.getpid()))\nprint('listening on http://127.0.0.1:5', flush=True)\ntime.sleep(60)"
    with mock.run_mock_provider(write_program(tmp_path, body)) as url:
        assert url == "http://127.0.0.1:5"
        assert not has_exited(int(content.read_text()))
    assert has_exited(int(content.read_text()))


def test_unexpected_output_is_an_error(tmp_path: Path):
    with (
        pytest.raises(StartupError, match="did not print its address"),
        mock.run_mock_provider(write_program(tmp_path, "print('hello')")),
    ):
        pass


def test_missing_program_is_an_error():
    with (
        pytest.raises(StartupError, match="cannot start the mock provider"),
        mock.run_mock_provider("/no/such/program"),
    ):
        pass


def test_listens_on_the_chosen_port(tmp_path: Path):
    program = write_program(
        tmp_path, "print('listening on http://' + ':'.join(sys.argv[2::2]), flush=True)\ntime.sleep(60)"
    )
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        with (
            pytest.raises(StartupError, match=f"--mock-port {port} is in use; choose another one"),
            mock.run_mock_provider(program, port),
        ):
            pass
    with mock.run_mock_provider(program, port) as url:
        assert url == f"http://127.0.0.1:{port}"
    with mock.run_mock_provider(program, 0) as url:
        assert url == "http://127.0.0.1:0"


def test_mock_port_needs_the_mock_provider():
    result = CliRunner().invoke(main, ["serve", "--mock-port", "9000"])
    assert (result.exit_code, "--mock-port needs --mock" in result.output) == (2, True)
