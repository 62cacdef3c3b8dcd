"""Client of a collector: responses that allow a retry, waits that a collector asks for, and connections."""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.logs.otel_client import MAX_RETRY_AFTER_SECONDS, OtelClient, Outcome, parse_retry_after, read_delivery
from penstock.settings.otel import Otel
from tests.certificates import write_certificate
from tests.otel_collector import CollectorReply, OtelCollector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAYLOAD = b'{"resourceSpans":[]}'


@pytest.fixture
def collector() -> Iterator[OtelCollector]:
    with OtelCollector() as server:
        yield server


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, Outcome.RETRY) for status in (429, 502, 503, 504)),
        *((status, Outcome.REFUSED) for status in (301, 308, 400, 401, 403, 404, 408, 500, 501)),
        (413, Outcome.TOO_LARGE),
        (200, Outcome.ACCEPTED),
        (202, Outcome.ACCEPTED),
    ],
)
def test_status_decides_about_a_retry(status: int, outcome: Outcome):
    assert read_delivery(status, None, b"").outcome is outcome


@pytest.mark.parametrize(
    ("body", "rejected"),
    [
        (b'{"partialSuccess":{"rejectedSpans":"7","errorMessage":"x"}}', 7),
        (b'{"partialSuccess":{"rejectedSpans":7}}', 7),
        (b'{"partialSuccess":{}}', 0),
        (b'{"partialSuccess":null}', 0),
        (b'{"partialSuccess":{"rejectedSpans":"many"}}', 0),
        (b"{}", 0),
        (b"", 0),
        (b"ok", 0),
        (b"\x0a\x00", 0),
    ],
)
def test_partial_success_has_the_number_of_rejected_spans(body: bytes, rejected: int):
    delivery = read_delivery(200, None, body)
    assert (delivery.outcome, delivery.rejected_spans) == (Outcome.ACCEPTED, rejected)


def test_retry_after_is_a_number_or_a_date():
    assert parse_retry_after("7") == 7
    assert parse_retry_after(str(10**9)) == MAX_RETRY_AFTER_SECONDS
    soon = email.utils.formatdate(time.time() + 20, usegmt=True)
    assert 15 < (parse_retry_after(soon) or 0) <= 20
    assert parse_retry_after(email.utils.formatdate(time.time() - 20, usegmt=True)) == 0
    for text in (None, "", "soon", "-1", "1.5"):
        assert parse_retry_after(text) is None


def test_idle_connection_that_was_closed_is_opened_again(collector: OtelCollector):
    client = OtelClient(Otel(endpoint=collector.url))
    assert client.send(PAYLOAD).outcome is Outcome.ACCEPTED
    collector.close_port()
    collector.open()
    assert client.send(PAYLOAD).outcome is Outcome.ACCEPTED
    assert len(collector.received) == 2
    client.close()


def test_collector_that_is_away_is_tried_again():
    client = OtelClient(Otel(endpoint="http://127.0.0.1:9"))
    delivery = client.send(PAYLOAD)
    assert delivery.outcome is Outcome.RETRY
    assert "refused" in delivery.reason


def test_hanging_collector_ends_within_the_timeout(collector: OtelCollector):
    collector.replies = [CollectorReply(pause_seconds=3)]
    client = OtelClient(Otel(endpoint=collector.url, timeout_ms=200))
    started_at = time.monotonic()
    assert client.send(PAYLOAD).outcome is Outcome.RETRY
    assert time.monotonic() - started_at < 2
    client.close()


def test_response_that_is_not_http_is_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = OtelClient(Otel(endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", timeout_ms=500))
        server.settimeout(5)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"\x00\x00\x04 not http\r\n\r\n")

        from threading import Thread  # noqa: PLC0415 - only here

        thread = Thread(target=serve)
        thread.start()
        assert client.send(PAYLOAD).outcome is Outcome.RETRY
        thread.join()
        client.close()


def test_traces_endpoint_is_used_as_it_is(collector: OtelCollector):
    settings = Otel(endpoint="http://127.0.0.1:9", traces_endpoint=f"{collector.url}/custom/path")
    client = OtelClient(settings)
    assert client.send(PAYLOAD).outcome is Outcome.ACCEPTED
    assert collector.paths == ["/custom/path"]
    client.close()


def test_tls_trusts_the_configured_authority_and_shows_a_client_certificate(tmp_path: Path):
    (server, server_key), (own, own_key) = [(tmp_path / f"{name}.crt", tmp_path / f"{name}.key") for name in "ab"]
    write_certificate(server, server_key)
    write_certificate(own, own_key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(own))
    tls.load_cert_chain(server, server_key)
    tls.verify_mode = ssl.CERT_REQUIRED
    both = tmp_path / "both.pem"
    both.write_bytes(own.read_bytes() + own_key.read_bytes())
    complete = {"certificate": str(server), "client_certificate": str(own), "client_key": str(own_key)}
    with OtelCollector(tls=tls) as collector:

        def send(tls_ca: str = "", **options: str) -> Outcome:
            client = OtelClient(Otel(endpoint=collector.url, **options), tls_ca)
            outcome = client.send(PAYLOAD).outcome
            client.close()
            return outcome

        assert send(**complete) is Outcome.ACCEPTED
        assert send(certificate=str(server), client_certificate=str(both)) is Outcome.ACCEPTED
        assert send(str(server), client_certificate=str(both)) is Outcome.ACCEPTED
        # The file of authorities replaces `upstream.tls_ca`.
        assert send(str(server), **{**complete, "certificate": str(own)}) is Outcome.RETRY
        assert send(client_certificate=str(both)) is Outcome.RETRY
        assert send(certificate=str(server)) is Outcome.RETRY
        assert len(collector.received) == 3


def test_files_of_tls_that_cannot_be_used_are_errors(tmp_path: Path):
    certificate, key = tmp_path / "a.crt", tmp_path / "a.key"
    write_certificate(certificate, key)
    private = load_pem_private_key(key.read_bytes(), None)
    protection = BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
    for options in (
        {"certificate": str(key)},
        {"client_certificate": str(certificate)},
        {"client_certificate": str(certificate), "client_key": str(key)},
    ):
        with pytest.raises(OSError, match=r"."):
            OtelClient(Otel(endpoint="https://127.0.0.1:9", **options))


def test_large_responses_are_not_read_to_their_end(collector: OtelCollector):
    collector.replies = [CollectorReply(400, b"x" * 10_000_000), CollectorReply()]
    client = OtelClient(Otel(endpoint=collector.url))
    delivery = client.send(PAYLOAD)
    assert delivery.outcome is Outcome.REFUSED
    assert len(delivery.reason) < 300
    assert client.send(PAYLOAD).outcome is Outcome.ACCEPTED
    client.close()
