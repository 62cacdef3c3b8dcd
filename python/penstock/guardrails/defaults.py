"""Default guardrails of organisations, workspaces and keys: which apply to a workspace, and what uses a guardrail."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import Text, or_, select
from sqlalchemy import cast as sql_cast

from penstock.access.tenant_rules import organisation_rules
from penstock.errors import Problem, UnknownReferenceError, join_problems, shorten
from penstock.guardrails.documents import ACTIVE, DEFAULT_FIELDS
from penstock.kit.references import MAX_FIELDS, Reference, make_reference
from penstock.store.guardrail_tables import guardrails
from penstock.store.tables import api_keys, configs, organisations, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

# Fields of a config, and of the targets in it, that may name saved guardrails.
CONFIG_FIELDS = frozenset({*DEFAULT_FIELDS, "input_mutators", "output_mutators"})


async def resolve_guardrails(
    session: TenantSession, path: str, keys: Sequence[str], workspace_id: str | None
) -> list[str]:
    """Returns the ids of the guardrails that a field names by id or slug, each once. Rejects guardrails that do not
    exist, are archived, or belong to another workspace. Without `workspace_id`, accepts only guardrails of the
    organisation.
    """
    if not keys:
        return []
    is_theirs = guardrails.c.workspace_id.is_(None)
    if workspace_id is not None:
        is_theirs = or_(is_theirs, guardrails.c.workspace_id == workspace_id)
    is_named = or_(guardrails.c.id.in_(keys), guardrails.c.slug.in_(keys))
    query = select(guardrails.c.id, guardrails.c.slug).where(is_named, is_theirs, guardrails.c.status == ACTIVE)
    rows = await session.organisation().fetch_rows(query, guardrails)
    ids: dict[str, str] = {row[name]: row["id"] for row in rows for name in ("slug", "id")}
    whose = "this organisation" if workspace_id is None else "this workspace or its organisation"
    problems = [
        Problem(f"{path}[{index}]", f"{shorten(key)!r} is no guardrail of {whose} that is not archived")
        for index, key in enumerate(keys)
        if key not in ids
    ]
    if problems:
        raise UnknownReferenceError(join_problems(problems), problems)
    return list(dict.fromkeys(ids[key] for key in keys))


async def find_slugs(session: TenantSession, ids: Iterable[str]) -> dict[str, str]:
    """Returns the slugs of guardrails by id. Omits guardrails that were deleted with their workspace."""
    rows = await session.organisation().find_all(guardrails, set(ids))
    return {row["id"]: row["slug"] for row in rows.values()}


async def find_users(session: TenantSession, row: Row) -> list[tuple[str, Reference]]:
    """Returns the configs, and the defaults of keys, workspaces and the organisation, that use the guardrail `row`. Each
    comes with its key in `references.VISIBLE_WITH`.
    """
    tenant = session.organisation()
    target_workspace = row["workspace_id"]
    users: list[tuple[str, Reference]] = []
    if fields := _default_fields(await organisation_rules(tenant), row):
        query = select(organisations.c.id, organisations.c.name).where(organisations.c.id == tenant.organisation_id)
        owner = (await tenant.connection.execute(query)).one()
        users.append(
            (
                "organisation",
                Reference(kind="organisation", id=owner.id, name=owner.name, workspace_id=None, fields=fields),
            )
        )
    query = select(workspaces).where(workspaces.c.status == "active")
    inside = [] if target_workspace is None else [workspaces.c.id == target_workspace]
    for workspace in await tenant.fetch_rows(query.where(*inside).order_by(workspaces.c.id), workspaces):
        fields = _default_fields(workspace, row)
        users += [("workspace", make_reference("workspace", workspace, workspace["id"], fields))] if fields else []
    users += await _find_keys(tenant, row)
    keys = {row["id"], row["slug"]}
    is_mentioned = or_(*(configs.c.config.contains(key, autoescape=True) for key in sorted(keys)))
    config_query = select(configs).where(is_mentioned).order_by(configs.c.id)
    inside = [] if target_workspace is None else [configs.c.workspace_id == target_workspace]
    for config in await tenant.fetch_rows(config_query.where(*inside), configs):
        references_in = iter_guardrails(msgspec.json.decode(config["config"]), "config")
        if fields := list(islice(dict.fromkeys(path for path, name in references_in if name in keys), MAX_FIELDS)):
            users.append(("config", make_reference("config", config, config["workspace_id"], fields)))
    return users


async def _find_keys(tenant: TenantSession, row: Row) -> list[tuple[str, Reference]]:
    query = select(api_keys).where(
        sql_cast(api_keys.c.defaults, Text).contains(row["id"]), api_keys.c.status == "active"
    )
    inside = [] if row["workspace_id"] is None else [api_keys.c.workspace_id == row["workspace_id"]]
    return [
        (key["type"], make_reference("api_key", key, key["workspace_id"], fields))
        for key in await tenant.fetch_rows(query.where(*inside).order_by(api_keys.c.id), api_keys)
        if (fields := _default_fields(key, row))
    ]


def _default_fields(holder: Mapping[str, Any], row: Row) -> list[str]:
    defaults: dict[str, list[str] | None] = holder.get("defaults") or {}
    return [f"defaults.{name}" for name in DEFAULT_FIELDS if row["id"] in (defaults.get(name) or ())]


def iter_guardrails(config: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields the field and the id or slug of each saved guardrail that a config or one of its targets names."""
    if not isinstance(config, dict):
        return
    table = cast("dict[str, object]", config)
    for name in sorted(CONFIG_FIELDS & table.keys()):
        # Skips objects in these lists: they are guardrails that the config defines itself.
        yield from ((f"{path}.{name}", item) for item in _as_list(table[name]) if isinstance(item, str))
    for index, target in enumerate(_as_list(table.get("targets"))):
        yield from iter_guardrails(target, f"{path}.targets[{index}]")


def _as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
