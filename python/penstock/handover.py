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

# Maximum time in which streams and WebSockets of replaced workers may continue.
RETIRE_SECONDS = 3600.0
# Time for open connections of a replaced worker to finish their TLS handshake and send a request. The server drops
# handshakes when it stops.
HANDSHAKE_SECONDS = 10.0
REPORT = struct.Struct("=H")
MAX_REPORTS_BYTES = 4096


class WorkerHandover:
    """Certificate of the edge workers, and the workers that are being replaced. An old worker stops accepting
    connections once its successor accepts them, so no connection is refused. A new worker reports over a pipe that it
    has started.
    """

    def __init__(self, server: Server) -> None:
        """Reads the certificate. Raises StartupError if it cannot be used."""
        self.certificate = CertificateFiles(server)
        self.minimum_version = server.tls_min_version
        self.reports, self._reporter = os.pipe()
        # Old workers by position, until the new worker at this position has started.
        self._outgoing: dict[int, ChildProcess] = {}
        self._retiring: list[ChildProcess] = []

    @property
    def replaced_workers(self) -> list[ChildProcess]:
        """Replaced workers that still run."""
        return [*self._outgoing.values(), *self._retiring]

    @property
    def processes(self) -> list[Process]:
        """Processes of the replaced workers that still run."""
        return [child.process for child in self.replaced_workers if child.process]

    def report_start(self, position: int) -> None:
        """Reports to the supervisor that the worker at this position accepts connections. Called in the worker's
        process.
        """
        os.write(self._reporter, REPORT.pack(position))

    def read_starts(self) -> None:
        """Reads which new workers have started. Makes each of their predecessors finish its requests and exit."""
        for (position,) in REPORT.iter_unpack(os.read(self.reports, MAX_REPORTS_BYTES)):
            if old := self._outgoing.pop(position, None):
                old.send_signal(signal.SIGUSR2)
                self._retiring.append(old)

    def replace_if_changed(self, edges: Sequence[ChildProcess]) -> None:
        """Replaces all running workers if there is a new valid certificate."""
        self._retiring = [child for child in self._retiring if child.is_alive or child.join()]
        if self._outgoing or not self.certificate.reload_if_changed():
            return
        log.info("the certificate has changed: new workers use it, and the previous ones finish their requests")
        for position, child in enumerate(edges, start=1):
            # A worker that has just exited needs no replacement: its restart loads the new certificate.
            if child.is_alive:
                self._outgoing[position] = copy(child)
                used = {item.number for item in (*edges, *self.replaced_workers)}
                child.number = next(number for number in range(1, len(used) + 2) if number not in used)
                child.start()

    def take_back(self, position: int, child: ChildProcess) -> bool:
        """Puts the old worker back in its position if the new one could not start. Returns false if there is no old
        worker that still runs.
        """
        old = self._outgoing.pop(position, None)
        if old is None or not old.is_alive:
            return False
        self.certificate.revert()
        child.process, child.number = old.process, old.number
        log.error("no worker can start with the new certificate; the previous one stays in use")
        return True
