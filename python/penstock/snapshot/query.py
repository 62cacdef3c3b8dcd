"""Snapshot query. Reads what the data plane needs from the store; the database itself encodes large tables as JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, Integer, Text, and_, case, cast, literal_column, null, or_, select

from penstock import engine
from penstock.access.tenant_rules import blocks_inline_config
from penstock.authorization import ORGANISATION_ADMIN_ROLES
from penstock.errors import DecryptionError
from penstock.guardrails.documents import DEFAULT_FIELDS, effective_defaults
from penstock.integrations import provider_options as forms
from penstock.integrations.saved_integrations import usable_condition
from penstock.pricing import engine_export
from penstock.pricing.wire_format import PricingConfig
from penstock.schemas import now
from penstock.secrets import config_credentials
from penstock.snapshot.build import StoreData
from penstock.snapshot.guardrail_sections import GuardrailTable
from penstock.snapshot.limit_sections import LimitSections
from penstock.snapshot.prompt_sections import PartialTable, PromptTable
from penstock.snapshot.sectioned_table import (
    ROW_SKIPPED,
    CheckedTable,
    SectionedTable,
    embed_json,
    is_expired,
    json_object,
    section_digits,
)
from penstock.store.snapshot_sections import SMALL_TABLES
from penstock.store.tables import (
    api_keys,
    configs,
    integration_models,
    integrations,
    key_digests,
    organisations,
    providers,
    removed_members,
    secret_references,
    users,
    workspaces,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, RowMapping, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import Vault
    from penstock.snapshot.sectioned_table import SectionRows

log = logging.getLogger("penstock")

JsonRows = list[dict[str, Any]]
INTEGRATION_SKIPPED = "the integration %r is left out: %s"
# Maximum number of removed members in the snapshot. Tokens of members who were removed earlier stay valid until they
# expire, but no token should be valid for so long.
MAX_REMOVED_MEMBERS = 10_000
# Scope with which a key may call models, and scope with which it may render prompts.
DATA_PLANE_SCOPE, RENDER_SCOPE = "completions.write", "prompts.render"


class ConfigTable(CheckedTable):
    """The table of configs. Configs with credentials are encoded in Python, because the database cannot decrypt the
    credentials.
    """

    def __init__(self, vault: Vault) -> None:
        """Prepares the table; no section is read yet."""
        super().__init__(configs, _select_configs)
        self._vault = vault

    async def _query_rows(
        self, connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
    ) -> dict[str, SectionRows]:
        sections = await super()._query_rows(connection, conditions)
        rows = select(configs, section_digits(configs.c.id).label("digits")).where(configs.c.status == "active")
        for row in (await connection.execute(rows.where(configs.c.sealed.is_not(None), *conditions))).mappings():
            before, count, _ = sections.get(row["digits"], (b"", 0, None))
            try:
                written = msgspec.json.encode(await self._decrypt_config(connection, row))
            except DecryptionError as error:
                # A single invalid row must not prevent publishing, so it is skipped.
                log.warning(ROW_SKIPPED, "config", row["slug"], error)
                continue
            sections[row["digits"]] = (b",".join(part for part in (before, written) if part), count + 1, None)
        return sections

    async def _decrypt_config(self, connection: AsyncConnection, row: RowMapping) -> dict[str, Any]:
        hidden = config_credentials.decode_secrets(await self._vault.open(connection, row["sealed"], row["id"]))
        config = config_credentials.join_credentials(
            config_credentials.SplitDocument(msgspec.json.decode(row["config"]), hidden)
        )
        names = {"id": row["id"], "version_id": row["version_id"], "slug": row["slug"]}
        return {**names, "workspace": row["workspace_id"], "config": config}


class SnapshotReader:
    """Reads the snapshot from the store. After a change, reads only what changed."""

    def __init__(self, vault: Vault, secrets: SecretCache) -> None:
        """Prepares the tables; nothing is read yet."""
        self._vault, self._secrets = vault, secrets
        self._keys = SectionedTable(api_keys, _select_keys)
        self._configs = ConfigTable(vault)
        self._limits = LimitSections()
        self._prompts, self._partials = PromptTable(), PartialTable()
        self._guardrails = GuardrailTable(vault)
        self._rest = StoreData()

    def restore(self, stored: StoreData) -> None:
        """Restores a snapshot that this or another process has read. Later reads then only read what has
        changed since.
        """
        for large in self._large_tables:
            large.restore(stored)
        self._rest = msgspec.structs.replace(stored, chunks={}, parts={}, secrets={})

    async def read_snapshot(
        self, connection: AsyncConnection, changed: frozenset[str] | None = None
    ) -> tuple[StoreData, int | None]:
        """Reads what changed, or everything if `changed` is `None`. Returns the complete snapshot, and the Unix time in
        milliseconds at which its first row expires, or `None`.
        """
        for large in self._large_tables:
            await large.refresh(connection, changed)
        if changed is None or SMALL_TABLES in changed or is_expired(self._rest.rest_end, now()):
            await self._read_small_tables(connection)
        keys, limits = self._keys.parts.values(), self._limits.parts.values()
        parts = {name: part for large in self._large_tables for name, part in large.parts.items()}
        stored = msgspec.structs.replace(
            self._rest,
            chunks={name: part.chunk for name, part in parts.items()},
            key_count=sum(part.count for part in keys),
            secrets=self._secrets.export_values(),
            parts={name: (part.count, part.end) for name, part in parts.items()},
        )
        ends = (*(part.end for part in keys), *(part.end for part in limits), self._rest.rest_end)
        return stored, min((end for end in ends if end is not None), default=None)

    @property
    def _large_tables(self) -> tuple[SectionedTable | LimitSections, ...]:
        return (self._keys, self._configs, self._limits, self._prompts, self._partials, self._guardrails)

    async def _read_small_tables(self, connection: AsyncConnection) -> None:
        saved, models, ends = await _read_providers(connection, self._vault, self._secrets)
        self._rest = StoreData(
            providers=_encode_array_items(saved),
            models=_encode_array_items(models),
            workspaces=_encode_array_items(await _read_workspaces(connection)),
            departed=_encode_array_items(await _read_removed_members(connection)),
            rest_end=min(ends, default=None),
        )


def _select_keys(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    key_expiry, texts = api_keys.c.expires_at, key_digests.c.expires_at
    ends = case(
        (key_expiry.is_(None), texts), (texts.is_(None), key_expiry), (key_expiry < texts, key_expiry), else_=texts
    )
    key_fields = {"id": api_keys.c.id, "sha256": key_digests.c.sha256}
    fields = {
        **key_fields,
        "name": api_keys.c.name,
        "workspace": api_keys.c.workspace_id,
        "expires_at": ends // 1000,
        "defaults": embed_json(is_postgres, api_keys.c.defaults),
    }
    # Keys that may not use the data plane are published, too, with the reason. Otherwise the engine would treat them as
    # unknown keys, or as keys of a provider.
    is_of_none = api_keys.c.workspace_id.is_(None)
    may_call, may_render = (
        and_(~is_of_none, cast(api_keys.c.scopes, Text).contains(f'"{scope}"'))
        for scope in (DATA_PLANE_SCOPE, RENDER_SCOPE)
    )
    has_both, has_one = and_(may_call, may_render), or_(may_call, may_render)
    refused = json_object(is_postgres, **key_fields, lacks=case((is_of_none, "workspace"), else_="scope"))
    # `lacks` and the user are written only where they are needed, because there may be a hundred thousand keys.
    fields_of_one = {**fields, "lacks": case((may_call, "render"), else_="completions")}
    user_field = {"user_id": api_keys.c.user_id}
    is_of_service = api_keys.c.user_id.is_(None)
    encoded_row = case(
        (and_(has_both, is_of_service), json_object(is_postgres, **fields)),
        (has_both, json_object(is_postgres, **fields, **user_field)),
        (and_(has_one, is_of_service), json_object(is_postgres, **fields_of_one)),
        (has_one, json_object(is_postgres, **fields_of_one, **user_field)),
        else_=refused,
    )
    return (
        select(encoded_row.label("row"), ends.label("ends"))
        .add_columns(case((has_one, 1)).label("counts"))
        .join(key_digests, key_digests.c.api_key_id == api_keys.c.id)
        .outerjoin(workspaces, workspaces.c.id == api_keys.c.workspace_id)
        .where(or_(is_of_none, workspaces.c.status == "active"), api_keys.c.status == "active")
        .where(_is_not_expired(key_expiry), _is_not_expired(texts))
    )


def _select_configs(is_postgres: bool) -> Select[*tuple[Any, ...]]:
    row = json_object(
        is_postgres,
        id=configs.c.id,
        version_id=configs.c.version_id,
        slug=configs.c.slug,
        workspace=configs.c.workspace_id,
        config=embed_json(is_postgres, configs.c.config),
    )
    rows = select(
        row.label("row"), cast(null(), BigInteger).label("ends"), literal_column("1", Integer).label("counts")
    )
    return rows.where(configs.c.status == "active", configs.c.sealed.is_(None))


async def _read_workspaces(connection: AsyncConnection) -> JsonRows:
    """Returns the active workspaces with the settings that apply to all of their requests."""
    query = (
        select(workspaces, organisations.c.settings.label("above"))
        .join(organisations, organisations.c.id == workspaces.c.organisation_id)
        .where(workspaces.c.status == "active")
    )
    return [
        {
            **{name: row[name] for name in ("id", "slug", "organisation_id")},
            "metadata": row["defaults"].get("metadata") or {},
            "block_inline_config": blocks_inline_config(row["settings"], row["above"]),
            # Fields that are sent only if they are set, because engines of older releases do not know them.
            **({"figures_alone": True} if row["settings"].get("debug_log") == 0 else {}),
            **{name: ids for name in DEFAULT_FIELDS if (ids := effective_defaults(dict(row), row["above"], name))},
        }
        for row in (await connection.execute(query.order_by(workspaces.c.id))).mappings()
    ]


async def _read_removed_members(connection: AsyncConnection) -> JsonRows:
    """Returns the members who were most recently removed from an organisation or workspace. Each has all ids and emails
    by which a token may name the person.

    Omits the email of people who are in the organisation again. Omits removals from a workspace if the person's role
    includes all workspaces.
    """
    is_same_person = and_(
        users.c.organisation_id == removed_members.c.organisation_id, users.c.email == removed_members.c.email
    )
    query = select(removed_members, users.c.role).outerjoin(users, is_same_person)
    names: dict[tuple[str, str | None], set[str]] = {}
    for row in (
        await connection.execute(query.order_by(removed_members.c.id.desc()).limit(MAX_REMOVED_MEMBERS))
    ).mappings():
        workspace_id = row["workspace_id"]
        if workspace_id and row["role"] in ORGANISATION_ADMIN_ROLES:
            continue
        # A person who was invited again has a new id, so only the old id is listed.
        is_invited_again = row["role"] and not workspace_id
        member_names = {row["user_id"]} if is_invited_again else {row["user_id"], row["email"].lower()}
        names.setdefault((row["organisation_id"], workspace_id), set()).update(member_names)
    return [
        {"organisation_id": own_id, "workspace_id": location, "names": sorted(removed_names)}
        for (own_id, location), removed_names in sorted(names.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]


async def _read_providers(
    connection: AsyncConnection, vault: Vault, secrets: SecretCache
) -> tuple[JsonRows, JsonRows, list[int]]:
    """Returns the active providers with the options of their integrations, the models of these integrations, and the
    expiry times of providers in milliseconds.
    """
    query = (
        select(
            providers.c.id.label("provider_id"),
            *(providers.c.slug, providers.c.workspace_id, providers.c.expires_at, providers.c.integration_id),
        )
        .join(integrations, integrations.c.id == providers.c.integration_id)
        .where(
            providers.c.status == "active", integrations.c.status == "active", _is_not_expired(providers.c.expires_at)
        )
        .where(usable_condition(providers.c.workspace_id))
        .order_by(providers.c.id)
    )
    results = (await connection.execute(query)).all()
    options_by_id, models = await _read_integrations(
        connection, vault, secrets, {row.integration_id for row in results}
    )
    rows = [
        {
            "id": row.provider_id,
            "integration_id": row.integration_id,
            "slug": row.slug,
            "workspace": row.workspace_id,
            "expires_at": row.expires_at and row.expires_at // 1000,
            **options_by_id[row.integration_id],
        }
        for row in results
        if row.integration_id in options_by_id
    ]
    return rows, models, [row.expires_at for row in results if row.expires_at is not None]


async def _read_integrations(
    connection: AsyncConnection, vault: Vault, secrets: SecretCache, requested: set[str]
) -> tuple[dict[str, dict[str, Any]], JsonRows]:
    """Decrypts the integrations in `requested` whose providers the engine knows. Returns their options by id, and their
    models.
    """
    known_providers = {provider["slug"] for provider in engine.catalogue()}
    own = secret_references.c
    reference_rows = (await connection.execute(select(own.id, own.secret_key, own.manager_type))).mappings()
    references: dict[str, dict[str, Any]] = {row["id"]: dict(row) for row in reference_rows}
    models_by_integration, errors_by_integration = await _read_model_settings(connection, vault)
    options_by_id: dict[str, dict[str, Any]] = {}
    models: JsonRows = []
    for row in (await connection.execute(select(integrations).order_by(integrations.c.id))).mappings():
        if row["id"] not in requested or row["ai_provider_id"] not in known_providers:
            continue
        if reason := errors_by_integration.get(row["id"]):
            log.warning(INTEGRATION_SKIPPED, row["slug"], reason)
            continue
        filled = await _resolve_secrets(connection, vault, secrets, row, references)
        if filled is None:
            log.warning(INTEGRATION_SKIPPED, row["slug"], "a secret that it needs is missing or cannot be decrypted")
            continue
        key, configurations = filled
        try:
            options, own = _to_engine_options(row, key, configurations, models_by_integration.get(row["id"], []))
            wrong = forms.unsupported_fields(options, [{"id": "-", "allow_all": True, "models": own}])
        except (AttributeError, TypeError, ValueError):
            # The row was saved by an older release, which did not reject such options.
            wrong, options, own = [("configurations", "cannot be read")], {}, []
        if wrong:
            # A single invalid row must not prevent publishing, so it is skipped.
            reasons = ", ".join(f"{path} {reason}" for path, reason in wrong)
            log.warning(INTEGRATION_SKIPPED, row["slug"], reasons)
            continue
        options_by_id[row["id"]] = options
        adjustment = engine_export.export_adjustments(row["pricing_adjustments"])
        if own or adjustment or not row["allow_all_models"]:
            options["models"] = row["id"]
            models.append(
                {"id": row["id"], "allow_all": row["allow_all_models"], "models": own, "adjustment": adjustment}
            )
    return options_by_id, models


async def _resolve_secrets(
    connection: AsyncConnection,
    vault: Vault,
    secrets: SecretCache,
    row: RowMapping,
    references: Mapping[str, Mapping[str, Any]],
) -> tuple[str | None, dict[str, Any]] | None:
    """Returns an integration's API key and options with all secrets filled in, or `None` if one of them is
    unavailable.
    """
    try:
        opened = await _decrypt_options(connection, vault, row)
        sealed = row["sealed_key"]
        key = await vault.open(connection, sealed, row["id"]) if sealed else None
    except DecryptionError:
        return None
    return secrets.fill_mapped_fields(row["secret_mappings"], key, opened, references)


def _to_engine_options(
    row: RowMapping, key: str | None, configurations: Mapping[str, Any], model_rows: JsonRows
) -> tuple[dict[str, Any], JsonRows]:
    """Converts an integration to the options that the engine reads, and to its list of models."""
    provider = row["ai_provider_id"]
    options = forms.provider_row(provider, configurations)
    models = merge_deployments(model_rows, options.pop("deployments", {}), allow_all=row["allow_all_models"])
    return {"provider": provider, "api_key": key, **options}, models


async def _read_model_settings(connection: AsyncConnection, vault: Vault) -> tuple[dict[str, JsonRows], dict[str, str]]:
    """Returns the settings of single models by integration, and an error for each integration with a model that cannot
    be used.
    """
    rows: dict[str, JsonRows] = {}
    errors_by_integration: dict[str, str] = {}
    query = select(integration_models).order_by(integration_models.c.integration_id, integration_models.c.slug)
    for row in (await connection.execute(query)).mappings():
        try:
            options = await _decrypt_options(connection, vault, row)
            pricing = row["pricing_config"]
            prices = engine_export.export_operator_prices(msgspec.convert(pricing, PricingConfig)) if pricing else None
        except (DecryptionError, msgspec.ValidationError) as error:
            errors_by_integration[row["integration_id"]] = f"its model {row['slug']!r}: {error}"
            continue
        item = forms.model_row(row["slug"], row["enabled"], options, prices)
        rows.setdefault(row["integration_id"], []).append(item)
    return rows, errors_by_integration


def merge_deployments(model_rows: JsonRows, deployments: Mapping[str, dict[str, str]], *, allow_all: bool) -> JsonRows:
    """Adds each deployment to the settings of the model that requests select it by.

    A deployment has several names: its own, its alias, and its model. A name without an entry has the state of the
    other names' entries. If none has an entry, it may be used if `allow_all` is true.
    """
    entries = {row["slug"]: row["enabled"] for row in model_rows}
    states: dict[str, list[bool]] = {}
    for slug, options in deployments.items():
        if slug in entries:
            states.setdefault(options["deployment_id"], []).append(entries[slug])
    others = [
        {"slug": slug, "enabled": all(states.get(options["deployment_id"], [allow_all])), "options": options}
        for slug, options in deployments.items()
        if slug not in entries
    ]
    return [*({**row, "options": deployments.get(row["slug"], {})} for row in model_rows), *others]


async def _decrypt_options(connection: AsyncConnection, vault: Vault, row: RowMapping) -> dict[str, Any]:
    """Returns the options of a row, including the encrypted ones."""
    sealed = row["sealed_configurations"]
    hidden: dict[str, Any] = msgspec.json.decode(await vault.open(connection, sealed, row["id"])) if sealed else {}
    return {**row["configurations"], **hidden}


def _is_not_expired(column: ColumnElement[int]) -> ColumnElement[bool]:
    return or_(column.is_(None), column > now())


def _encode_array_items(rows: Iterable[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(list(rows))[1:-1]
