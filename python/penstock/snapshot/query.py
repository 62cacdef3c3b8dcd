"""Gathers what the data plane must know of the store: large tables are written as JSON by the database itself."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Integer,
    LargeBinary,
    String,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
)

from penstock import engine
from penstock.authorization import LEADING
from penstock.errors import UnopenedError
from penstock.kit import provider_options as forms
from penstock.kit.integrations import usable
from penstock.kit.rules import blocks_inline
from penstock.pricing import engine_export
from penstock.pricing.wire_format import PricingConfig
from penstock.schemas import now
from penstock.secrets import config_credentials
from penstock.snapshot.append_log import Piece
from penstock.snapshot.build import Stored
from penstock.store.snapshot_sections import REST, digits
from penstock.store.tables import (
    api_keys,
    configs,
    departed,
    integration_models,
    integrations,
    key_digests,
    organisations,
    providers,
    secret_references,
    users,
    workspaces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, RowMapping, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.secrets.references import Secrets
    from penstock.secrets.vault import Vault

log = logging.getLogger("penstock")

Rows = list[dict[str, Any]]
# Rows of a part, how many, and when the first one ends.
Written = tuple[bytes, int, "int | None"]
LEFT_OUT = "the integration %r is left out: %s"
CONFIG_LEFT_OUT = "the config %r is left out: %s"
# Tokens of who left before them are as good as their ends say: no token should live so long.
MOST_DEPARTED = 10_000
# The scope without which a key may do nothing on the data plane.
CALLS = "completions.write"
# What we made ourselves, of letters and digits: it is always there, and nothing in it needs to be escaped.
PLAIN = {"id", "sha256", "workspace", "lacks"}


class Part(msgspec.Struct, frozen=True):
    """What the engine is told of a part; how many rows that are, and when the first one ends."""

    piece: Piece
    count: int
    end: int | None

    def is_over(self, moment: int) -> bool:
        """Whether it says more than is still so."""
        return _is_over(self.end, moment)


class Large:
    """A large table by its parts, each by its name."""

    def __init__(self, table: Table, told_as: str, rows: Callable[[bool], Select[*tuple[Any, ...]]]) -> None:
        """Know nothing yet."""
        self._name, self._told_as, self._rows, self._digits = table.name, told_as, rows, digits(table.c.id)
        self.parts: dict[str, Part] = {}

    def recall(self, stored: Stored) -> None:
        """Know the parts that were read before."""
        own = {name: said for name, said in stored.parts.items() if name.startswith(f"{self._name}/")}
        self.parts = {name: Part(stored.pieces[name], count, end) for name, (count, end) in own.items()}

    async def read(self, connection: AsyncConnection, changed: frozenset[str] | None) -> None:
        """Have the database write the parts that changed, or are over; all of them where it is not known which."""
        wanted: set[str] = set()
        old: dict[str, Part] = {}
        if changed is not None:
            wanted = {name for name in changed if name.startswith(f"{self._name}/")}
            wanted |= {name for name, part in self.parts.items() if part.is_over(now())}
            if not wanted:
                return
            old = {name: part for name, part in self.parts.items() if name not in wanted}
        here = [self._digits.in_(sorted(name.rpartition("/")[2] for name in wanted))] if wanted else []
        fresh = {f"{self._name}/{own}": rows for own, rows in (await self._written(connection, here)).items()}
        self.parts = old | {
            name: Part(self._piece(name, rows), count, end) for name, (rows, count, end) in fresh.items()
        }

    async def _written(self, connection: AsyncConnection, here: Sequence[ColumnElement[bool]]) -> dict[str, Written]:
        """Have the database write rows: those of each part, how many, and when the first ends; by the part's digits."""
        is_postgres = connection.dialect.name == "postgresql"
        inner = self._rows(is_postgres).add_columns(self._digits.label("digits")).where(*here).subquery()
        if is_postgres:
            joined = func.convert_to(func.string_agg(inner.c.row, ","), "UTF8")
        else:
            joined = cast(func.group_concat(inner.c.row, ","), LargeBinary)
        query = select(inner.c.digits, joined, func.count(inner.c.counts), func.min(inner.c.ends))
        query = query.group_by(inner.c.digits)
        found = (await connection.execute(query)).all()
        return {own: (rows, count, end) for own, rows, count, end in found}

    def _piece(self, name: str, rows: bytes) -> Piece:
        """Write it as the engine reads it."""
        return Piece.of(b'{"name":"%s","%s":[%s]}' % (name.encode(), self._told_as.encode(), rows))


