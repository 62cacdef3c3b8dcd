"""Prompt partials: texts that templates include with `{{>slug}}`. Their versions are published like those of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, cast, exists, or_, select

from penstock.errors import ConflictError, Problem, shorten
from penstock.ids import new_id
from penstock.kit import versions as saved_versions
from penstock.kit.resource import Resource
from penstock.prompts.collections import resolve_collection
from penstock.prompts.publication import ACTIVE, check_slug, release_slug
from penstock.prompts.templates import TEMPLATE_FIELD, check_template, find_partials
from penstock.schemas import invalid_error
from penstock.similar_names import NameSuggester
from penstock.store.prompt_tables import prompt_labels, prompt_partials, prompts
from penstock.store.tables import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

PARTIALS = Resource("prompt_partials", prompt_partials, publishes=True)
# Maximum number of partials of a workspace, and of versions of a partial.
MAX_PARTIALS, MAX_VERSIONS = 1000, 1000
MAX_NAMED_PROMPTS = 5
ARCHIVED = "archived"


def template_content(template: str) -> dict[str, Any]:
    """Returns the text of a partial in the form that `check_template` and `find_partials` read."""
    return {TEMPLATE_FIELD: template, "is_raw_template": True}


async def create_partial(
    session: TenantSession, workspace_id: str, values: Mapping[str, Any], description: str | None
) -> tuple[Row, str]:
    """Creates a partial with its first version. `values` has its name, slug, collection and text. Returns the row and
    the id of the version.
    """
    template: str = values[TEMPLATE_FIELD]
    await check_template(template_content(template))
    await check_slug(session, prompt_partials, values.get("slug"), workspace_id)
    used = await check_references(session, workspace_id, template_content(template), own_slug=values.get("slug"))
    await _reject_too_many(session, workspace_id)
    columns = {name: value for name, value in values.items() if name != TEMPLATE_FIELD}
    row = await PARTIALS.create(
        session,
        {
            "status": ACTIVE,
            **columns,
            "slug": values.get("slug")
            or await session.generate_unused_slug(prompt_partials, "ppp", values["name"], 10),
            "workspace_id": workspace_id,
            "default_version": 1,
            "latest_version": 1,
            "partials": used,
            "created_by": session.caller.actor_id,
        },
    )
    version_id = new_id()
    await _save_version(session, row, template, description, version_id)
    return row, version_id


async def add_version(
    session: TenantSession, row: Row, template: str, description: str | None
) -> tuple[dict[str, Any], str]:
    """Stores a new version of a partial. Returns the column values that change with it, and its id."""
    await check_template(template_content(template))
    used = await check_references(session, row["workspace_id"], template_content(template), own_slug=row["slug"])
    if row["latest_version"] >= MAX_VERSIONS:
        reason = f"cannot be changed: the partial has {row['latest_version']} versions, and at most {MAX_VERSIONS} are allowed"
        raise ConflictError(f"{TEMPLATE_FIELD} {reason}", [Problem(TEMPLATE_FIELD, reason)])
    version_id = new_id()
    number = await _save_version(session, row, template, description, version_id)
    published = await published_references(session, row, row["default_version"])
    return {"latest_version": number, "partials": sorted({*used, *published})}, version_id


async def publish_values(session: TenantSession, row: Row, version: Row) -> dict[str, Any]:
    """Returns the column values that change when a version of a partial becomes its default. Raises InvalidError if the
    version refers to partials that no longer exist, or would include its own partial.
    """
    content = template_content(version["content"][TEMPLATE_FIELD])
    used = await check_references(session, row["workspace_id"], content, "version", row["slug"])
    newest = await published_references(session, row, row["latest_version"])
    return {"default_version": version["number"], "partials": sorted({*used, *newest})}


async def check_status_change(session: TenantSession, row: Row, status: str) -> None:
    """Rejects archiving a partial that is in use, and activating one that refers to partials that do not exist."""
    if status == ARCHIVED:
        await reject_if_in_use(session, row)
        return
    for number in (row["default_version"], row["latest_version"]):
        version = await saved_versions.find_version(session.organisation(), row["id"], number)
        if version:
            content = template_content(version["content"][TEMPLATE_FIELD])
            await check_references(session, row["workspace_id"], content, "status", row["slug"])


async def published_references(session: TenantSession, row: Row, number: int) -> list[str]:
    """Returns the slugs of the partials that a version of a partial refers to."""
    version = await saved_versions.find_version(session.organisation(), row["id"], number)
    return find_partials(template_content(version["content"][TEMPLATE_FIELD])) if version else []


async def check_references(
    session: TenantSession,
    workspace_id: str,
    content: Mapping[str, Any],
    path: str = TEMPLATE_FIELD,
    own_slug: str | None = None,
) -> list[str]:
    """Returns the slugs of the partials that a template refers to. Raises `InvalidError` with all of them that do not
    exist in the workspace, or that would include the partial `own_slug` again.
    """
    used = find_partials(content)
    if not used:
        return used
    references = await _read_references(session, workspace_id)
    suggester = NameSuggester()
    problems: list[Problem] = []
    for slug in used:
        if slug != own_slug and slug not in references:
            similar = suggester.find(slug, sorted(references))
            hint = f"did you mean {similar!r}?" if similar else "create the partial first"
            problems.append(Problem(path, f"refers to the partial {shorten(slug)!r}, which does not exist; {hint}"))
        elif own_slug and (cycle := _find_cycle(references, own_slug, slug)):
            path_of_cycle = " > ".join(cycle)
            problems.append(Problem(path, f"includes itself: {path_of_cycle}; a partial must not lead back to itself"))
    if problems:
        raise invalid_error(problems)
    return used


async def delete_partial(session: TenantSession, row: Row) -> None:
    """Deletes a partial that is not in use, with its versions."""
    await reject_if_in_use(session, row)
    await release_slug(session, prompt_partials, row)
    await saved_versions.delete_versions(session.organisation(), row["id"])
    await PARTIALS.delete(session, row)


async def reject_if_in_use(session: TenantSession, row: Row) -> None:
    """Raises ConflictError if a partial or a published version of a prompt refers to a partial."""
    references = await _read_references(session, row["workspace_id"])
    names = [f"the partial {slug!r}" for slug, used in sorted(references.items()) if row["slug"] in used]
    names += [f"the prompt {slug!r}" for slug in await _find_prompts(session, row)]
    if names:
        more = f" and {len(names) - MAX_NAMED_PROMPTS} more" if len(names) > MAX_NAMED_PROMPTS else ""
        raise ConflictError(
            f"the partial {row['slug']!r} is used by {', '.join(names[:MAX_NAMED_PROMPTS])}{more}; "
            "remove it from their default, newest and labelled versions first"
        )


async def copy_missing(session: TenantSession, source_id: str, target_id: str, requested: Iterable[str]) -> None:
    """Copies the partials that a template needs from one workspace to another, with the partials that they include.
    Skips slugs that already exist there.
    """
    existing = await _read_references(session, target_id)
    collection = await resolve_collection(session, "collection_id", None, target_id)
    for row in await _rows_to_copy(session, source_id, requested, existing):
        version = await saved_versions.find_version(session.organisation(), row["id"], row["default_version"])
        if version:
            content = version["content"]
            values = {"name": row["name"], "slug": row["slug"], "collection_id": collection["id"]}
            await create_partial(
                session, target_id, {**values, TEMPLATE_FIELD: content[TEMPLATE_FIELD]}, content["description"]
            )


async def _rows_to_copy(
    session: TenantSession, source_id: str, requested: Iterable[str], existing: Mapping[str, Sequence[str]]
) -> list[Row]:
    """Returns the partials to copy, each after those that it includes."""
    condition = [prompt_partials.c.workspace_id == source_id, prompt_partials.c.status == ACTIVE]
    rows = await session.organisation().fetch_rows(select(prompt_partials).where(*condition), prompt_partials)
    by_slug = {row["slug"]: row for row in rows}
    ordered: dict[str, Row] = {}
    entered: set[str] = set()
    pending = list(requested)
    while pending:
        slug = pending[-1]
        row = by_slug.get(slug)
        if row is None or slug in ordered or slug in existing:
            pending.pop()
        elif slug in entered:
            # The partials that it includes are in `ordered` now.
            ordered[slug] = row
            pending.pop()
        else:
            entered.add(slug)
            pending += row["partials"]
    return list(ordered.values())


async def _save_version(
    session: TenantSession, row: Row, template: str, description: str | None, version_id: str
) -> int:
    content = {TEMPLATE_FIELD: template, "description": description}
    return await saved_versions.create_version(session, "prompt_partials", row, content, version_id)


async def _reject_too_many(session: TenantSession, workspace_id: str) -> None:
    count = await session.organisation().count(prompt_partials, [prompt_partials.c.workspace_id == workspace_id])
    if count >= MAX_PARTIALS:
        reason = f"has {count} partials; at most {MAX_PARTIALS} are allowed: delete one first"
        raise ConflictError(f"workspace_id {reason}", [Problem("workspace_id", reason)])


async def _read_references(session: TenantSession, workspace_id: str) -> dict[str, list[str]]:
    """Returns the active partials of a workspace by slug, each with the slugs of those that it refers to."""
    query = select(prompt_partials.c.slug, prompt_partials.c.partials).where(
        prompt_partials.c.workspace_id == workspace_id, prompt_partials.c.status == ACTIVE
    )
    rows = await session.organisation().fetch_rows(query, prompt_partials)
    return {row["slug"]: row["partials"] for row in rows}


def _find_cycle(references: Mapping[str, Sequence[str]], own_slug: str, first: str) -> list[str] | None:
    """Returns the slugs of a cycle: from the partial over `first` back to the partial. `None` if there is no cycle."""
    parents = {first: own_slug}
    pending = [first]
    while pending:
        slug = pending.pop()
        if slug == own_slug:
            cycle = [own_slug]
            while True:
                slug = parents[slug]
                cycle.append(slug)
                if slug == own_slug:
                    return cycle[::-1]
        for inner in references.get(slug, ()):
            if inner not in parents:
                parents[inner] = slug
                pending.append(inner)
    return None


async def _find_prompts(session: TenantSession, row: Row) -> list[str]:
    """Returns the slugs of the prompts whose default, newest or labelled version refers to a partial."""
    is_labelled = exists().where(prompt_labels.c.prompt_id == prompts.c.id, prompt_labels.c.number == versions.c.number)
    number = versions.c.number
    is_published = or_(number == prompts.c.default_version, number == prompts.c.latest_version, is_labelled)
    query = (
        select(prompts.c.slug, versions.c.content)
        .select_from(prompts)
        .join(versions, versions.c.resource_id == prompts.c.id)
        .where(prompts.c.workspace_id == row["workspace_id"], is_published)
        # A coarse filter in SQL. The templates are parsed below.
        .where(cast(versions.c.content, Text).contains(row["slug"], autoescape=True))
        .order_by(prompts.c.id)
    )
    rows = await session.organisation().fetch_rows(query, prompts)
    result = [item["slug"] for item in rows if row["slug"] in find_partials(item["content"]["content"])]
    return list(dict.fromkeys(result))
