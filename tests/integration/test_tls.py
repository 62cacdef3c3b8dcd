"""TLS of the gateway itself: data plane and management, and a certificate that is replaced while requests run."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import httpx2
import pytest

from tests.certificates import write_certificate
from tests.gateway import to_toml
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, chat_body
from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock

KEY = "pk-tls-0123456789"
HEADERS = {"x-gateway-provider": "mock", "x-gateway-api-key": KEY, **JSON_HEADERS}
SECONDS = 60.0


class TlsGateway:
    """`penstock serve` with a certificate."""

    def __init__(self, folder: Path, provider: Mock, **server: object) -> None:
        self.folder = folder
        self.port = free_port()
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        write_certificate(self.certificate, self.key, "first")
        self.file = folder / "penstock.toml"
        files = {"tls_certificate_file": str(self.certificate), "tls_key_file": str(self.key)}
        self.file.write_text(
            to_toml(
                {
                    "server": {"port": self.port, "drain_seconds": 3, **files, **server},
                    "records": {"path": str(folder / "records.jsonl")},
                    "log_store": {"enabled": False},
                    "mock": {"host": provider.url},
                    "keys": [{"name": "tls", "key": KEY}],
                }
            )
        )
        self.program = Program(
            [sys.executable, "-m", "penstock", "serve", "--config", self.file],
            folder / "gateway.log",
            env={"PATH": "/usr/bin:/bin"},
            cwd=folder,
        )
        wait_for("the start lines", lambda: self.check_output("listens on"), SECONDS)

    def check_output(self, words: str) -> bool | None:
        """True if the gateway has printed these words."""
        self.program.check_alive()
        return words in self.program.read_output() or None

    def client_tls_context(self) -> ssl.SSLContext:
        """A client's settings: the current certificate is its only authority."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def client(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=self.client_tls_context())

    def send_request(self, method: str, path: str, body: bytes | None = None) -> int:
        """Sends one request over a new connection and returns the status."""
        with contextlib.closing(self.client()) as client:
            client.request(method, path, body, HEADERS)
            response = client.getresponse()
            response.read()
            return response.status

    def served_name(self) -> str:
        """Common name of the certificate that a new connection gets."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), SECONDS) as plain,
            context.wrap_socket(plain) as connection,
        ):
            der = connection.getpeercert(binary_form=True)
        from cryptography import x509  # noqa: PLC0415 - used here alone

        (name,) = x509.load_der_x509_certificate(der or b"").subject
        return str(name.value)


@pytest.fixture
def tls(provider: Mock, tmp_path: Path) -> Iterator[TlsGateway]:
    gateway = TlsGateway(tmp_path, provider)
    try:
        yield gateway
    finally:
        gateway.program.stop()
        print(gateway.program.read_output())
        gateway.program.kill()


def test_serves_data_plane_management_and_console_over_tls_alone(tls: TlsGateway):
    assert tls.check_output(f"listens on https://127.0.0.1:{tls.port}")
    assert tls.send_request("POST", CHAT_PATH, chat_body()) == 200
    assert tls.send_request("GET", "/v1/health") == 200
    assert tls.send_request("GET", "/console/") == 200
    with httpx2.Client(http2=False, verify=tls.client_tls_context()) as client:
        streamed = client.post(
            f"https://127.0.0.1:{tls.port}{CHAT_PATH}", content=chat_body(stream=True), headers=HEADERS
        )
    assert streamed.text.rstrip().endswith("data: [DONE]")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", tls.port, timeout=SECONDS)) as plain:
        plain.request("GET", "/ready")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
    health = [sys.executable, "-m", "penstock", "health", "--config", tls.file]
    done = subprocess.run(health, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, f"ready: https://127.0.0.1:{tls.port}/ready\n"), done.stderr


def test_health_check_by_another_name_accepts_the_named_certificate_alone(tls: TlsGateway):
    # The certificate is for 127.0.0.1.
    command = [sys.executable, "-m", "penstock", "health", "--url", f"https://localhost:{tls.port}"]
    write_certificate(tls.folder / "other.crt", tls.folder / "other.key", "other")
    statuses = [
        subprocess.run(
            [*command, *options], check=False, capture_output=True, timeout=SECONDS, cwd=tls.folder
        ).returncode
        for options in ([], ["--certificate", "other.crt"], ["--certificate", "none.crt"], ["--certificate", "tls.crt"])
    ]
    assert statuses == [1, 1, 1, 0]


def test_offers_http2_and_rejects_old_versions_of_tls(provider: Mock, tmp_path: Path):
    gateway = TlsGateway(tmp_path, provider, tls_min_version="1.3")
    try:
        context = gateway.client_tls_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", gateway.port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            assert (connection.selected_alpn_protocol(), connection.version()) == ("h2", "TLSv1.3")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", gateway.port), SECONDS) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    finally:
        gateway.program.stop()
        gateway.program.kill()


class SteadyClient:
    """Sends requests until the block ends, each over a connection of its own; collects what is not a success."""

    def __init__(self, gateway: TlsGateway) -> None:
        self._gateway = gateway
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failures: list[Any] = []
        self.done = 0

    def _run(self) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not self._ended.wait(0.01):
            try:
                client = http.client.HTTPSConnection("127.0.0.1", self._gateway.port, timeout=SECONDS, context=context)
                with contextlib.closing(client):
                    client.request("POST", CHAT_PATH, chat_body(), HEADERS)
                    response = client.getresponse()
                    response.read()
                if response.status != 200:
                    self.failures.append(response.status)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            self.done += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.slow(8)
def test_replaced_certificate_is_used_and_no_connection_is_dropped(tls: TlsGateway):
    with contextlib.closing(tls.client()) as streaming, SteadyClient(tls) as steady:
        streaming.request("POST", CHAT_PATH, chat_body("mock?chunks=80&chunk_ms=100", stream=True), HEADERS)
        stream = streaming.getresponse()
        first = stream.readline()
        for name in ("second", "third"):
            write_certificate(tls.certificate, tls.key, name)
            wait_for(f"the {name} certificate", lambda name=name: tls.served_name() == name or None, SECONDS)
            before = steady.done
            wait_for("more requests", lambda before=before: steady.done > before + 5 or None, SECONDS)
        events = [first, *stream.read().splitlines(keepends=True)]
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in events if line.startswith(b"data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert len(text.split()) >= 80 or len(chunks) >= 80, events[-5:]
    assert events[-2:] == [b"data: [DONE]\n", b"\n"]
    assert steady.failures == []
    assert tls.send_request("GET", "/v1/health") == 200


def test_invalid_certificate_is_reported_and_not_used(tls: TlsGateway):
    good = tls.key.read_bytes()
    write_certificate(tls.folder / "other.crt", tls.folder / "other.key", "other")
    tls.key.write_bytes((tls.folder / "other.key").read_bytes())
    wait_for("the error", lambda: tls.check_output("does not belong to the key"), SECONDS)
    assert tls.served_name() == "first"
    tls.key.write_bytes(good)
    assert tls.send_request("POST", CHAT_PATH, chat_body()) == 200


def test_wrong_files_are_rejected_with_their_settings(tmp_path: Path):
    write_certificate(tmp_path / "a.crt", tmp_path / "a.key")
    write_certificate(tmp_path / "b.crt", tmp_path / "b.key")
    (tmp_path / "text").write_text("text")

    def check(**server: object) -> str:
        file = tmp_path / "penstock.toml"
        file.write_text(to_toml({"server": server}))
        command = [sys.executable, "-m", "penstock", "check", file]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode
        return done.stderr

    a, b = tmp_path / "a.crt", tmp_path / "b.key"
    assert "server.tls_key_file: is needed together" in check(tls_certificate_file=str(a))
    assert "does not belong to the key" in check(tls_certificate_file=str(a), tls_key_file=str(b))
    assert "cannot be used" in check(tls_certificate_file=str(tmp_path / "text"), tls_key_file=str(b))
    assert "cannot be read: No such file" in check(tls_certificate_file=str(tmp_path / "none"), tls_key_file=str(b))
    plain = check(tls_certificate_file=str(a), tls_key_file=str(tmp_path / "a.key"), public_url="http://ai.example")
    assert "server.public_url" in plain