class Configs(Large):
    """Configs; those with credentials in them are written here, where these can be opened."""

    def __init__(self, vault: Vault) -> None:
        """Know nothing yet."""
        super().__init__(configs, "configs", _configs)
        self._vault = vault

    async def _written(self, connection: AsyncConnection, here: Sequence[ColumnElement[bool]]) -> dict[str, Written]:
        found = await super()._written(connection, here)
        rows = select(configs, digits(configs.c.id).label("digits")).where(configs.c.status == "active")
        for row in (await connection.execute(rows.where(configs.c.sealed.is_not(None), *here))).mappings():
            before, count, _ = found.get(row["digits"], (b"", 0, None))
            try:
                written = msgspec.json.encode(await self._told(connection, row))
            except UnopenedError as error:
                # One row must not end publishing for all.
                log.warning(CONFIG_LEFT_OUT, row["slug"], error)
                continue
            found[row["digits"]] = (b",".join(part for part in (before, written) if part), count + 1, None)
        # The engine compiles them: others are served meanwhile.
        taken = await asyncio.to_thread(lambda: {own: _taken(rows) for own, (rows, _, _) in found.items()})
        return {own: (taken[own], count, end) for own, (_, count, end) in found.items()}

    async def _told(self, connection: AsyncConnection, row: RowMapping) -> dict[str, Any]:
        hidden = config_credentials.read(await self._vault.open(connection, row["sealed"], row["id"]))
        config = config_credentials.joined(config_credentials.Divided(msgspec.json.decode(row["config"]), hidden))
        return {"id": row["id"], "slug": row["slug"], "workspace": row["workspace_id"], "config": config}


def _taken(rows: bytes) -> bytes:
    """Leave configs out that the engine does not take: what an older release saved must not end publishing for all."""
    if _why_not(rows) is None:
        return rows
    kept: list[bytes] = []
    for raw in msgspec.json.decode(b"[%s]" % rows, type=list[msgspec.Raw]):
        one = bytes(raw)
        if why := _why_not(one):
            log.warning(CONFIG_LEFT_OUT, msgspec.json.decode(one)["slug"], why)
        else:
            kept.append(one)
    return b",".join(kept)


def _why_not(rows: bytes) -> str | None:
    """Say why the engine does not take these configs, if that is so."""
    try:
        engine.check("snapshot", b'{"epoch":"-","configs":[%s]}' % rows)
    except engine.EngineError as error:
        found = [f"{one['path'].partition('.config')[2].lstrip('.')} {one['message']}" for one in error.problems]
        return ", ".join(found) or str(error)
    return None


