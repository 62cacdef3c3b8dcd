"""Prompts: their versions, the fields of a version, and who may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar.params import QueryParameter
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ConflictError, InvalidError, NotFoundError, Problem, shorten
from penstock.ids import new_id
from penstock.integrations.missing_providers import find_missing_providers
from penstock.kit import versions as saved_versions
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import ArchiveStatus, CreatedAt, Id, Name, ObjectType, Slug, UpdatedAt, WorkspaceId
from penstock.prompts.labels import list_prompt_labels
from penstock.prompts.partials import check_references
from penstock.prompts.publication import ACTIVE, check_removal, check_slug, release_slug, shared_conditions
from penstock.prompts.templates import TEMPLATE_FIELD, check_template
from penstock.schemas import field_error, invalid_error, now, unknown_reference_error
from penstock.store.prompt_tables import prompts
from penstock.store.tenant import AMBIGUITY_LIMIT, select_by_id_or_slug

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.integrations.missing_providers import MissingProvider
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

PROMPTS = Resource("prompts", prompts, publishes=True)
MAX_VERSIONS = 1000
# Maximum version number in a request. No prompt has that many versions.
MAX_NUMBER = 1_000_000
# Slugs that prompts cannot have, because their path is another route.
RESERVED_SLUGS = frozenset({"partials"})
# Fields that a new version needs, unless it takes them from the newest version.
REQUIRED_FIELDS = ("string", "parameters", "virtual_key", "model")
# Default value of each version field that the data plane reads.
CONTENT_DEFAULTS: dict[str, Any] = {
    "string": "",
    "is_raw_template": False,
    "parameters": {},
    "virtual_key": "",
    "model": None,
    "functions": None,
    "tools": None,
    "tool_choice": None,
}
CONTENT_FIELDS = tuple(CONTENT_DEFAULTS)
# The two names of the field in which clients store their own notes.
METADATA_FIELDS = ("template_metadata", "prompt_metadata")

ModelName = Annotated[str, Meta(max_length=1024)]
ProviderSlug = Annotated[str, Meta(min_length=1, max_length=256)]
_Description = Annotated[str, Meta(max_length=2000)]
_Object = dict[str, Any]

VirtualKeyField = Annotated[ProviderSlug, Meta(description="slug of the saved provider that requests are sent to")]
ModelField = Annotated[ModelName | None, Meta(description="name of the model")]
TemplateField = Annotated[
    str,
    Meta(
        description="template with Mustache tags such as `{{name}}` and `{{>partial}}`; for a chat, a list of messages as a JSON string"
    ),
]
ParametersField = Annotated[_Object, Meta(description="parameters of the request, such as `max_tokens`")]
OptionalDescription = Annotated[_Description | UnsetType | None, Meta(description="what is new in this version")]
VersionSelector = Annotated[
    str | None, QueryParameter(description="number of a version, `latest`, `default` or a label; default: `latest`")
]
VersionNumber = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_NUMBER)], Meta(description="number of the version that becomes the default")
]


class VersionFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a new version that a client may leave out."""

    functions: Annotated[list[_Object] | UnsetType | None, Meta(description="functions that the model may call")] = (
        UNSET
    )
    tools: Annotated[list[_Object] | UnsetType | None, Meta(description="tools that the model may call")] = UNSET
    tool_choice: Annotated[
        _Object | str | UnsetType | None, Meta(description="tool that the model must call, or a word such as `auto`")
    ] = UNSET
    is_raw_template: Annotated[
        bool | Annotated[int, Meta(ge=0, le=1)] | UnsetType,
        Meta(description="true or 1: the template is rendered as text and then parsed as JSON"),
    ] = UNSET
    version_description: OptionalDescription = UNSET
    template_metadata: Annotated[
        _Object | UnsetType | None, Meta(description="notes of clients on the template; they have no effect")
    ] = UNSET
    prompt_metadata: Annotated[
        _Object | UnsetType | None, Meta(description="other spelling of `template_metadata`")
    ] = UNSET


# Request fields that create a new version of a prompt.
VERSION_FIELDS = frozenset({*REQUIRED_FIELDS, *VersionFields.__struct_fields__})


class PromptSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt in a list."""

    id: Id
    slug: Slug
    name: Name
    collection_id: Annotated[str, Meta(description="id of its collection")]
    workspace_id: WorkspaceId
    model: Annotated[str | None, Meta(description="model of its newest version")]
    default_version: Annotated[int, Meta(description="number of the version that requests use by default")]
    latest_version: Annotated[int, Meta(description="number of the newest version")]
    status: ArchiveStatus
    created_at: CreatedAt
    last_updated_at: UpdatedAt
    object: ObjectType = "prompt"


class PromptContent(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a version: `content` is for the data plane, and the other fields are only for clients."""

    content: dict[str, Any]
    template_metadata: dict[str, Any] | None = None
    description: str | None = None

    @classmethod
    def from_version(cls, version: Row) -> PromptContent:
        """Returns the content of a stored version."""
        return msgspec.convert(version["content"], cls)


def merge_fields(sent: Mapping[str, Any], before: PromptContent | None) -> PromptContent:
    """Returns the content of a new version: the sent fields, and the others from an earlier version if one is given.
    The description is never copied, because it describes the new version.
    """
    fields = dict(sent)
    if "is_raw_template" in fields:
        fields["is_raw_template"] = bool(fields["is_raw_template"])
    # Stores an empty list as null. Responses contain an empty list instead of null.
    fields |= {name: fields[name] or None for name in ("functions", "tools") if name in fields}
    metadata = _template_metadata(fields, before)
    base = before.content if before else CONTENT_DEFAULTS
    content = {name: fields.get(name, base.get(name, default)) for name, default in CONTENT_DEFAULTS.items()}
    return PromptContent(content=content, template_metadata=metadata, description=fields.get("version_description"))


def _template_metadata(fields: Mapping[str, Any], before: PromptContent | None) -> dict[str, Any] | None:
    names = [name for name in METADATA_FIELDS if name in fields]
    if names:
        return fields[names[0]] or None
    return before.template_metadata if before else None


def check_metadata(sent: Mapping[str, Any]) -> None:
    """Raises InvalidError if both spellings of the metadata are sent with different values."""
    values = [sent[name] for name in METADATA_FIELDS if name in sent]
    if len(values) > 1 and values[0] != values[1]:
        raise field_error("prompt_metadata", "differs from template_metadata; send one of them")


def is_same(content: PromptContent, before: PromptContent) -> bool:
    """Returns true if a version would repeat the one before it. A new description makes a new version."""
    names = ("content", "template_metadata")
    has_news = content.description is not None and content.description != before.description
    return not has_news and all(getattr(content, name) == getattr(before, name) for name in names)


def check_required(sent: Mapping[str, Any]) -> None:
    """Raises InvalidError with each field that a new version needs and that was not sent."""
    message = "is needed for a new version; or send `patch`: true, which takes it from the newest version"
    problems = [Problem(name, message) for name in REQUIRED_FIELDS if name not in sent]
    if problems:
        raise invalid_error(problems)


async def check_new_slug(session: TenantSession, workspace_id: str | None, slug: str | None) -> None:
    """Checks the slug that a client chose for a new prompt; `workspace_id` is `None` if the workspace is not known."""
    if slug in RESERVED_SLUGS:
        raise field_error("slug", f"{slug!r} is not allowed: choose another slug")
    if workspace_id:
        await check_slug(session, prompts, slug, workspace_id)


async def create_prompt(
    session: TenantSession, workspace_id: str, values: Mapping[str, Any], content: PromptContent
) -> tuple[Row, str]:
    """Creates a prompt with its first version, whose content has been checked; it is the default. Returns the row and
    the id of the version.
    """
    row = await PROMPTS.create(
        session,
        {
            "status": ACTIVE,
            **values,
            "slug": values.get("slug") or await session.generate_unused_slug(prompts, "pp", values["name"], 10),
            "workspace_id": workspace_id,
            "model": content.content["model"],
            "default_version": 1,
            "latest_version": 1,
            "created_by": session.caller.actor_id,
        },
    )
    version_id = new_id()
    await saved_versions.create_version(session, "prompts", row, msgspec.structs.asdict(content), version_id)
    return row, version_id


async def add_version(session: TenantSession, row: Row, content: PromptContent) -> tuple[dict[str, Any], str]:
    """Stores a new version of a prompt, whose content has been checked. Returns the column values that change with it,
    and its id.
    """
    if row["latest_version"] >= MAX_VERSIONS:
        reason = f"cannot be changed: the prompt has {row['latest_version']} versions, and at most {MAX_VERSIONS} are allowed; fork it"
        raise ConflictError(f"{TEMPLATE_FIELD} {reason}", [Problem(TEMPLATE_FIELD, reason)])
    version_id = new_id()
    number = await saved_versions.create_version(session, "prompts", row, msgspec.structs.asdict(content), version_id)
    return {"latest_version": number, "model": content.content["model"]}, version_id


