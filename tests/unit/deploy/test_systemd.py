"""Unit for systemd: it is valid, its settings exist, and it stops later than the gateway."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from penstock.settings import load_settings
from tests.certificates import write_certificate
from tests.unit.deploy.artefacts import DEPLOY, SECONDS_AFTER_DRAIN, check_command, unknown_settings_by_file

if TYPE_CHECKING:
    from pathlib import Path

UNIT = DEPLOY / "systemd/penstock.service"
# Settings without which `systemd-analyze security` would call the service exposed.
HARDENING = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
}


def read_service() -> dict[str, list[str]]:
    actual: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text().partition("[Service]\n")[2].partition("[Install]")[0].splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            actual[name].append(value)
    return actual


def test_settings_exist_and_the_command_is_known():
    service = read_service()
    assert not unknown_settings_by_file("systemd")
    (start,) = service["ExecStart"]
    program, *words = start.split()
    assert program.endswith("/bin/penstock")
    check_command(words)
    environ = dict(text.split("=", 1) for text in service["Environment"])
    (state,), (runtime,) = service["StateDirectory"], service["RuntimeDirectory"]
    assert environ.pop("PENSTOCK_CONFIG") == f"/var/lib/{state}/penstock.toml"
    assert service["WorkingDirectory"] == [f"/var/lib/{state}"]
    assert load_settings(None, environ).server.run_dir.startswith(f"/run/{runtime}/")


def test_service_stops_after_the_gateway():
    service = read_service()
    drain = load_settings(None, {}).server.drain_seconds
    assert int(service["TimeoutStopSec"][0]) >= drain + SECONDS_AFTER_DRAIN
    # systemd signals only the supervisor, which stops the other processes in order, each with its own deadline.
    assert service["KillMode"] == ["mixed"]


def test_service_is_hardened():
    service = read_service()
    assert {name: service[name][0] for name in HARDENING} == HARDENING
    # The engine measures its connections over netlink.
    assert "AF_NETLINK" in service["RestrictAddressFamilies"][0]


def test_hook_of_certbot_copies_the_renewed_pair_for_the_user_of_the_folder(tmp_path: Path):
    lineage, state = tmp_path / "live", tmp_path / "private"
    lineage.mkdir()
    state.mkdir()
    # systemd makes a link to the folder of a service with a dynamic user.
    (tmp_path / "penstock").symlink_to(state)
    write_certificate(lineage / "fullchain.pem", lineage / "privkey.pem")
    (state / "tls.key").write_text("old")
    environ = {"PATH": "/usr/bin:/bin", "RENEWED_LINEAGE": str(lineage), "STATE_FOLDER": str(tmp_path / "penstock")}
    environ["LINEAGE_FILE"] = str(tmp_path / "absent")
    subprocess.run([UNIT.parent / "certbot-deploy-hook"], check=True, timeout=60, env=environ)
    assert {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()} == {"tls.crt": 0o600, "tls.key": 0o600}
    assert {path.stat().st_uid for path in state.iterdir()} == {state.stat().st_uid}
    files = {"TLS_CERTIFICATE_FILE": state / "tls.crt", "TLS_KEY_FILE": state / "tls.key"}
    assert load_settings(None, {f"PENSTOCK_SERVER_{name}": str(path) for name, path in files.items()}).server.has_tls


@pytest.mark.parametrize("is_wanted", [True, False])
def test_hook_of_certbot_ignores_other_certificates(tmp_path: Path, is_wanted: bool):
    lineage, state, lineage_file = tmp_path / "live", tmp_path / "state", tmp_path / "certificate-lineage"
    lineage.mkdir()
    state.mkdir()
    write_certificate(lineage / "fullchain.pem", lineage / "privkey.pem")
    (state / "tls.key").write_text("old")
    lineage_file.write_text(f"{lineage if is_wanted else tmp_path / 'other'}\n")
    environ = {"RENEWED_LINEAGE": str(lineage), "STATE_FOLDER": str(state), "LINEAGE_FILE": str(lineage_file)}
    hook = UNIT.parent / "certbot-deploy-hook"
    subprocess.run([hook], check=True, timeout=60, env={"PATH": "/usr/bin:/bin", **environ})
    assert ((state / "tls.crt").exists(), (state / "tls.key").read_text() != "old") == (is_wanted, is_wanted)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path):
    unit = tmp_path / UNIT.name
    # systemd checks that the program exists.
    unit.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    own = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert (done.returncode, own) == (0, [])
