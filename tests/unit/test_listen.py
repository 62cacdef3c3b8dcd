"""Listening sockets: what is bound, and the errors of what cannot be bound."""

from __future__ import annotations

import select
import socket
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from penstock import listen
from penstock.errors import SettingsError, StartupError
from penstock.settings import Server, Settings, load_settings
from penstock.settings.monitoring import Metrics

ALL_INTERFACES = "0.0.0.0"


def make_settings(**options: object) -> Settings:
    return Settings(server=msgspec.structs.replace(Server(port=0, workers=1), **options))


def close_all(sockets: list[socket.socket]) -> None:
    for item in sockets:
        item.close()


def test_port_in_use_is_reported_in_one_line():
    used = listen.open_listeners(make_settings())
    port = used[0].getsockname()[1]
    for workers in (1, 2):
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"):
            listen.open_listeners(make_settings(port=port, workers=workers))
    close_all(used)


def test_each_worker_has_its_own_socket_on_the_port():
    sockets = listen.open_listeners(make_settings(workers=3))
    assert len({socket.getsockname() for socket in sockets}) == 1
    assert len(sockets) == 3
    close_all(sockets)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own names")
def test_tcp_keepalive_detects_vanished_clients():
    for workers in (1, 2):
        sockets = listen.open_listeners(make_settings(workers=workers))
        client = socket.create_connection(sockets[0].getsockname(), timeout=1)
        ready, _, _ = select.select(sockets, [], [], 1)
        accepted, _ = ready[0].accept()
        request = {option: accepted.getsockopt(socket.IPPROTO_TCP, option) for option in listen.TCP_KEEPALIVE_OPTIONS}
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert request == {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
        close_all([accepted, client, *sockets])


def test_metrics_have_a_port_of_their_own_only_if_it_is_set():
    assert listen.open_metrics_listener(Settings(metrics=Metrics(enabled=True))) is None
    assert listen.open_metrics_listener(Settings(metrics=Metrics(listen="127.0.0.1:0"))) is None
    first = listen.open_metrics_listener(Settings(metrics=Metrics(enabled=True, listen="[::1]:0")))
    assert first
    address = f"[::1]:{first.getsockname()[1]}"
    with first, pytest.raises(StartupError) as caught:
        listen.open_metrics_listener(Settings(metrics=Metrics(enabled=True, listen=address)))
    assert str(caught.value) == f"cannot listen on {address} (metrics.listen): address already in use"


def test_connections_are_queued_before_accept():
    sockets = listen.open_listeners(make_settings())
    with socket.create_connection(sockets[0].getsockname(), timeout=1):
        pass
    close_all(sockets)


def test_run_dir_is_private_and_removed_with_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = make_settings(run_dir=listen.make_run_dir(make_settings()))
    folder = Path(settings.server.run_dir)
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    listen.open_private_socket(settings.control_socket).close()
    assert stat.S_IMODE(Path(settings.control_socket).stat().st_mode) == 0o600
    listen.open_private_socket(settings.control_socket).close()
    listen.remove_run_dir(settings)
    assert not folder.exists()


def test_run_dir_with_other_files_is_not_removed(tmp_path: Path):
    settings = make_settings(run_dir=str(tmp_path))
    assert listen.make_run_dir(settings) == str(tmp_path)
    listen.open_private_socket(settings.control_socket).close()
    (tmp_path / "mine").touch()
    listen.remove_run_dir(settings)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_reports_a_socket_path_that_is_too_long(tmp_path: Path):
    with pytest.raises(StartupError, match="at most 107 characters"):
        listen.open_private_socket(str(tmp_path / ("x" * 200) / "control.sock"))


@pytest.mark.parametrize(
    ("host", "keys", "required", "refused"),
    [
        ("127.0.0.1", 0, None, False),
        ("localhost", 0, None, False),
        ("::1", 0, None, False),
        (ALL_INTERFACES, 0, None, True),
        ("::", 0, None, True),
        ("10.0.0.1", 0, None, True),
        (ALL_INTERFACES, 1, None, False),
        (ALL_INTERFACES, 0, True, False),
        (ALL_INTERFACES, 0, False, False),
    ],
)
def test_serves_only_this_machine_without_a_key(host: str, keys: int, required: bool | None, refused: bool):
    settings = load_settings(None, {}, {"server.host": host, "security.require_key": required})
    if not refused:
        listen.check_open_host(settings, keys)
        return
    with pytest.raises(SettingsError) as caught:
        listen.check_open_host(settings, keys)
    content = str(caught.value)
    assert all(way in content for way in ("[[keys]]", "--host 127.0.0.1", "PENSTOCK_SECURITY_REQUIRE_KEY=false"))
