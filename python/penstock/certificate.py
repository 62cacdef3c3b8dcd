"""Certificate of the gateway in memory. Restarted workers get the last valid pair of certificate and key, even while
its files are being replaced.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING

from penstock.errors import StartupError
from penstock.settings.server_tls import MAX_PEM_BYTES, describe_pair_error

if TYPE_CHECKING:
    from penstock.settings import Server

log = logging.getLogger("penstock")

# Interval at which the supervisor checks whether the files have changed.
CHECK_SECONDS = 2.0


class CertificateFiles:
    """Certificate and key that the settings name. Their contents are copied to anonymous memory files, which forked
    workers read.
    """

    def __init__(self, server: Server) -> None:
        """Reads the pair. Raises StartupError if it cannot be used."""
        self._files = (server.tls_certificate_file, server.tls_key_file)
        self._stamps = self._read_stamps()
        self._previous: tuple[int, ...] = ()
        self._copies = self._copy_files()
        if subject := describe_pair_error(*self.paths):
            raise StartupError(subject)

    @property
    def paths(self) -> tuple[str, str]:
        """Paths of certificate and key, valid in this process and its forked children."""
        certificate, key = self._copies
        return f"/proc/self/fd/{certificate}", f"/proc/self/fd/{key}"

    def reload_if_changed(self) -> bool:
        """Reads the files again if they changed. Returns true if there is a new valid pair. An invalid one is logged
        once and not used.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        # The files themselves are checked, not their copies, so that messages contain the names of the files.
        if subject := describe_pair_error(*self._files):
            log.error("the certificate was not reloaded: %s; the previous one stays in use", subject)
            return False
        copies = self._copy_files()
        if _read_all(copies) == _read_all(self._copies):
            _close_all(copies)
            return False
        _close_all(self._previous)
        self._previous, self._copies = self._copies, copies
        return True

    def revert(self) -> None:
        """Restores the previous certificate and key."""
        if self._previous:
            _close_all(self._copies)
            self._copies, self._previous = self._previous, ()

    def _read_stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_read_stamp, self._files))

    def _copy_files(self) -> tuple[int, int]:
        certificate, key = self._files
        return _copy_file(certificate), _copy_file(key)


def create_client_context(certificate_file: str) -> ssl.SSLContext:
    """Returns the TLS settings of a program that connects to the gateway of the same machine. It accepts only the
    gateway's own certificate, whatever name it is for.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate_file)
    # The file has the certificate itself, usually without the root that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _read_stamp(file: str) -> tuple[int, int, int] | None:
    try:
        file_status = os.stat(file)
    except OSError:
        return None
    return file_status.st_ino, file_status.st_size, file_status.st_mtime_ns


def _copy_file(file: str) -> int:
    with open(file, "rb") as opened:
        text = opened.read(MAX_PEM_BYTES)
    copy = os.memfd_create("certificate")
    os.write(copy, text)
    return copy


def _read_all(copies: tuple[int, ...]) -> list[bytes]:
    return [os.pread(copy, MAX_PEM_BYTES, 0) for copy in copies]


def _close_all(copies: tuple[int, ...]) -> None:
    for copy in copies:
        os.close(copy)
