"""Default guardrails of organisations and workspaces: which apply to a workspace, and what else uses a guardrail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import or_, select

from penstock.errors import ConflictError, Problem, UnknownReferenceError, join_problems, shorten
from penstock.kit.guardrails import ACTIVE
from penstock.kit.rules import organisation_rules
from penstock.store.guardrail_tables import guardrails
from penstock.store.tables import configs, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

# Fields with the guardrails of requests and of responses.
DEFAULT_FIELDS = ("input_guardrails", "output_guardrails")
# Settings field of the organisation with the workspaces that each kind of its defaults does not apply to.
EXCLUSIONS = "guardrail_exclusions"
# Fields of a config, and of the targets in it, that may name saved guardrails.
CONFIG_FIELDS = frozenset({*DEFAULT_FIELDS, "input_mutators", "output_mutators"})
# Users of a guardrail that an error names.
MAX_NAMED_USERS = 10


def effective_defaults(workspace: Mapping[str, Any], above: Mapping[str, Any], name: str) -> list[str]:
    """Returns the ids of the guardrails that apply to all requests of a workspace: those of the organisation, unless
    the workspace is excluded from them, and then its own. `above` has the settings of the organisation.
    """
    is_excluded = workspace["id"] in above.get(EXCLUSIONS, {}).get(name, ())
    inherited: list[str] = [] if is_excluded else above.get("defaults", {}).get(name) or []
    own: list[str] = workspace["defaults"].get(name) or []
    return list(dict.fromkeys([*inherited, *own]))


async def resolve_guardrails(
    session: TenantSession, path: str, keys: Sequence[str], workspace_id: str | None
) -> list[str]:
    """Returns the ids of the guardrails that a field names by id or slug, each once. Rejects guardrails that do not
    exist, are archived, or belong to another workspace. Without a workspace, only those of the organisation are accepted.
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
    """Returns the slugs of guardrails by id. Guardrails that were deleted with their workspace have none."""
    rows = await session.organisation().find_all(guardrails, set(ids))
    return {row["id"]: row["slug"] for row in rows.values()}


async def reject_if_in_use(session: TenantSession, row: Row) -> None:
    """Raises ConflictError with the names of what uses a guardrail: defaults and configs."""
    users = await _find_users(session.organisation(), row)
    if users:
        named = ", ".join(users[:MAX_NAMED_USERS])
        more = f" and {len(users) - MAX_NAMED_USERS} more" if len(users) > MAX_NAMED_USERS else ""
        raise ConflictError(f"the guardrail {row['slug']!r} is used by {named}{more}; remove it there first")


async def _find_users(tenant: TenantSession, row: Row) -> list[str]:
    target_workspace = row["workspace_id"]
    found = [f"the default {name} of the organisation" for name in _names_in(await organisation_rules(tenant), row)]
    query = select(workspaces.c.name, workspaces.c.defaults).where(workspaces.c.status == "active")
    inside = [] if target_workspace is None else [workspaces.c.id == target_workspace]
    for workspace in await tenant.fetch_rows(query.where(*inside).order_by(workspaces.c.id), workspaces):
        found += [f"the default {name} of the workspace {workspace['name']!r}" for name in _names_in(workspace, row)]
    keys = {row["id"], row["slug"]}
    is_mentioned = or_(*(configs.c.config.contains(key, autoescape=True) for key in sorted(keys)))
    config_query = select(configs.c.slug, configs.c.config).where(is_mentioned).order_by(configs.c.id)
    inside = [] if target_workspace is None else [configs.c.workspace_id == target_workspace]
    for config in await tenant.fetch_rows(config_query.where(*inside), configs):
        if not keys.isdisjoint(iter_guardrails(msgspec.json.decode(config["config"]))):
            found.append(f"the config {config['slug']!r}")
    return found


def _names_in(holder: Mapping[str, Any], row: Row) -> list[str]:
    defaults: dict[str, list[str] | None] = holder.get("defaults") or {}
    return [name for name in DEFAULT_FIELDS if row["id"] in (defaults.get(name) or ())]


def iter_guardrails(config: object) -> Iterator[str]:
    """Yields the ids and slugs of saved guardrails that a config or one of its targets names."""
    if not isinstance(config, dict):
        return
    table = cast("dict[str, object]", config)
    for name in CONFIG_FIELDS & table.keys():
        # Objects in these lists are guardrails of the config itself.
        yield from (item for item in _as_list(table[name]) if isinstance(item, str))
    for target in _as_list(table.get("targets")):
        yield from iter_guardrails(target)


def _as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
