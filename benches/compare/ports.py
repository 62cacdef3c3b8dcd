"""Ports: finds a free one and checks which process listens on it."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

LISTEN_STATE = "0A"
# Below the ephemeral port range, which outgoing connections use.
_candidate_ports = itertools.cycle(range(21000, 29000))


def find_free_port() -> int:
    """Returns a port on which nothing listens; each call returns a different port."""
    for _ in range(8000):
        port = next(_candidate_ports)
        if not listener_inodes(port) and _can_bind(port):
            return port
    message = "no free port between 21000 and 29000"
    raise SystemExit(message)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listener_inodes(port: int) -> set[str]:
    """Returns the inodes of the sockets that listen on a port."""
    actual = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                actual.add(fields[9])
    return actual


def is_owned_by(port: int, pids: set[int]) -> bool:
    """Returns true if the port has listeners and all of them belong to these processes."""
    expected = listener_inodes(port)
    owned_inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    return bool(expected) and expected <= owned_inodes


def _socket_inodes(pid: int) -> set[str]:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return set()
    links = (_read_link(path) for path in descriptors)
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
