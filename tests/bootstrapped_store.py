"""Template databases with an organisation and its admin key. Each kind is created once and copied for each test."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres import Postgres

ADMIN_KEY = "admin-key-of-the-tests-0123456789"
# Long database timeouts for a busy machine, for tests that do not depend on these timeouts.
PATIENT_STORE = Store(acquire_ms=20_000, statement_ms=40_000)


class DatabaseTemplates:
    """Template databases; tests write only to copies."""

    def __init__(self, folder: Path, server: Callable[[], Postgres]) -> None:
        self._folder = folder
        self._server = server
        self._names: dict[int, str] = {}

    def copy(self, kind: str, folder: Path, number: int = 0) -> str:
        """Copies a template and returns the copy's URL. Another `number` means another organisation."""
        if kind == "sqlite":
            original = self._folder / f"founded-{number}.db"
            if not original.exists():
                create_database(f"sqlite:///{original}")
            shutil.copy(original, folder / "penstock.db")
            return f"sqlite:///{folder}/penstock.db"
        server = self._server()
        if number not in self._names:
            url = server.create_database()
            create_database(url)
            self._names[number] = url.rpartition("@/")[2].partition("?")[0]
        return server.create_database(self._names[number])


def create_database(url: str) -> None:
    """Migrates the database and creates the organisation, as an operator does once."""

    async def run() -> None:
        database = Database(Store(), Secret(url))
        await migrate(database)
        await bootstrap_organisation(database, Secret(ADMIN_KEY))
        await database.close()

    asyncio.run(run())
