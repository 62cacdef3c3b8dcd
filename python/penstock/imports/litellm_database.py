"""Reads the rows of LiteLLM's PostgreSQL database as a `Source`, in one read-only transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from penstock.errors import SettingsError
from penstock.extras import find_missing_extra
from penstock.imports.litellm import CREDENTIAL_TABLE, MODEL_TABLE
from penstock.imports.litellm_keys import (
    BUDGET_TABLE,
    END_USER_TABLE,
    MANUAL_TABLES,
    MEMBERSHIP_TABLE,
    TEAM_TABLE,
    TOKEN_TABLE,
    USER_TABLE,
)
from penstock.imports.litellm_secrets import Decryptor, LegacyEncryptionError
from penstock.imports.source import Path, Source

# Column with encrypted values of each table that has one.
ENCRYPTED_COLUMNS = {MODEL_TABLE: "litellm_params", CREDENTIAL_TABLE: "credential_values"}
TABLES = (
    MODEL_TABLE,
    CREDENTIAL_TABLE,
    TEAM_TABLE,
    USER_TABLE,
    TOKEN_TABLE,
    BUDGET_TABLE,
    MEMBERSHIP_TABLE,
    END_USER_TABLE,
    *MANUAL_TABLES,
)
MAX_ROWS = 500_000
CONNECT_TIMEOUT_SECONDS, STATEMENT_TIMEOUT_MS = 15, 120_000
SOURCE_NAME = "database"


def read_database(url: str, salt_key: str | None, variable: str | None) -> Source:
    """Returns the rows of `TABLES`. Raises `SettingsError` if the database cannot be read, or the salt key is wrong."""
    if subject := find_missing_extra("postgres"):
        message = f"--database {subject}"
        raise SettingsError(message)
    try:
        tables = asyncio.run(_read_tables(_async_url(url)))
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        # Messages of the driver may contain the password of the URL.
        raise SettingsError(f"cannot read the database: {_describe_error(error)}; check --database") from None
    decryptor = Decryptor(salt_key, variable)
    encrypted: set[Path] = set()
    for table, column in ENCRYPTED_COLUMNS.items():
        for index, row in enumerate(tables.get(table, ())):
            if isinstance(row.get(column), dict):
                try:
                    row[column] = decryptor.decrypt_table(row[column])
                except LegacyEncryptionError:
                    encrypted.add((table, index))
    return Source(SOURCE_NAME, tables, is_table=True, encrypted_rows=frozenset(encrypted))


def _async_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() not in {"postgres", "postgresql"}:
        message = "--database must be the URL of a PostgreSQL database, such as postgresql://user@host/litellm"
        raise SettingsError(message)
    # Other parameters of the URL are for Prisma, such as `schema` and `connection_limit`.
    query = {name: value for name, value in parsed.query.items() if name in {"host", "port"}}
    if mode := parsed.query.get("sslmode"):
        query["ssl"] = mode
    return parsed.set(drivername="postgresql+asyncpg", query=query)


async def _read_tables(url: URL) -> dict[str, list[dict[str, Any]]]:
    settings = {"statement_timeout": str(STATEMENT_TIMEOUT_MS), "default_transaction_read_only": "on"}
    engine = create_async_engine(
        url, connect_args={"timeout": CONNECT_TIMEOUT_SECONDS, "server_settings": settings}, hide_parameters=True
    )
    try:
        async with engine.execution_options(isolation_level="REPEATABLE READ").connect() as connection:
            result = {table: await _read_rows(connection, table) for table in TABLES}
    finally:
        await engine.dispose()
    if not any(result.values()):
        message = "the database has no rows of LiteLLM; check the name of the database in --database"
        raise SettingsError(message)
    return {table: rows for table, rows in result.items() if rows}


async def _read_rows(connection: AsyncConnection, table: str) -> list[dict[str, Any]]:
    """Returns the rows of a table without null columns; none if the table is missing, as in older versions."""
    exists = await connection.scalar(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": f'"{table}"'})
    if not exists:
        return []
    # The name of the table is one of the constants above.
    query = f'SELECT jsonb_strip_nulls(to_jsonb(one))::text FROM "{table}" one LIMIT {MAX_ROWS + 1}'  # noqa: S608
    rows = sorted((await connection.scalars(text(query))).all())
    if len(rows) > MAX_ROWS:
        raise SettingsError(f"{table} has more than {MAX_ROWS} rows, which is the most that can be imported")
    return [msgspec.json.decode(row) for row in rows]


def _describe_error(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return type(getattr(cause, "__cause__", None) or cause).__name__
