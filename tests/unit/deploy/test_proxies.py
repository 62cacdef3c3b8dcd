"""Settings of reverse proxies: streams are not buffered, and the timeouts fit those of the gateway."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.settings import load_settings
from tests.unit.deploy.artefacts import DEPLOY, unknown_settings_by_file

if TYPE_CHECKING:
    from pathlib import Path

NGINX, CADDY = DEPLOY / "proxies/nginx.conf", DEPLOY / "proxies/Caddyfile"
DEFAULTS = load_settings(None, {})


def nginx_directives() -> dict[str, str]:
    text = re.sub(r"#.*", "", NGINX.read_text())
    return dict(re.findall(r"^\s*(\w+) ([^;{]+);", text, re.MULTILINE))


def test_files_name_only_settings_that_exist():
    assert not unknown_settings_by_file("proxies")
    trusted = re.findall(r'security\.trusted_proxies = \["([\d.]+)"\]', NGINX.read_text() + CADDY.read_text())
    assert trusted == ["127.0.0.1", "127.0.0.1"]


def test_nginx_passes_streams_on_and_waits_as_long_as_the_gateway():
    actual = nginx_directives()
    assert (actual["proxy_buffering"], actual["proxy_request_buffering"]) == ("off", "off")
    assert int(actual["proxy_read_timeout"].removesuffix("s")) * 1000 > DEFAULTS.upstream.request_timeout_ms
    assert int(actual["keepalive_timeout"].removesuffix("s")) * 1000 < DEFAULTS.server.keep_alive_ms
    # A request that reached a provider must not be sent again by the proxy.
    assert actual["proxy_next_upstream"] == "off"
    assert f"127.0.0.1:{DEFAULTS.server.port}" in NGINX.read_text()


def test_caddy_passes_streams_on_and_waits_as_long_as_the_gateway():
    text = CADDY.read_text()
    assert "flush_interval -1" in text
    (minutes,) = re.findall(r"response_header_timeout (\d+)m", text)
    (seconds,) = re.findall(r"keepalive (\d+)s", text)
    assert int(minutes) * 60_000 > DEFAULTS.upstream.request_timeout_ms
    assert int(seconds) * 1000 < DEFAULTS.server.keep_alive_ms
    assert f"127.0.0.1:{DEFAULTS.server.port}" in text


def write_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ai.example.com")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    (folder / "fullchain.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "privkey.pem").write_bytes(private)


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_nginx_accepts_the_file(tmp_path: Path):
    write_certificate(tmp_path)
    included = tmp_path / "penstock.conf"
    included.write_text(NGINX.read_text().replace("/etc/ssl/penstock", str(tmp_path)).replace("443 ssl", "8443 ssl"))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {tmp_path / kind};" for kind in kinds)
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"pid {tmp_path}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{ access_log off; {folders} include {included}; }}\n"
    )
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(main)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert (done.returncode, "warn" in done.stderr) == (0, False), done.stderr


@pytest.mark.skipif(not shutil.which("caddy"), reason="caddy is not installed")
def test_caddy_accepts_the_file(tmp_path: Path):
    command = ["caddy", "adapt", "--adapter", "caddyfile", "--config", str(CADDY)]
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, env=environ
    )
    assert done.returncode == 0, done.stderr
