"""A service manager learns that the gateway is ready, and `penstock health` follows it from its start to its end."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

from tests.fork_server import run_penstock
from tests.gateway import Gateway

if TYPE_CHECKING:
    from pathlib import Path


def test_service_manager_and_health_command_follow_the_gateway(tmp_path: Path):
    # An abstract name, because the path of a socket in the test's folder may be too long.
    name = f"penstock-test-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(30)
        running = Gateway(tmp_path, {}, {"NOTIFY_SOCKET": f"@{name}"})
        # The address comes from the settings file.
        check = ("health", "--config", str(running.config_file))
        try:
            assert manager.recv(64) == b"READY=1"
            done = run_penstock(*check, env={}, cwd=tmp_path)
        finally:
            running.stop()
    assert (done.returncode, done.stdout) == (0, f"ready: {running.base_url}/ready\n"), done.stderr
    as_json = run_penstock(*check, "--json", env={}, cwd=tmp_path)
    assert (as_json.returncode, json.loads(as_json.stdout)) == (
        1,
        {"ready": False, "message": f"not ready: {running.base_url}/ready: Connection refused"},
    )
    done = run_penstock(*check, env={}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"not ready: {running.base_url}/ready: Connection refused\n"
