"""Finds the objects that use a saved provider or prompt. Users can check them before they change or delete it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Text, cast, exists, or_, select

from penstock.config_references import iter_providers
from penstock.kit.references import MAX_FIELDS, Reference, make_reference
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies
from penstock.store.prompt_tables import prompt_labels, prompts
from penstock.store.tables import configs, versions

if TYPE_CHECKING:
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

POLICY_TABLES = (usage_limits_policies, rate_limits_policies)
# Condition keys of policies that name providers, and those that name prompts.
PROVIDER_KEYS, PROMPT_KEYS = ("virtual_key", "provider"), ("prompt",)


async def find_provider_users(session: TenantSession, row: Row) -> list[tuple[str, Reference]]:
    """Returns configs, prompts and policies that name a provider, each with its key in `references.VISIBLE_WITH`."""
    names = {row["id"], row["slug"]}
    tenant, workspace_id = session.organisation(), row["workspace_id"]
    users: list[tuple[str, Reference]] = []
    is_mentioned = or_(*(configs.c.config.contains(name, autoescape=True) for name in sorted(names)))
    query = select(configs).where(configs.c.workspace_id == workspace_id, is_mentioned).order_by(configs.c.id)
    for config in await tenant.fetch_rows(query, configs):
        mentions = iter_providers(msgspec.json.decode(config["config"]), "config")
        if fields := list(islice(dict.fromkeys(path for path, name in mentions if name in names), MAX_FIELDS)):
            users.append(("config", make_reference("config", config, workspace_id, fields)))
    users += await _find_prompts(session, workspace_id, names)
    return users + await _find_policies(session, workspace_id, PROVIDER_KEYS, names)


async def find_prompt_users(session: TenantSession, row: Row) -> list[tuple[str, Reference]]:
    """Returns the forks of a prompt and the policies that name it, each with its key in `references.VISIBLE_WITH`."""
    query = select(prompts).where(prompts.c.forked_from_prompt_id == row["id"]).order_by(prompts.c.id)
    forks = await session.organisation().fetch_rows(query, prompts)
    users = [
        ("prompt", make_reference("prompt", fork, fork["workspace_id"], ["forked_from_prompt_id"])) for fork in forks
    ]
    return users + await _find_policies(session, row["workspace_id"], PROMPT_KEYS, {row["id"], row["slug"]})


async def _find_prompts(session: TenantSession, workspace_id: str, names: set[str]) -> list[tuple[str, Reference]]:
    """Returns the prompts whose default, newest or labelled version names a provider."""
    number = versions.c.number
    is_labelled = exists().where(prompt_labels.c.prompt_id == prompts.c.id, prompt_labels.c.number == number)
    is_published = or_(number == prompts.c.default_version, number == prompts.c.latest_version, is_labelled)
    # A coarse filter in SQL. The content is checked below.
    is_mentioned = or_(*(cast(versions.c.content, Text).contains(name, autoescape=True) for name in sorted(names)))
    query = (
        select(prompts, number, versions.c.content)
        .join(versions, versions.c.resource_id == prompts.c.id)
        .where(prompts.c.workspace_id == workspace_id, is_published, is_mentioned)
        .order_by(prompts.c.id, number)
    )
    fields: dict[str, list[str]] = {}
    rows: dict[str, Row] = {}
    for row in await session.organisation().fetch_rows(query, prompts):
        if row["content"]["content"]["virtual_key"].removeprefix("@") in names:
            rows[row["id"]] = row
            fields.setdefault(row["id"], []).append(f"versions[{row['number']}].virtual_key")
    return [
        ("prompt", make_reference("prompt", row, workspace_id, fields[key][:MAX_FIELDS])) for key, row in rows.items()
    ]


async def _find_policies(
    session: TenantSession, workspace_id: str, keys: tuple[str, ...], names: set[str]
) -> list[tuple[str, Reference]]:
    users: list[tuple[str, Reference]] = []
    for table in POLICY_TABLES:
        query = select(table).where(table.c.workspace_id == workspace_id).order_by(table.c.id)
        for row in await session.organisation().fetch_rows(query, table):
            fields = [
                f"conditions[{index}]"
                for index, condition in enumerate(row["conditions"])
                if condition["key"] in keys and not names.isdisjoint(_values(condition["value"]))
            ]
            if fields:
                users.append(("policy", make_reference("policy", row, workspace_id, fields[:MAX_FIELDS])))
    return users


def _values(value: str | list[str]) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    return [text.removeprefix("@") for text in texts]
