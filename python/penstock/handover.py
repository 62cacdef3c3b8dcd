"""Replaces running edge workers by new ones when the certificate changes. The old ones finish their requests first."""

from __future__ import annotations

import logging
import os
import signal
import struct
from copy import copy
from typing import TYPE_CHECKING

from penstock.certificate import CertificateFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing import Process

    from penstock.child_process import ChildProcess
    from penstock.settings import Server

log = logging.getLogger("penstock")

# Time that streams and WebSockets of replaced workers may take to end.
RETIRE_SECONDS = 3600.0
# Time that connections get for their TLS handshake and first request. The server drops handshakes when it stops.
HANDSHAKE_SECONDS = 10.0
REPORT = struct.Struct("=H")
MAX_REPORTS_BYTES = 4096


class WorkerHandover:
    """Certificate of the edge workers, and the workers that others replace. A worker stops accepting connections once
    its successor accepts them, so no connection is refused. Workers report over a pipe that they are started.
    """

    def __init__(self, server: Server) -> None:
        """Reads the certificate. Raises StartupError if it cannot be used."""
        self.certificate = CertificateFiles(server)
        self.minimum_version = server.tls_min_version
        self.reports, self._reporter = os.pipe()
        # By position: the old worker of each new one that has not started yet.
        self._outgoing: dict[int, ChildProcess] = {}
        self._retiring: list[ChildProcess] = []

    @property
    def leaving(self) -> list[ChildProcess]:
        """Replaced workers that still run."""
        return [*self._outgoing.values(), *self._retiring]

    @property
    def processes(self) -> list[Process]:
        """Processes of these workers."""
        return [child.process for child in self.leaving if child.process]

    def report_start(self, position: int) -> None:
        """Tells the supervisor that the worker of this position accepts connections. Called in the worker."""
        os.write(self._reporter, REPORT.pack(position))

    def read_starts(self) -> None:
        """Makes the predecessors of workers that have started finish their requests and exit."""
        for (position,) in REPORT.iter_unpack(os.read(self.reports, MAX_REPORTS_BYTES)):
            if old := self._outgoing.pop(position, None):
                old.send_signal(signal.SIGUSR2)
                self._retiring.append(old)

    def replace_if_changed(self, edges: Sequence[ChildProcess]) -> None:
        """Starts a new worker for each old one if there is a new valid certificate."""
        self._retiring = [child for child in self._retiring if child.is_alive or child.join()]
        if self._outgoing or not self.certificate.reload_if_changed():
            return
        log.info("the certificate has changed: new workers use it, and the previous ones finish their requests")
        for position, child in enumerate(edges, start=1):
            # A worker that has just exited restarts with the new certificate.
            if child.is_alive:
                self._outgoing[position] = copy(child)
                used = {item.number for item in (*edges, *self.leaving)}
                child.number = next(number for number in range(1, len(used) + 2) if number not in used)
                child.start()

    def take_back(self, position: int, child: ChildProcess) -> bool:
        """Keeps the old worker if the new one could not start. Returns false if no worker was replaced."""
        old = self._outgoing.pop(position, None)
        if old is None or not old.is_alive:
            return False
        self.certificate.revert()
        child.process, child.number = old.process, old.number
        log.error("no worker can start with the new certificate; the previous one stays in use")
        return True
