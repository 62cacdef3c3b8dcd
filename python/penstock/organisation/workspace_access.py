"""Access of workspaces to a secret of the organisation: all of them may use it, or the listed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

from msgspec import UNSET, Meta, UnsetType

from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kit.tenant_session import TenantSession

_WorkspaceIds = Annotated[list[str], Meta(min_length=1)]
AllWorkspaces = Annotated[
    bool | UnsetType,
    Meta(description="true if all workspaces may use it; default: true, unless allowed_workspaces is given"),
]
OptionalAllWorkspaces = Annotated[bool | UnsetType, Meta(description="true if all workspaces may use it")]
AllowedWorkspaces = Annotated[
    _WorkspaceIds | UnsetType, Meta(description="ids or slugs of the workspaces that may use it")
]
# Access columns of a new row if the request names no workspaces: all may use the secret.
ALL_WORKSPACES: dict[str, Any] = {"allow_all_workspaces": True, "allowed_workspaces": []}


class AccessFields(Protocol):
    """Fields of a request body that define which workspaces may use a secret."""

    @property
    def allow_all_workspaces(self) -> bool | UnsetType:
        """True if all workspaces may use it."""
        ...

    @property
    def allowed_workspaces(self) -> list[str] | UnsetType:
        """Ids or slugs of the workspaces that may use it."""
        ...


async def resolve_access(session: TenantSession, data: AccessFields, before: Collection[str]) -> dict[str, Any]:
    """Returns the access columns for the workspaces in a request. Those in `before`, the stored ones, are accepted even
    if they are archived.
    """
    if data.allowed_workspaces is not UNSET:
        if data.allow_all_workspaces is True:
            raise field_error(
                "allowed_workspaces", "cannot be combined with allow_all_workspaces: true; omit allow_all_workspaces"
            )
        rows = [
            await session.resolve_workspace(f"allowed_workspaces[{index}]", key, before)
            for index, key in enumerate(data.allowed_workspaces)
        ]
        ids = list(dict.fromkeys(row["id"] for row in rows))
        return {"allow_all_workspaces": False, "allowed_workspaces": ids}
    if data.allow_all_workspaces is True:
        return dict(ALL_WORKSPACES)
    return {} if data.allow_all_workspaces is UNSET else {"allow_all_workspaces": False}
