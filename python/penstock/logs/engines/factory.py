"""Chooses the engine of the log store by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.logs.engines.protocol import LogEngine


def create_engine(url: str, folder: Path, node: str, *, keep_days: int = 365, keep_bodies_days: int = 30) -> LogEngine:
    """Returns the engine for `log_store.url`, not yet open. Raises `ValueError` for a URL that is not valid."""
    # Only the module of the engine in use is imported.
    if url == "duckdb:":
        from penstock.logs.engines.duckdb import DuckDbEngine  # noqa: PLC0415

        return DuckDbEngine(folder)
    from penstock.logs.engines.clickhouse import ClickHouseEngine  # noqa: PLC0415

    return ClickHouseEngine(url, node, keep_days=keep_days, keep_bodies_days=keep_bodies_days)
