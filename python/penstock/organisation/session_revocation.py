"""Revocation of sessions after changes such as a new password. Writes the same audit log entries as signing out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from penstock.store.tables import sessions

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession


async def end_sessions(session: TenantSession, *conditions: ColumnElement[bool]) -> None:
    """Ends all sessions that match the conditions."""
    org_session = session.organisation()
    ended = await org_session.fetch_rows(select(sessions).where(*conditions), sessions)
    if ended:
        await org_session.delete(sessions, *conditions)
        await org_session.record_deletions("sessions.delete", ended)
