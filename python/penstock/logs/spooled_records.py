"""Records that the control process makes itself, such as those of batches that a provider ran."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import StartupError
from penstock.logs.spool_format import END
from penstock.logs.spool_writer import NewFrame
from penstock.records import RecordFile

if TYPE_CHECKING:
    from penstock.logs.spool_writer import SpoolWriter
    from penstock.settings import Records

log = logging.getLogger("penstock")


class RecordId(msgspec.Struct, frozen=True):
    """Identifier in a record line."""

    id: uuid.UUID


class SpooledRecords:
    """Appends record lines to the spool of the control process."""

    def __init__(self, settings: Records, writer: SpoolWriter) -> None:
        """Takes the spool, and the settings of the record file into which the log worker writes the records."""
        self._writer = writer
        self._file = RecordFile(settings)
        self._is_failing = False

    def append_lines(self, lines: bytes, *, again: bool = False) -> bool:
        """Appends record lines together. If `again` is true, skips them if an earlier process has appended them.
        Returns true if they are in the spool.
        """
        frames = [
            NewFrame(END, msgspec.json.decode(line, type=RecordId).id.bytes, line)
            for line in lines.splitlines()
            if line
        ]
        try:
            # Lines of one call are in the spool together, so the first one stands for all. Once the log worker deleted
            # the segment, they are in the record file.
            if again and frames and (self._writer.contains(frames[0].record_id) or self._is_in_file(frames[0])):
                return True
            self._writer.append(frames)
        except (OSError, StartupError) as error:
            if not self._is_failing:
                log.error("records cannot be written to the spool: %s", error)  # noqa: TRY400 - says it all
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _is_in_file(self, frame: NewFrame) -> bool:
        name = str(uuid.UUID(bytes=frame.record_id))
        return bool(self._file.find_line(f'"{name}"'.encode()))
