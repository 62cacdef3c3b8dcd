"""Revocation of sessions after other changes, such as a new password. Writes the same audit log entries as signing out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from penstock.store.tables import sessions

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession


async def end_sessions(desk: TenantSession, *conditions: ColumnElement[bool]) -> None:
    """Ends all sessions that match the conditions."""
    whole = desk.organisation()
    ended = await whole.fetch_rows(select(sessions).where(*conditions), sessions)
    if ended:
        await whole.delete(sessions, *conditions)
        await whole.record_deletions("sessions.delete", ended)
