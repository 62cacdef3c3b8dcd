"""Objects that use a saved object, such as the configs that name a guardrail. Users can check them before they change
or delete it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import ConflictError
from penstock.kit import shared_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

Kind = Literal["config", "workspace", "organisation", "api_key", "prompt", "policy"]
# Maximum number of using objects that an error names.
MAX_NAMED_USERS = 10
# Maximum number of using objects that a response lists. Its `total` counts all of them.
MAX_SHOWN_USERS = 200
# Maximum number of fields that a response lists for each using object.
MAX_FIELDS = 20
# Scopes by type of the using object. A caller needs one of the scopes to see objects of that type.
VISIBLE_WITH = {
    "config": frozenset({"configs.list", "configs.read"}),
    "prompt": frozenset({"prompts.list", "prompts.read"}),
    "policy": frozenset({"policies.list", "policies.read"}),
    "workspace": frozenset({"workspaces.list", "workspaces.read"}),
    "organisation": frozenset({"organisation_settings.read"}),
    "organisation-service": frozenset({"organisation_service_api_keys.list"}),
    "workspace-service": frozenset({"workspace_service_api_keys.list"}),
    "workspace-user": frozenset({"workspace_user_api_keys.list"}),
}


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An object that uses another one."""

    kind: Annotated[Kind, Meta(description="type of the object that uses it")]
    id: shared_fields.Id
    slug: Annotated[str | None, Meta(description="slug; null for types without one")] = None
    name: shared_fields.Name
    workspace_id: Annotated[str | None, Meta(description="id of its workspace; null if the organisation owns it")]
    fields: Annotated[list[str], Meta(description="fields that name it, such as `targets[0].input_guardrails`")]
    object: shared_fields.ObjectType = "reference"


class ReferenceList(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that use an object."""

    total: Annotated[int, Meta(description="number of objects that use it")]
    hidden: Annotated[int, Meta(description="how many of them the caller may not see")]
    data: Annotated[list[Reference], Meta(description=f"the others, at most {MAX_SHOWN_USERS}")]
    object: shared_fields.ObjectType = "list"


def make_reference(kind: Kind, row: Row, workspace_id: str | None, fields: list[str]) -> Reference:
    """Returns the reference of a row. Rows of some types have no slug, and policies may have no name."""
    slug: str | None = row.get("slug")
    name: str = row["name"] or row["id"]
    return Reference(kind=kind, id=row["id"], slug=slug, name=name, workspace_id=workspace_id, fields=fields)


def list_visible(session: TenantSession, users: Sequence[tuple[str, Reference]]) -> ReferenceList:
    """Returns the using objects that the caller may see, and the number of the others. `users` contains each with its
    key in `VISIBLE_WITH`.
    """
    visible = [user for needed, user in users if _is_visible(session, needed, user)]
    return ReferenceList(total=len(users), hidden=len(users) - len(visible), data=visible[:MAX_SHOWN_USERS])


def _is_visible(session: TenantSession, needed: str, user: Reference) -> bool:
    caller = session.caller
    if caller.workspace_id is not None and user.workspace_id != caller.workspace_id:
        return False
    return not VISIBLE_WITH[needed].isdisjoint(caller.granted_scopes(user.workspace_id))


def reject_if_used(kind: str, slug: str, users: Sequence[tuple[str, Reference]]) -> None:
    """Raises ConflictError with the names of the objects that use an object, if there are any."""
    if not users:
        return
    names = ", ".join(_describe(user) for _, user in users[:MAX_NAMED_USERS])
    more = f" and {len(users) - MAX_NAMED_USERS} more" if len(users) > MAX_NAMED_USERS else ""
    raise ConflictError(f"the {kind} {slug!r} is used by {names}{more}; remove it there first")


def _describe(user: Reference) -> str:
    if user.kind == "config":
        return f"the config {user.slug!r}"
    if user.kind == "api_key":
        kind = "a default guardrail" if user.fields[0].endswith("_guardrails") else "its default"
        return f"the key {user.name!r} as {kind}"
    field = user.fields[0].removeprefix("defaults.")
    owner = "the organisation" if user.kind == "organisation" else f"the workspace {user.name!r}"
    return f"the default {field} of {owner}"
