"""Records that the control process makes itself, such as those of batches that a provider ran."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import StartupError
from penstock.logs.spool_format import END
from penstock.logs.spool_writer import NewFrame

if TYPE_CHECKING:
    from penstock.logs.spool_writer import SpoolWriter

log = logging.getLogger("penstock")


class RecordId(msgspec.Struct, frozen=True):
    """Identifier in a record line."""

    id: uuid.UUID


class SpooledRecords:
    """Appends record lines to the spool of the control process."""

    def __init__(self, writer: SpoolWriter) -> None:
        """Stores the writer of the spool."""
        self._writer = writer
        self._is_failing = False

    def append_lines(self, lines: bytes, *, is_retry: bool = False) -> bool:
        """Appends record lines together. If `is_retry` is true, skips them if an earlier process has appended them.
        Returns true if they are in the spool.
        """
        frames = [
            NewFrame(END, msgspec.json.decode(line, type=RecordId).id.bytes, line)
            for line in lines.splitlines()
            if line
        ]
        try:
            # All lines of a call are appended together, so it is enough to look for the first one. The log worker does
            # not delete the segments of an earlier process for some minutes.
            if is_retry and frames and self._writer.contains(frames[0].record_id):
                return True
            self._writer.append(frames)
        except (OSError, StartupError) as error:
            if not self._is_failing:
                log.error("records cannot be written to the spool: %s", error)  # noqa: TRY400 - the message is enough without a traceback
            self._is_failing = True
            return False
        self._is_failing = False
        return True
