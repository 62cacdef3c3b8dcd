"""Guardrails in the snapshot, in sections. They are encoded here and not by the database, which cannot decrypt the
credentials of their checks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import or_, select

from penstock.errors import DecryptionError
from penstock.guardrails.documents import ACTIVE, to_engine_document
from penstock.secrets import config_credentials, partner_credentials
from penstock.secrets.mappings import may_use_secret
from penstock.snapshot.sectioned_table import ROW_SKIPPED, CheckedTable
from penstock.store.guardrail_tables import guardrails
from penstock.store.guardrail_tables import partner_credentials as partner_table
from penstock.store.tables import workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, RowMapping, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.secrets.vault import Vault
    from penstock.snapshot.sectioned_table import SectionRows

log = logging.getLogger("penstock")


class GuardrailTable(CheckedTable):
    """The table of guardrails, each with its newest version."""

    def __init__(self, vault: Vault) -> None:
        """Prepares the table. `refresh` reads the sections."""
        super().__init__(guardrails, _select_active)
        self._vault = vault

    async def _query_rows(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        query = self._rows(connection.dialect.name == "postgresql").add_columns(self._digits.label("digits"))
        rows = (await connection.execute(query.where(*conditions).order_by(guardrails.c.id))).mappings().all()
        partners = _PartnerCredentials(self._vault, connection, await _read_partner_rows(connection, rows))
        sections: dict[str, list[bytes]] = {}
        for row in rows:
            try:
                encoded = msgspec.json.encode(await self._to_engine_row(connection, row, partners))
            except DecryptionError as error:
                # A single invalid row must not prevent publishing, so it is skipped.
                log.warning(ROW_SKIPPED, "guardrail", row["slug"], error)
                continue
            sections.setdefault(row["digits"], []).append(encoded)
        return {digits: (b",".join(rows), len(rows), None) for digits, rows in sections.items()}

    async def _to_engine_row(
        self, connection: AsyncConnection, row: RowMapping, partners: _PartnerCredentials
    ) -> dict[str, Any]:
        checks = row["checks"]
        if row["sealed"]:
            secrets = config_credentials.decode_secrets(await self._vault.open(connection, row["sealed"], row["id"]))
            checks = config_credentials.join_credentials(config_credentials.SplitDocument(checks, secrets))
        checks = partner_credentials.fill_credentials(checks, await partners.open_shared(row, checks))
        return {
            "id": row["id"],
            "slug": row["slug"],
            "workspace": row["workspace_id"],
            "organisation": row["organisation_id"],
            "version": row["version_id"],
            **to_engine_document(checks, row["actions"]),
        }


class _PartnerCredentials:
    """Credentials of partners during one reading of sections. Each is decrypted once, for all guardrails that use it."""

    def __init__(
        self, vault: Vault, connection: AsyncConnection, rows: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> None:
        self._vault, self._connection, self._rows = vault, connection, rows
        self._opened: dict[str, dict[str, Any]] = {}

    async def open_shared(self, guardrail: RowMapping, checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the credentials that the checks of a guardrail need and may use, by partner."""
        shared: dict[str, Any] = {}
        for partner in partner_credentials.find_partners(checks):
            row = self._rows.get((guardrail["organisation_id"], partner))
            if row is None or not may_use_secret(row, guardrail["workspace_id"]):
                continue
            if row["id"] not in self._opened:
                opened = await self._vault.open(self._connection, row["sealed"], row["id"])
                self._opened[row["id"]] = partner_credentials.open_parameters(row, opened)
            shared[partner] = self._opened[row["id"]]
        return shared


async def _read_partner_rows(
    connection: AsyncConnection, rows: Sequence[RowMapping]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the stored credentials of the partners that guardrails need, by organisation and partner."""
    needed = {partner for row in rows for partner in partner_credentials.find_partners(row["checks"])}
    if not needed:
        return {}
    query = select(partner_table).where(partner_table.c.slug.in_(sorted(needed)))
    partner_rows: list[dict[str, Any]] = [dict(row) for row in (await connection.execute(query)).mappings()]
    return {(row["organisation_id"], row["slug"]): row for row in partner_rows}


def _select_active(_is_postgres: bool) -> Select[*tuple[Any, ...]]:
    """Selects the active guardrails of the organisations and of active workspaces."""
    is_usable = or_(guardrails.c.workspace_id.is_(None), workspaces.c.status == "active")
    joined = select(guardrails).outerjoin(workspaces, workspaces.c.id == guardrails.c.workspace_id)
    return joined.where(guardrails.c.status == ACTIVE, is_usable)
