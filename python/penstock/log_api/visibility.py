"""Access to logs: the workspaces whose logs a caller may see. A caller with a restricted role sees only its own
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import select

from penstock.access.roles import effective_flags
from penstock.access.tenant_rules import organisation_rules
from penstock.errors import ForbiddenError
from penstock.logs.query import Restriction
from penstock.store.tables import users, workspaces

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.authorization import Caller
    from penstock.kit.tenant_session import RequestContext, TenantSession
    from penstock.store.tenant import Row

# Value of the workspace parameter that selects all workspaces that the caller may see.
ALL_WORKSPACES = "*"
# Kind of data that a route returns: figures, the metadata of single requests, or their contents.
LogPart = Literal["figures", "metadata", "contents"]
# Flags of a workspace that let admins of the organisation see its logs, by kind of data.
ADMIN_FLAGS: Mapping[LogPart, str] = {
    "metadata": "organisationAdminsViewLogMetadata",
    "contents": "organisationAdminsViewLogs",
}
VIEW_SCOPES = frozenset({"logs.view", "logs.read"})


class LogAccess(NamedTuple):
    """The part of the logs that a caller may see."""

    organisation_id: str
    # Visible workspaces. `None`: all workspaces of the organisation, and requests without a workspace.
    workspace_ids: list[str] | None
    # User whose own requests alone are visible. `None`: the requests of all users.
    user_id: str | None
    # Email address of that user. Records of requests with a token may name the user by this address.
    email: str | None = None

    @property
    def restriction(self) -> Restriction | None:
        """Restriction of queries to the user's own requests; `None` if all are visible."""
        if self.user_id is None:
            return None
        return Restriction(user_ids=[self.user_id, *([self.email.lower()] if self.email else [])])


async def open_log_access(
    context: RequestContext,
    workspace: str | None,
    part: LogPart,
    *,
    only_default: bool = False,
    scopes: Collection[str] = (),
) -> LogAccess:
    """Returns what the caller may see of the logs of a workspace, or of all workspaces that are open to it.

    With `only_default`, an organisation-wide caller that names no workspace sees only the default workspace, and with
    `*` all. A key of a workspace sees only that workspace, even if it names another. If `scopes` is not empty, the
    caller needs one of them besides the scope of the route. Raises ForbiddenError if nothing is visible.
    """
    requested = None if context.caller.workspace_id or workspace == ALL_WORKSPACES else workspace
    async with context.read_session(requested) as session:
        if scopes:
            session.require_any_scope(*scopes)
        is_default_wanted = only_default and workspace is None and session.workspace_ids is None
        return await find_log_access(session, part, only_default=is_default_wanted)


async def find_log_access(session: TenantSession, part: LogPart, *, only_default: bool = False) -> LogAccess:
    """Returns what the caller of a session may see of the logs in the session's workspaces."""
    caller = session.caller
    above = await organisation_rules(session)
    columns = (workspaces.c.id, workspaces.c.slug, workspaces.c.settings, workspaces.c.is_default)
    rows = await session.fetch_rows(select(*columns), workspaces)
    rows = [row for row in rows if row["is_default"]] if only_default else rows
    flags = {row["id"]: effective_flags(row["settings"], above) for row in rows}
    visible = [row["id"] for row in rows if _may_see(caller, row, flags[row["id"]], part)]
    if rows and not visible:
        listed = ", ".join(repr(row["slug"]) for row in rows[:1])
        raise ForbiddenError(
            f"the logs of the workspace {listed} are not visible to this caller: its settings forbid it"
        )
    is_whole = session.workspace_ids is None and not only_default and len(visible) == len(rows)
    is_restricted = any(_sees_only_own(caller, workspace_id, flags[workspace_id]) for workspace_id in visible)
    user_id = caller.user_id if is_restricted else None
    email = await find_email(session.connection, caller.organisation_id, user_id) if user_id else None
    return LogAccess(caller.organisation_id, None if is_whole else sorted(visible), user_id, email)


async def find_email(connection: AsyncConnection, organisation_id: str, user_id: str) -> str | None:
    """Returns the email address of a user; `None` if the organisation has no such user."""
    query = select(users.c.email).where(users.c.organisation_id == organisation_id, users.c.id == user_id)
    return await connection.scalar(query)


def _may_see(caller: Caller, row: Row, flags: Mapping[str, bool], part: LogPart) -> bool:
    role = caller.roles.get(row["id"])
    if caller.is_organisation_admin and role is None:
        flag = ADMIN_FLAGS.get(part)
        return flag is None or flags[flag]
    if part == "contents" and caller.user_id:
        # A key with `completions.write` may read logs. If it belongs to a user, the role of that user must also allow
        # it.
        return bool(caller.restrict_scopes(VIEW_SCOPES, row["id"]))
    return True


def _sees_only_own(caller: Caller, workspace_id: str, flags: Mapping[str, bool]) -> bool:
    """Returns true if the caller sees only the requests of its own keys. Service keys see all requests."""
    if caller.user_id is None or caller.is_organisation_admin:
        return False
    return not flags.get(f"{caller.roles.get(workspace_id)}sViewAllData", True)


def denied_export_fields(rules: Mapping[str, Any]) -> list[str]:
    """Returns the fields that no log export may contain, from the settings of the organisation."""
    return rules.get("export_settings", {}).get("deniedFields", [])