async def check_content(session: TenantSession, workspace_id: str, content: PromptContent) -> None:
    """Checks the template of a version, its size, and that the partials that it names exist."""
    await check_template(content.content, content.template_metadata)
    await check_references(session, workspace_id, content.content)


async def find_warnings(session: TenantSession, row: Row, content: PromptContent) -> list[MissingProvider] | UnsetType:
    """Returns a warning if the workspace of a prompt does not have the provider that a version names."""
    references = {"virtual_key": content.content["virtual_key"]}
    return await find_missing_providers(session, row["workspace_id"], references)


async def check_version_references(session: TenantSession, row: Row, version: Row) -> None:
    """Raises InvalidError if partials that a version names have been deleted since it was saved."""
    await check_references(session, row["workspace_id"], PromptContent.from_version(version).content, "version")


async def find_by_number(session: TenantSession, row: Row, number: int, path: str = "version") -> Row:
    """Returns the version with a number that the body names."""
    version = await saved_versions.find_version(session.organisation(), row["id"], number)
    if version is None:
        raise unknown_reference_error(path, f"{number} does not exist: the newest version is {row['latest_version']}")
    return version


async def get_version_by_id(session: TenantSession, row: Row, version_id: str) -> Row:
    """Returns the version of a prompt or partial with this id."""
    version = await saved_versions.find_version(session.organisation(), row["id"], version_id)
    if version is None:
        raise NotFoundError(f"{row['slug']!r} has no version with the id {shorten(version_id)!r}")
    return version


async def select_version(session: TenantSession, row: Row, selector: str | None) -> Row:
    """Returns the version that a query selects: a number, `latest`, `default`, or the name of a label."""
    number = await _selected_number(session, row, selector)
    version = None if number is None else await saved_versions.find_version(session.organisation(), row["id"], number)
    if version is None:
        message = f"{row['slug']!r} has no version {shorten(selector or 'latest')!r}; versions are numbers, latest, default and labels"
        raise NotFoundError(message)
    return version


async def _selected_number(session: TenantSession, row: Row, selector: str | None) -> int | None:
    if selector in {None, "", "latest"}:
        return row["latest_version"]
    if selector == "default":
        return row["default_version"]
    if selector is not None and selector.isascii() and selector.isdecimal():
        return int(selector) if len(selector) <= len(str(MAX_NUMBER)) else None
    placed = await list_prompt_labels(session, [row["id"]])
    return next((label["number"] for label in placed if label["name"] == selector), None)


async def get_readable_prompt(session: TenantSession, key: str) -> Row:
    """Returns a prompt of the caller's workspaces, or one that another workspace shares with them. Raises NotFoundError
    if there is none.
    """
    row = await session.find(prompts, key) or await _find_shared(session, key)
    if row is None:
        message = f"no object with the id or slug {key!r} was found"
        raise NotFoundError(message)
    session.set_requested_row(prompts, row)
    return row


async def _find_shared(session: TenantSession, key: str) -> Row | None:
    query = select_by_id_or_slug(prompts, key).where(*shared_conditions(session.workspace_ids))
    rows = await session.organisation().fetch_rows(query.limit(AMBIGUITY_LIMIT), prompts)
    if len(rows) == AMBIGUITY_LIMIT and rows[0]["id"] != key:
        message = f"{shorten(key)!r} is the slug of several shared prompts; use the id instead"
        raise InvalidError(message, [Problem("key", message)])
    return rows[0] if rows else None


async def labels_by_version(session: TenantSession, prompt_ids: Iterable[str]) -> dict[tuple[str, int], list[Row]]:
    """Returns the labels on versions of these prompts, by prompt and number; most recently moved first."""
    labels: dict[tuple[str, int], list[Row]] = {}
    for row in await list_prompt_labels(session, prompt_ids):
        labels.setdefault((row["prompt_id"], row["number"]), []).append(row)
    return labels


async def touch_prompt(session: TenantSession, row: Row) -> None:
    """Changes the time of a prompt's last change, so that If-Match detects a change of its labels."""
    # The new time must be later than the old one, or two changes within one millisecond would look like one.
    await session.update(prompts, row["id"], {"last_updated_at": max(now(), row["last_updated_at"] + 1)})


async def delete_prompt(session: TenantSession, row: Row) -> None:
    """Deletes a prompt with its versions and labels."""
    await check_removal(session, row)
    await release_slug(session, prompts, row)
    await saved_versions.delete_versions(session.organisation(), row["id"])
    await PROMPTS.delete(session, row)
