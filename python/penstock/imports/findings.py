"""Findings of an import: a status for every value of a source. A value that the importer does not read is reported as
unsupported, so nothing is dropped silently.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.imports.source import Path, Source

UNREAD_MESSAGE, EMPTY_MESSAGE = "is not known to the importer", "the source is empty"


class Status(StrEnum):
    """How a value of the source was imported. The methods of `Node` such as `report_exact` define the meanings."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    MANUAL = "manual"
    UNSUPPORTED = "unsupported"


# Rank of each status, in the order of `Status`. If several parts of an importer mark a value, the highest rank applies.
SEVERITY = {status: rank for rank, status in enumerate(Status)}


class ImportStatus(NamedTuple):
    """Status of one value with its explanation."""

    status: Status
    message: str


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the report. `path` is the position of the value in the source, and `line` its line number, if the
    source has lines.

    Messages never contain values of a source, except names of models and fields.
    """

    source: str
    path: str
    status: Status
    message: str
    line: int | None = None
    # Number of merged values. Values of a table's rows are merged if they have the same path, status and message.
    count: int = 1


class Ledger:
    """Status of every leaf of the sources. Leaves are strings, numbers, booleans, nulls, and empty lists and
    mappings.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        """Lists the leaves of the sources. None has a status yet."""
        self.sources = list(sources)
        self._statuses: list[dict[Path, ImportStatus | None]] = [
            dict.fromkeys(iter_leaves(source.tree)) for source in self.sources
        ]

    def roots(self) -> list[Node]:
        """Returns the root of each source."""
        return [Node(self, index, (), source.tree) for index, source in enumerate(self.sources)]

    def set_status(self, source: int, path: Path, value: object, new: ImportStatus) -> None:
        """Sets the status of all leaves at or below a path. A leaf keeps a more severe status that it already has."""
        statuses = self._statuses[source]
        for leaf in iter_leaves(value, path):
            before = statuses[leaf]
            if before is None or SEVERITY[before.status] < SEVERITY[new.status]:
                statuses[leaf] = new

    def findings(self) -> list[Finding]:
        """Returns a finding for every leaf, in the order of the sources. Rows of a table are merged."""
        merged: dict[tuple[str, str, Status, str], Finding] = {}
        for source, statuses in zip(self.sources, self._statuses, strict=True):
            for path, entry in statuses.items():
                status, message = entry or ImportStatus(Status.UNSUPPORTED, UNREAD_MESSAGE if path else EMPTY_MESSAGE)
                display_path = render_path(path, is_table=source.is_table)
                item = Finding(source.name, display_path, status, message, source.find_line(path))
                key = (item.source, item.path, item.status, item.message)
                before = merged.get(key)
                merged[key] = item if before is None else msgspec.structs.replace(before, count=before.count + 1)
        return list(merged.values())


class Node:
    """A value of a source with its path. A method that reads it as a certain type marks a value of another type as
    unsupported.
    """

    def __init__(self, ledger: Ledger, source: int, path: Path, value: object) -> None:
        """Stores the value, its path, and the index of its source."""
        self._ledger, self._source = ledger, source
        self.path = path
        # The type is `Any`, because a source may contain any value. The methods below check it.
        self.value: Any = value

    @property
    def name(self) -> str:
        """Name of the field, or number of the list item."""
        return str(self.path[-1]) if self.path else ""

    @property
    def is_table_row(self) -> bool:
        """True if the value comes from a database."""
        return self._ledger.sources[self._source].is_table

    @property
    def is_mapping(self) -> bool:
        """True if the value is a mapping."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """True if the value is a list."""
        return isinstance(self.value, list)

    @property
    def is_encrypted(self) -> bool:
        """True if this is a database row with values that could not be decrypted."""
        return self.path in self._ledger.sources[self._source].encrypted_rows

    def report_exact(self, message: str = "imported") -> None:
        """Marks all leaves at or below this value as imported exactly."""
        self._set_status(Status.EXACT, message)

    def report_approximate(self, message: str) -> None:
        """Marks all leaves as imported with a different effect, which the message describes."""
        self._set_status(Status.APPROXIMATE, message)

    def report_manual(self, message: str) -> None:
        """Marks all leaves as not imported; the message describes what the user can do instead."""
        self._set_status(Status.MANUAL, message)

    def report_unsupported(self, message: str) -> None:
        """Marks all leaves as not imported, because this gateway has no equivalent."""
        self._set_status(Status.UNSUPPORTED, message)

    def _set_status(self, status: Status, message: str) -> None:
        self._ledger.set_status(self._source, self.path, self.value, ImportStatus(status, message))

    def child(self, name: str | int) -> Node | None:
        """Returns a field of a mapping; `None` if it is missing or null. A null is marked as exact: it has no
        effect.
        """
        if not self.is_mapping or name not in self.value:
            return None
        child = Node(self._ledger, self._source, (*self.path, name), self.value[name])
        if child.value is None:
            child.report_exact("null has no effect")
            return None
        return child

    def item(self, index: int) -> Node | None:
        """Returns an item of a list; `None` if it is missing."""
        if not self.is_list or not 0 <= index < len(self.value):
            return None
        return Node(self._ledger, self._source, (*self.path, index), self.value[index])

    def fields(self) -> Iterator[Node]:
        """Yields the fields of a mapping that are not null; marks any other value as unsupported."""
        if not self.is_mapping:
            self.report_unsupported("must be a mapping")
            return
        for name in self.value:
            if child := self.child(name):
                yield child

    def items(self) -> Iterator[Node]:
        """Yields the items of a list; marks any other value as unsupported."""
        if not self.is_list:
            self.report_unsupported("must be a list")
            return
        for index, item in enumerate(self.value):
            yield Node(self._ledger, self._source, (*self.path, index), item)

    def text(self) -> str | None:
        """Returns a string that is not empty; marks any other value as unsupported."""
        if isinstance(self.value, str) and self.value:
            return self.value
        self.report_unsupported("must be a string that is not empty")
        return None

    def texts(self) -> list[str]:
        """Returns the strings of a list."""
        return [text for item in self.items() if (text := item.text())]

    def number(self) -> float | None:
        """Returns a number of at least 0. The number may be in a string. Marks any other value as unsupported."""
        value = self.value
        if isinstance(value, str):
            try:
                value = float(value) if "." in value else int(value)
            except ValueError:
                value = None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return value
        self.report_unsupported("must be a number of at least 0")
        return None

    def flag(self) -> bool | None:
        """Returns a boolean; marks any other value as unsupported."""
        if isinstance(self.value, bool):
            return self.value
        self.report_unsupported("must be true or false")
        return None


def iter_leaves(value: object, path: Path = ()) -> Iterator[Path]:
    """Yields the path of each leaf. An empty list or mapping is a leaf."""
    if isinstance(value, dict) and value:
        for name, item in cast("Mapping[str, object]", value).items():
            yield from iter_leaves(item, (*path, name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(cast("list[object]", value)):
            yield from iter_leaves(item, (*path, index))
    else:
        yield path


def render_path(path: Path, *, is_table: bool = False) -> str:
    """Renders a path, such as `model_list[0].litellm_params.model`. Rows of a table have no number."""
    text = ""
    for depth, part in enumerate(path):
        if isinstance(part, int):
            text += "[*]" if is_table and depth == 1 else f"[{part}]"
        elif part and all(item.isalnum() or item in "_-" for item in part):
            text += f".{part}" if text else part
        else:
            text += f"[{msgspec.json.encode(shorten(part)).decode()}]"
    return text