class Gatherer:
    """Reads what the data plane must know, and after a change no more of it than changed."""

    def __init__(self, vault: Vault, secrets: Secrets) -> None:
        """Know nothing yet."""
        self._vault, self._secrets = vault, secrets
        self._keys = Large(api_keys, "keys", _keys)
        self._configs = Configs(vault)
        self._rest = Stored()

    def recall(self, stored: Stored) -> None:
        """Know what was gathered before, by whomever: what changed since is all that is to be read."""
        for large in (self._keys, self._configs):
            large.recall(stored)
        self._rest = msgspec.structs.replace(stored, pieces={}, parts={}, secrets={})

    async def gather(
        self, connection: AsyncConnection, changed: frozenset[str] | None = None
    ) -> tuple[Stored, int | None]:
        """Read what changed, or everything; give all of it, and when the first of it comes to its end."""
        for large in (self._keys, self._configs):
            await large.read(connection, changed)
        if changed is None or REST in changed or _is_over(self._rest.rest_end, now()):
            await self._read_rest(connection)
        keys, parts = self._keys.parts.values(), self._keys.parts | self._configs.parts
        stored = msgspec.structs.replace(
            self._rest,
            pieces={name: part.piece for name, part in parts.items()},
            key_count=sum(part.count for part in keys),
            secrets=self._secrets.known(),
            parts={name: (part.count, part.end) for name, part in parts.items()},
        )
        ends = (*(part.end for part in keys), self._rest.rest_end)
        return stored, min((end for end in ends if end is not None), default=None)

    async def _read_rest(self, connection: AsyncConnection) -> None:
        saved, models, ends = await _providers(connection, self._vault, self._secrets)
        self._rest = Stored(
            providers=_insides(saved),
            models=_insides(models),
            workspaces=_insides(await _workspaces(connection)),
            departed=_insides(await _departed(connection)),
            rest_end=min(ends, default=None),
        )


def _is_over(end: int | None, moment: int) -> bool:
    return end is not None and end <= moment


