"""URLs that tenants give to the control process: secret managers, key sets and others. None of them leads to this
machine, a private network or a metadata service, unless the operator trusts the host.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fetch import DestinationError, Fetcher, FetchRequest
from penstock.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# Other spellings of loopback and metadata addresses, and names that lead there.
FORBIDDEN_HOSTS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0",
    "localhost",
    "localhost.",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "metadata.google.internal",
    "10.0.0.1",
    "192.168.1.1",
    "100.64.0.1",
]


def fetcher(*trusted: str) -> Fetcher:
    settings = load_settings(None, {"TRUSTED_CUSTOM_HOSTS": ",".join(trusted)})
    return Fetcher(settings)


def fetch(fetcher: Fetcher, url: str, max_bytes: int = 10_000, seconds: float = 10.0) -> tuple[int, bytes]:
    response = asyncio.run(fetcher.send(FetchRequest(url=url, max_bytes=max_bytes, seconds=seconds)))
    return response.status, response.content


@contextmanager
def server() -> Iterator[tuple[int, list[str]]]:
    """Serves on loopback. Returns its port, and the paths that were requested."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            if self.path == "/redirect":
                self.send_response(302)
                self.send_header("location", f"http://127.0.0.1:{listening.server_port}/target")
                self.send_header("content-length", "0")
                self.end_headers()
                return
            size = 5000 if self.path == "/large" else 2
            self.send_response(200)
            self.send_header("content-length", str(size))
            self.end_headers()
            if self.path != "/silent":
                self.wfile.write(b"x" * size)
            else:
                is_over.wait(20)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
            pass

    is_over = threading.Event()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield listening.server_port, paths
    finally:
        is_over.set()
        listening.shutdown()
        listening.server_close()
        thread.join()


@pytest.mark.parametrize("host", FORBIDDEN_HOSTS)
def test_private_hosts_are_not_connected(host: str):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        with pytest.raises(DestinationError, match=r"not allowed|cannot be resolved|malformed"):
            fetch(fetcher(), f"http://{host}:{silent.getsockname()[1]}/latest/meta-data/")
        with pytest.raises(BlockingIOError):
            silent.accept()


def answer_lookups(monkeypatch: pytest.MonkeyPatch, name: str, *answers: list[str]) -> list[str]:
    """Replaces DNS lookups of a name by these results, in order; the last one repeats. Returns the list of looked-up
    names.
    """
    lookups: list[str] = []
    original = socket.getaddrinfo

    def look_up(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host != name:
            return original(host, port, *args, **kwargs)
        lookups.append(host)
        addresses = answers[min(len(lookups), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return lookups


def test_only_the_checked_address_is_connected(monkeypatch: pytest.MonkeyPatch):
    with server() as (port, paths), socket.create_server(("127.0.0.2", port)) as other:
        other.setblocking(False)
        # A second lookup before connecting would return the other address.
        lookups = answer_lookups(monkeypatch, "rebind.example", ["127.0.0.1"], ["127.0.0.2"])
        assert fetch(fetcher("rebind.example"), f"http://rebind.example:{port}/") == (200, b"xx")
        assert (lookups, paths) == (["rebind.example"], ["/"])
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("private", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_a_name_with_one_private_address_is_not_connected(monkeypatch: pytest.MonkeyPatch, private: str):
    for addresses in (["1.1.1.1", private], [private, "1.1.1.1"]):
        answer_lookups(monkeypatch, "rebind.example", addresses)
        with pytest.raises(DestinationError, match="not allowed"):
            fetch(fetcher(), "http://rebind.example/")


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal"])
def test_metadata_services_cannot_be_trusted(host: str):
    with pytest.raises(DestinationError, match=r"not allowed|cannot be resolved"):
        fetch(fetcher(host), f"http://{host}/")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.com/", "http://", "//x", "gopher://127.0.0.1/"])
def test_other_schemes_are_rejected(url: str):
    with pytest.raises(DestinationError):
        fetch(fetcher("127.0.0.1"), url)


def test_trusted_host_is_fetched_without_following_redirects():
    with server() as (port, paths):
        trusting = fetcher("127.0.0.1")
        assert fetch(trusting, f"http://127.0.0.1:{port}/") == (200, b"xx")
        assert fetch(trusting, f"http://127.0.0.1:{port}/redirect") == (302, b"")
        assert paths == ["/", "/redirect"]


def test_response_is_bounded_in_bytes_and_time():
    with server() as (port, _):
        trusting = fetcher("127.0.0.1")
        with pytest.raises(ValueError, match="large"):
            fetch(trusting, f"http://127.0.0.1:{port}/large", max_bytes=4000)
        with pytest.raises(TimeoutError):
            fetch(trusting, f"http://127.0.0.1:{port}/silent", seconds=0.3)
