"""Full-text index beside DuckDB: one SQLite FTS5 file per day, without the texts and without positions of words."""

from __future__ import annotations

import datetime as dt
import hashlib
import sqlite3
import time
import uuid
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.logs.body_text import split_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Every document contains a word that identifies its organisation, so that a search reads only that organisation.
TENANT_WORD_CHARS = 24
MAX_OPEN_DAYS = 4
SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', detail='none', tokenize='ascii');
"""
# Number of SQLite virtual machine instructions between two checks of the deadline.
INSTRUCTIONS_PER_CHECK = 10_000


class TextIndex:
    """Full-text index of bodies, by day."""

    def __init__(self, folder: Path) -> None:
        """Stores the folder, which `open` creates."""
        self._folder = folder
        self._days: dict[dt.date, sqlite3.Connection] = {}

    def open(self) -> None:
        """Creates the folder."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def close(self) -> None:
        """Closes all files."""
        for connection in self._days.values():
            connection.close()
        self._days.clear()

    def add(self, documents: Iterable[tuple[uuid.UUID, str, dt.date, str]]) -> None:
        """Adds documents, each with its identifier, organisation, day and text. Ignores documents that the index
        already has.
        """
        by_day: dict[dt.date, list[tuple[uuid.UUID, str, str]]] = {}
        for identifier, organisation, day, text in documents:
            by_day.setdefault(day, []).append((identifier, organisation, text))
        for day, items in by_day.items():
            with self._open_day(day) as connection:
                for identifier, organisation, text in items:
                    added = connection.execute("INSERT OR IGNORE INTO documents(id) VALUES (?)", (identifier.bytes,))
                    if added.rowcount:
                        words = " ".join([_tenant_word(organisation), *split_words(text)])
                        connection.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (added.lastrowid, words))

    def search(
        self,
        words: list[str],
        organisation: str,
        days: tuple[dt.date | None, dt.date | None],
        limit: int,
        seconds: float,
    ) -> list[uuid.UUID]:
        """Returns records that contain all words, the newest days first. Raises `TimeoutError`."""
        pattern = " AND ".join(f'"{word}"' for word in (_tenant_word(organisation), *words))
        deadline = time.monotonic() + seconds
        identifiers: list[uuid.UUID] = []
        for day, path in sorted(self._list_days(), reverse=True):
            if (days[0] and day < days[0]) or (days[1] and day > days[1]):
                continue
            try:
                identifiers += _search_file(path, pattern, limit - len(identifiers), deadline)
            except sqlite3.OperationalError as error:
                if time.monotonic() >= deadline:
                    raise TimeoutError from error
                raise
            if len(identifiers) >= limit:
                break
        return identifiers

    def drop_before(self, day: dt.date) -> None:
        """Deletes the files of earlier days."""
        for old, path in self._list_days():
            if old < day:
                if connection := self._days.pop(old, None):
                    connection.close()
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)

    def _open_day(self, day: dt.date) -> sqlite3.Connection:
        connection = self._days.get(day)
        if connection is None:
            if len(self._days) >= MAX_OPEN_DAYS:
                self._days.pop(next(iter(self._days))).close()
            connection = sqlite3.connect(self._folder / f"{day}.sqlite", check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(SCHEMA)
            self._days[day] = connection
        return connection

    def _list_days(self) -> list[tuple[dt.date, Path]]:
        return [(dt.date.fromisoformat(path.stem), path) for path in self._folder.glob("*.sqlite")]


@lru_cache(maxsize=1024)
def _tenant_word(organisation: str) -> str:
    return "tenant" + hashlib.sha256(organisation.encode()).hexdigest()[:TENANT_WORD_CHARS]


def _search_file(path: Path, pattern: str, limit: int, deadline: float) -> list[uuid.UUID]:
    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(lambda: int(time.monotonic() >= deadline), INSTRUCTIONS_PER_CHECK)
        rows = connection.execute(
            "SELECT id FROM words JOIN documents ON number = words.rowid WHERE words MATCH ? "
            "ORDER BY words.rowid DESC LIMIT ?",
            (pattern, limit),
        )
        return [uuid.UUID(bytes=row[0]) for row in rows]
