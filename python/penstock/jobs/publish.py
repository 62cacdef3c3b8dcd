"""Publishes what is in the store: gathered when something changed, checked, swapped whole, and kept for the next start."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import or_, select

from penstock import engine
from penstock.errors import PenstockError
from penstock.kit.record import now
from penstock.snapshot import Stored, gather_good
from penstock.store.tables import (
    api_keys,
    changes,
    configs,
    integrations,
    key_digests,
    organisations,
    providers,
    workspaces,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.secrets import Master, Vault
    from penstock.kit.tokens import Tokens
    from penstock.settings import Settings
    from penstock.snapshot import Published
    from penstock.store.database import Database

log = logging.getLogger("penstock")

# How soon a change that another node made is noticed.
INTERVAL = 1.0
KEPT_FILE, PURPOSE = "penstock.snapshot", "snapshot"
# Between two changes that come one upon the other.
BREATH = 0.02


class Kept:
    """The last good rows of the store, sealed, in a file: with them a node starts while the database is away."""

    def __init__(self, settings: Settings, master: Master) -> None:
        """Know the place."""
        self._path = settings.beside(KEPT_FILE)
        self._master = master

    def keep(self, stored: Stored) -> None:
        """Put it in the place of the older one, whole or not at all."""
        sealed = self._master.seal(msgspec.msgpack.encode(stored), PURPOSE)
        draft = f"{self._path}.new"
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(sealed)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, self._path)

    def last(self) -> Stored | None:
        """Read it back, if there is one that opens."""
        try:
            with open(self._path, "rb") as file:
                return msgspec.msgpack.decode(self._master.open(file.read(), PURPOSE), type=Stored)
        except FileNotFoundError:
            return None
        except (OSError, PenstockError, msgspec.DecodeError) as error:
            log.warning("the kept snapshot cannot be used: %s", error)
            return None


class Publisher:
    """Looks at the change counter when told to, and once a second for what other nodes did."""

    def __init__(
        self,
        settings: Settings,
        published: Published,
        database: Database,
        vault: Vault,
        kept: Kept,
        tokens: Tokens | None,
    ) -> None:
        """Know nothing of the store yet."""
        self._settings = settings
        self._published = published
        self._database = database
        self._vault = vault
        self._kept = kept
        self._tokens = tokens
        self._bell = asyncio.Event()
        self._number = -1
        self._due: int | None = None
        self._ill = False

    def ring(self) -> None:
        """Say that something changed."""
        self._bell.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
                self._ill = False
            except PenstockError as error:
                if not self._ill:
                    log.error("the old snapshot stays: %s", error)  # noqa: TRY400 - the problems say it all
                self._ill = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), INTERVAL)
                await asyncio.sleep(BREATH)
            self._bell.clear()

    async def look(self) -> None:
        """Publish if something changed, or something that was published has come to its end."""
        async with self._database.reading() as connection:
            number = await connection.scalar(select(changes.c.number)) or 0
            due = self._due is not None and self._due <= now()
            jwt = self._tokens.published() if self._tokens else b""
            if number == self._number and not due and jwt == self._published.stored.jwt:
                return
            stored, self._due = await gather(connection, self._vault)
            stored = msgspec.structs.replace(stored, jwt=jwt)
        async with self._published.turn:
            snapshot = await asyncio.to_thread(gather_good, self._settings, stored)
            self._number = number
            self._published.stored = stored
            if snapshot.epoch != self._published.current.epoch:
                self._published.publish(snapshot)
                log.info("published snapshot %.12s from the store", snapshot.epoch)
        try:
            await asyncio.to_thread(self._kept.keep, stored)
        except OSError as error:
            log.warning("the snapshot is not kept for the next start: %s", error)


async def gather(connection: AsyncConnection, vault: Vault) -> tuple[Stored, int | None]:
    """Read what the data plane must know, and when the first of it comes to its end."""
    keys, ends = await _keys(connection)
    saved, more_ends = await _providers(connection, vault)
    places = await _workspaces(connection)
    blocking = {place["id"] for place in places if place["block_inline_config"]}
    for key in keys:
        if key["workspace"] in blocking:
            key["block_inline_config"] = True
    stored = Stored(
        keys=_insides(keys),
        providers=_insides(saved),
        configs=_insides(await _configs(connection)),
        workspaces=_insides(places),
        key_count=len(keys),
    )
    return stored, min([*ends, *more_ends], default=None)


async def _workspaces(connection: AsyncConnection) -> list[dict[str, Any]]:
    query = (
        select(
            workspaces.c.id,
            workspaces.c.slug,
            workspaces.c.organisation_id,
            workspaces.c.settings,
            organisations.c.settings.label("above"),
        )
        .join(organisations, organisations.c.id == workspaces.c.organisation_id)
        .where(workspaces.c.status == "active")
    )
    # Either may forbid; neither may allow what the other forbids.
    return [
        {
            **{name: row[name] for name in ("id", "slug", "organisation_id")},
            "block_inline_config": any(rules.get("block_inline_config") for rules in (row["settings"], row["above"])),
        }
        for row in (await connection.execute(query.order_by(workspaces.c.id))).mappings()
    ]


async def _keys(connection: AsyncConnection) -> tuple[list[dict[str, Any]], list[int]]:
    query = (
        select(
            api_keys.c.id,
            api_keys.c.name,
            key_digests.c.sha256,
            api_keys.c.workspace_id,
            api_keys.c.scopes,
            api_keys.c.expires_at,
            key_digests.c.expires_at,
        )
        .join(key_digests, key_digests.c.api_key_id == api_keys.c.id)
        .join(workspaces, workspaces.c.id == api_keys.c.workspace_id)
        .where(workspaces.c.status == "active", api_keys.c.status == "active")
        .where(_alive(api_keys.c.expires_at), _alive(key_digests.c.expires_at))
        .order_by(key_digests.c.id)
    )
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    names = ("id", "name", "sha256", "workspace")
    for *named, scopes, key_ends, text_ends in (await connection.execute(query)).tuples():
        own = [end for end in (key_ends, text_ends) if end is not None]
        ends += own
        if "completions.write" in scopes:
            row = dict(zip(names, named, strict=True))
            rows.append({**row, "expires_at": min(own) // 1000 if own else None})
    return rows, ends


async def _providers(connection: AsyncConnection, vault: Vault) -> tuple[list[dict[str, Any]], list[int]]:
    query = (
        select(
            providers.c.slug,
            providers.c.workspace_id,
            providers.c.expires_at,
            integrations.c.id,
            integrations.c.ai_provider_id,
            integrations.c.sealed_key,
            integrations.c.configurations,
        )
        .join(integrations, integrations.c.id == providers.c.integration_id)
        .where(providers.c.status == "active", integrations.c.status == "active", _alive(providers.c.expires_at))
        .order_by(providers.c.id)
    )
    known = {provider["slug"] for provider in engine.catalogue()}
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    for row in (await connection.execute(query)).mappings():
        if row["expires_at"] is not None:
            ends.append(row["expires_at"])
        if row["ai_provider_id"] in known:
            sealed = row["sealed_key"]
            rows.append(
                {
                    "slug": row["slug"],
                    "provider": row["ai_provider_id"],
                    "api_key": await vault.open(connection, sealed, row["id"]) if sealed else None,
                    "custom_host": row["configurations"].get("custom_host"),
                    "workspace": row["workspace_id"],
                }
            )
    return rows, ends


async def _configs(connection: AsyncConnection) -> list[dict[str, Any]]:
    query = select(configs.c.slug, configs.c.config, configs.c.workspace_id).where(configs.c.status == "active")
    return [
        {"slug": row["slug"], "config": msgspec.Raw(row["config"].encode()), "workspace": row["workspace_id"]}
        for row in (await connection.execute(query.order_by(configs.c.id))).mappings()
    ]


def _alive(column: ColumnElement[int]) -> ColumnElement[bool]:
    return or_(column.is_(None), column > now())


def _insides(rows: Iterable[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(list(rows))[1:-1]