def _keys(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    own, texts = api_keys.c.expires_at, key_digests.c.expires_at
    ends = case((own.is_(None), texts), (texts.is_(None), own), (own < texts, own), else_=texts)
    named = {"id": api_keys.c.id, "sha256": key_digests.c.sha256}
    row = _object(
        is_postgres,
        **named,
        name=api_keys.c.name,
        workspace=api_keys.c.workspace_id,
        expires_at=ends // 1000,
        defaults=_document(is_postgres, api_keys.c.defaults),
    )
    # Of keys that may do nothing there it is said why: that is no reason to take them for no keys, or for a provider's.
    is_of_none = api_keys.c.workspace_id.is_(None)
    is_good = and_(~is_of_none, cast(api_keys.c.scopes, Text).contains(f'"{CALLS}"'))
    lacks = case((is_of_none, "workspace"), else_="scope")
    refused = _object(is_postgres, **named, lacks=lacks)
    return (
        select(case((is_good, row), else_=refused).label("row"), ends.label("ends"))
        .add_columns(case((is_good, 1)).label("counts"))
        .join(key_digests, key_digests.c.api_key_id == api_keys.c.id)
        .outerjoin(workspaces, workspaces.c.id == api_keys.c.workspace_id)
        .where(or_(is_of_none, workspaces.c.status == "active"), api_keys.c.status == "active")
        .where(_alive(own), _alive(texts))
    )


def _configs(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    row = _object(
        is_postgres,
        id=configs.c.id,
        slug=configs.c.slug,
        workspace=configs.c.workspace_id,
        config=_document(is_postgres, configs.c.config),
    )
    rows = select(
        row.label("row"), cast(null(), BigInteger).label("ends"), literal_column("1", Integer).label("counts")
    )
    return rows.where(configs.c.status == "active", configs.c.sealed.is_(None))


def _object(is_postgres: bool, **fields: ColumnElement[Any]) -> ColumnElement[str]:
    """Write a JSON object of names and values."""
    if is_postgres:
        return _joined(fields)
    pairs: list[Any] = []
    for name, value in fields.items():
        pairs += [literal_column(f"'{name}'"), value]
    return func.json_object(*pairs)


def _joined(fields: Mapping[str, ColumnElement[Any]]) -> ColumnElement[str]:
    """Join the texts of names and values: PostgreSQL's own function for objects takes twice as long."""
    parts: list[ColumnElement[str]] = []
    for name, value in fields.items():
        parts += [literal_column(f"""'{"," if parts else "{"}"{name}":'"""), *_value(name, value)]
    return func.concat(*parts, literal_column("'}'"))


def _value(name: str, value: ColumnElement[Any]) -> list[ColumnElement[str]]:
    if name in PLAIN:
        return [literal_column("""'"'"""), value, literal_column("""'"'""")]
    written = cast(func.to_json(value), Text) if isinstance(value.type, String) else cast(value, Text)
    return [func.coalesce(written, literal_column("'null'"))]


def _document(is_postgres: bool, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Take a text that is JSON as a part of more."""
    return cast(column, JSON) if is_postgres else func.json(column)


async def _workspaces(connection: AsyncConnection) -> Rows:
    """List the workspaces with what they say of all requests made in them."""
    query = (
        select(workspaces, organisations.c.settings.label("above"))
        .join(organisations, organisations.c.id == workspaces.c.organisation_id)
        .where(workspaces.c.status == "active")
    )
    return [
        {
            **{name: row[name] for name in ("id", "slug", "organisation_id")},
            "metadata": row["defaults"].get("metadata") or {},
            "block_inline_config": blocks_inline(row["settings"], row["above"]),
            # Said only where it is so: nodes of older releases do not know it.
            **({"figures_alone": True} if row["settings"].get("debug_log") == 0 else {}),
        }
        for row in (await connection.execute(query.order_by(workspaces.c.id))).mappings()
    ]


async def _departed(connection: AsyncConnection) -> Rows:
    """List who was taken out of each organisation or workspace last, by all that a token may call them.

    Who is in the organisation again is left out, and who is in all of its workspaces by leading it.
    """
    is_there = and_(users.c.organisation_id == departed.c.organisation_id, users.c.email == departed.c.email)
    query = select(departed, users.c.role).outerjoin(users, is_there)
    names: dict[tuple[str, str | None], set[str]] = {}
    for row in (await connection.execute(query.order_by(departed.c.id.desc()).limit(MOST_DEPARTED))).mappings():
        place = row["workspace_id"]
        if place and row["role"] in LEADING:
            continue
        # Who was invited anew has another id.
        is_again = row["role"] and not place
        told = {row["user_id"]} if is_again else {row["user_id"], row["email"].lower()}
        names.setdefault((row["organisation_id"], place), set()).update(told)
    return [
        {"organisation_id": own_id, "workspace_id": place, "names": sorted(gone)}
        for (own_id, place), gone in sorted(names.items(), key=lambda one: (one[0][0], one[0][1] or ""))
    ]


async def _providers(connection: AsyncConnection, vault: Vault, secrets: Secrets) -> tuple[Rows, Rows, list[int]]:
    """List providers with what the engine is told of their integrations, and the models of those."""
    query = (
        select(providers.c.slug, providers.c.workspace_id, providers.c.expires_at, integrations.c.id)
        .join(integrations, integrations.c.id == providers.c.integration_id)
        .where(providers.c.status == "active", integrations.c.status == "active", _alive(providers.c.expires_at))
        .where(usable(providers.c.workspace_id))
        .order_by(providers.c.id)
    )
    found = (await connection.execute(query)).all()
    behind, models = await _integrations(connection, vault, secrets, {own_id for *_, own_id in found})
    rows = [
        {"slug": slug, "workspace": workspace, "expires_at": ends and ends // 1000, **behind[own_id]}
        for slug, workspace, ends, own_id in found
        if own_id in behind
    ]
    return rows, models, [ends for _, _, ends, _ in found if ends is not None]


async def _integrations(
    connection: AsyncConnection, vault: Vault, secrets: Secrets, wanted: set[str]
) -> tuple[dict[str, dict[str, Any]], Rows]:
    """Open what integrations hold, as far as the engine knows their providers."""
    known = {provider["slug"] for provider in engine.catalogue()}
    own = secret_references.c
    kept = (await connection.execute(select(own.id, own.secret_key, own.manager_type))).mappings()
    references: dict[str, dict[str, Any]] = {row["id"]: dict(row) for row in kept}
    said, spoilt = await _said_of_models(connection, vault)
    behind: dict[str, dict[str, Any]] = {}
    models: Rows = []
    for row in (await connection.execute(select(integrations).order_by(integrations.c.id))).mappings():
        if row["id"] not in wanted or row["ai_provider_id"] not in known:
            continue
        if why := spoilt.get(row["id"]):
            log.warning(LEFT_OUT, row["slug"], why)
            continue
        filled = await _filled(connection, vault, secrets, row, references)
        if filled is None:
            log.warning(LEFT_OUT, row["slug"], "a secret that it needs is not there, or cannot be opened")
            continue
        key, configurations = filled
        try:
            told, own = _told(row, key, configurations, said.get(row["id"], []))
            wrong = forms.unserved(told, [{"id": "-", "allow_all": True, "models": own}])
        except (AttributeError, TypeError, ValueError):
            # From before such a row was refused.
            wrong, told, own = [("configurations", "cannot be read")], {}, []
        if wrong:
            # One row must not end publishing for all.
            reasons = ", ".join(f"{place} {why}" for place, why in wrong)
            log.warning(LEFT_OUT, row["slug"], reasons)
            continue
        behind[row["id"]] = told
        adjustment = engine_export.adjusted(row["pricing_adjustments"])
        if own or adjustment or not row["allow_all_models"]:
            told["models"] = row["id"]
            models.append(
                {"id": row["id"], "allow_all": row["allow_all_models"], "models": own, "adjustment": adjustment}
            )
    return behind, models


async def _filled(
    connection: AsyncConnection,
    vault: Vault,
    secrets: Secrets,
    row: RowMapping,
    references: Mapping[str, Mapping[str, Any]],
) -> tuple[str | None, dict[str, Any]] | None:
    """Give an integration's key and configurations as they are used; nothing where one of them cannot be had."""
    try:
        opened = await _opened(connection, vault, row)
        sealed = row["sealed_key"]
        key = await vault.open(connection, sealed, row["id"]) if sealed else None
    except UnopenedError:
        return None
    return secrets.filled(row["secret_mappings"], key, opened, references)


def _told(
    row: RowMapping, key: str | None, configurations: Mapping[str, Any], said: Rows
) -> tuple[dict[str, Any], Rows]:
    """Give what the engine is told of an integration, and of its models."""
    provider = row["ai_provider_id"]
    told = forms.told(provider, configurations)
    own = _merged(said, told.pop("deployments", {}))
    return {"provider": provider, "api_key": key, **told}, own


async def _said_of_models(connection: AsyncConnection, vault: Vault) -> tuple[dict[str, Rows], dict[str, str]]:
    """Give what was said of single models, by integration; and what is wrong with it where it cannot be used."""
    found: dict[str, Rows] = {}
    spoilt: dict[str, str] = {}
    query = select(integration_models).order_by(integration_models.c.integration_id, integration_models.c.slug)
    for row in (await connection.execute(query)).mappings():
        try:
            place = await _opened(connection, vault, row)
            said = row["pricing_config"]
            prices = engine_export.stated(msgspec.convert(said, PricingConfig)) if said else None
        except (UnopenedError, msgspec.ValidationError) as error:
            spoilt[row["integration_id"]] = f"its model {row['slug']!r}: {error}"
            continue
        one = forms.of_model(row["slug"], row["enabled"], place, prices)
        found.setdefault(row["integration_id"], []).append(one)
    return found, spoilt


def _merged(said: Rows, deployments: Mapping[str, dict[str, str]]) -> Rows:
    """Put deployments beside what was said of the models that they are asked for by."""
    rest = dict(deployments)
    rows = [{**one, "options": rest.pop(one["slug"], {})} for one in said]
    return [*rows, *({"slug": slug, "enabled": True, "options": options} for slug, options in rest.items())]


async def _opened(connection: AsyncConnection, vault: Vault, row: RowMapping) -> dict[str, Any]:
    """Give configurations with what is secret among them."""
    sealed = row["sealed_configurations"]
    hidden: dict[str, Any] = msgspec.json.decode(await vault.open(connection, sealed, row["id"])) if sealed else {}
    return {**row["configurations"], **hidden}


def _alive(column: ColumnElement[int]) -> ColumnElement[bool]:
    return or_(column.is_(None), column > now())


def _insides(rows: Iterable[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(list(rows))[1:-1]
