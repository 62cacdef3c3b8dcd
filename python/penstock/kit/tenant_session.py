"""Where a caller works: the store from inside what the key is for, with a note of each change."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from litestar import Request  # noqa: TC002 - the framework looks at annotations when it runs
from litestar.enums import RequestEncodingType
from sqlalchemy import bindparam, or_, select

from penstock.authorization import Caller, lacking, shown
from penstock.errors import ForbiddenError, Problem, SettingsError, StaleError
from penstock.ids import new_key, slug
from penstock.kit.audit import Asked, note
from penstock.kit.compat import reads_single_limits
from penstock.kit.preconditions import ANY, claim, expected, tag
from penstock.schemas import refuse, unknown
from penstock.store.tables import configs, workspaces
from penstock.store.tenant import Tenant, naming

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping

    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.kit.authentication import Identities
    from penstock.kit.client_ip import Proxies
    from penstock.secrets.vault import Vault
    from penstock.settings import Settings
    from penstock.store.database import Database
    from penstock.store.tenant import Row


# Nothing is changed in an archived workspace; it can be looked at.
OPEN = frozenset({"active"})
KNOWN = OPEN | {"archived"}
# Written once: to write a query takes longer than to have it answered.
WORKSPACE = (
    naming(workspaces, bindparam("key"))
    .with_only_columns(workspaces.c.id)
    .where(workspaces.c.status.in_(bindparam("states", expanding=True)))
)


class Subject:
    """The row that a request is about, as it was read, and which states of it the caller counts on."""

    table: Table | None = None
    seen: Row | None = None
    expected: frozenset[str] | None = None

    @property
    def row_id(self) -> str:
        """Its id."""
        return self.seen["id"] if self.seen else ""


class Desk(Tenant):
    """One transaction of one caller, inside one organisation and workspace."""

    def __init__(
        self,
        connection: AsyncConnection,
        caller: Caller,
        workspace_id: str | None,
        office: Office,
        asked: Callable[[], Awaitable[Asked]],
    ) -> None:
        """Sit down."""
        super().__init__(connection, caller.organisation_id, workspace_id)
        self.caller = caller
        # Read when something is noted: most requests change nothing.
        self._asked = asked
        self.about = Subject()
        # The workspace that changes of rows belong to which do not say it themselves.
        self.noted_in: str | None = None
        self._office = office

    @property
    def workspace(self) -> str:
        """The workspace, for what cannot be without one."""
        if self.workspace_id is None:
            raise refuse("workspace_id", "is needed with a key that is for no single workspace")
        return self.workspace_id

    @property
    def places(self) -> frozenset[str] | None:
        """The workspaces that are open here; none where all of the organisation is."""
        return self.among if self.workspace_id is None else frozenset([self.workspace_id])

    def address(self, table: Table, row: Row) -> None:
        """Note that the request is about this row, if it is the first."""
        if self.about.table is None:
            self.about.table, self.about.seen = table, {name: row[name] for name in _names(table)}
            self.narrow(row)

    def narrow(self, row: Row) -> None:
        """Go on as if the workspace of this row had been named, where several are open."""
        if self.among is not None and row.get("workspace_id") in self.among:
            self.workspace_id, self.among = row["workspace_id"], None

    def seen(self) -> str | None:
        """Say in which state the row was read that the request is about."""
        return tag(self.about.seen) if self.about.seen else None

    async def tag(self) -> str | None:
        """Say in which state that row is after a change, if it is still there."""
        if self.about.table is None:
            return None
        row = await self.organisation().find(self.about.table, self.about.row_id)
        return tag(row) if row else None

    async def agree(self, table: Table, row: Row) -> None:
        """See whether the row that the request is about is as the caller counts on; once, and holding it there."""
        about = self.about
        if about.expected is None or about.table is not table or about.row_id != row["id"]:
            return
        held = await self.rows(select(table).where(table.c.id == row["id"]).with_for_update(), table)
        if not held or not about.expected & {ANY, tag(held[0])}:
            raise _stale("names another state: it was changed since it was read; hint: read it again")
        about.expected = None

    @property
    def granted(self) -> frozenset[str]:
        """What the caller may do here; in all of the workspaces where none is chosen."""
        if self.among is None:
            return self.caller.grants(self.workspace_id)
        every = [self.caller.grants(workspace_id) for workspace_id in self.among]
        return every[0].intersection(*every[1:])

    def require(self, *scopes: str) -> None:
        """Ask for one of these scopes, where which depends on what is asked for."""
        if not self.granted.intersection(scopes):
            raise lacking(scopes)

    def organisation(self) -> Desk:
        """Step out of the workspace: for what all of the organisation shares. The caller narrows it."""
        desk = Desk(self.connection, self.caller, None, self._office, self._asked)
        desk.bell, desk.about = self.bell, self.about
        return desk

    async def refer(self, path: str, table: Table, key: str, what: str, *conditions: ColumnElement[bool]) -> Row:
        """Find a row that the body names; where there is none, the field is refused."""
        row = await self.first(naming(table, key).where(*conditions), table)
        if row is None:
            raise unknown(path, f"{key!r} is no {what}")
        return row

    async def refer_to_workspace(self, path: str, key: str, kept: Collection[str]) -> Row:
        """Find a workspace that the body names; one that was archived meanwhile only where it is `kept`, by its id."""
        is_open = or_(workspaces.c.status == "active", workspaces.c.id.in_(kept))
        return await self.refer(path, workspaces, key, "workspace of this organisation that is not archived", is_open)

    async def refer_to_config(self, path: str, key: str, kept: str | None, *conditions: ColumnElement[bool]) -> Row:
        """Find a config that the body names; one that was archived meanwhile only where it is `kept`, by its id."""
        is_open = or_(configs.c.status == "active", configs.c.id == kept)
        return await self.refer(
            path, configs, key, "config of this workspace that is not archived", is_open, *conditions
        )

    def may_give(self, scopes: Iterable[str], workspace_id: str | None) -> None:
        """Refuse to give others what the caller may not do."""
        if beyond := sorted(set(scopes) - self.caller.may_give(workspace_id)):
            raise ForbiddenError(f"this key may not give {beyond[0]!r}: it does not hold it")

    async def note(
        self, action: str, *, before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None
    ) -> None:
        """Note a change in the audit log."""
        await note(self, self.caller, await self._asked(), action, [(before, after)], self.noted_in)

    async def note_gone(self, action: str, rows: Iterable[Row]) -> None:
        """Note of each of these rows that it is gone."""
        await note(self, self.caller, await self._asked(), action, [(row, None) for row in rows], self.noted_in)

    async def new_slug(self, table: Table, prefix: str, name: str, length: int) -> str:
        """Make a slug that nobody has here: of thousands that are named alike, two would get the same by chance."""
        whole = self.organisation()
        while await whole.count(table, [table.c.slug == (made := slug(prefix, name, length))]):
            pass
        return made

    @property
    def lends(self) -> bool:
        """Whether the operator lets stored things use the identity of this machine."""
        return self._office.lends

    def new_key(self) -> str:
        """Make the text of a gateway key."""
        return new_key(self._office.key_prefix)

    async def reads_single_limits(self) -> bool:
        """Whether the caller knows limits in lists as one table each."""
        return reads_single_limits((await self._asked()).fields, self._office.header_aliases)

    async def seal(self, text: str, owner: str) -> str:
        """Seal a credential of a row."""
        return await self._office.vault.seal(self.connection, text, owner)

    async def open(self, sealed: str, owner: str) -> str:
        """Open a credential of a row."""
        return await self._office.vault.open(self.connection, sealed, owner)


def _stale(why: str) -> StaleError:
    return StaleError(f"If-Match {why}", [Problem("If-Match", why)])


@cache
def _names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


async def asked(request: Request[Any, Any, Any]) -> Asked:
    """Read what a request says of itself; of a form no more than that."""
    is_json = request.content_type[0] == RequestEncodingType.JSON
    body = await request.body() if is_json and request.method != "GET" else b""
    proxies: Proxies = request.app.state["proxies"]
    return Asked(
        request.method,
        request.url.path[:2048],
        request.url.query[:2048],
        request.headers.get("x-request-id", "")[:128],
        proxies.client(request),
        dict(request.headers),
        body,
        request.route_handler.status_code,
    )


async def _known(asked: Asked) -> Asked:
    return asked


class Work:
    """A caller's way to a desk; what a route is given."""

    def __init__(self, office: Office, request: Request[Any, Caller, Any]) -> None:
        """Take the caller whom the guard recognised."""
        self.caller = request.auth
        self._request = request
        self._state: dict[str, Any] = request.scope["state"]
        self.limits = office.limits
        self._office = office
        # Where the guard asked for no scope the route itself keeps to what is the caller's own.
        self._needs: frozenset[str] | None = request.scope["state"]["needs"]
        self._said: Asked | None = None
        # The workspace that the query names, where the route has it read.
        self.place: str | None = None

    @asynccontextmanager
    async def reading(self, workspace: str | None = None) -> AsyncGenerator[Desk]:
        """Read in a workspace, by id or slug, or in all of the organisation where the key is for that."""
        async with self._office.database.reading() as connection:
            desk = await self._enter(connection, workspace)
            yield desk
            self._state["etag"] = desk.seen()

    @asynccontextmanager
    async def anywhere(self) -> AsyncGenerator[Desk]:
        """Read what is open to the caller in all of the organisation; the route itself narrows it to that."""
        async with self._office.database.reading() as connection:
            yield Desk(connection, self.caller, self.caller.workspace_id, self._office, self._asked)

    @asynccontextmanager
    async def at_home(self) -> AsyncGenerator[Desk]:
        """Change what is the caller's own; the route itself narrows it to that."""
        if self._request.headers.get("if-match") is not None:
            raise _stale("names a state, and this depends on none")
        async with self._office.writing_as(self.caller, await self._asked()) as desk:
            desk.caller = await self._still(desk.connection)
            yield desk
        self._hold(desk)

    @asynccontextmanager
    async def writing(self, workspace: str | None = None) -> AsyncGenerator[Desk]:
        """Change something; it is kept when this ends well."""
        # Nobody waits for the rest of a body while holding the turn.
        await self._asked()
        await self._office.ready()
        async with self._office.database.writing() as connection:
            await self._office.turn(connection, self.caller)
            await self._still(connection)
            desk = await self._enter(connection, workspace, among=OPEN)
            await claim(desk, self._request)
            desk.about.expected = expected(self._request.headers.get("if-match"))
            yield desk
            if desk.about.expected is not None:
                raise _stale("names a state, and this depends on none")
            self._state["etag"] = await desk.tag()
        self._office.changed(published=desk.bell.rung)
        self._hold(desk)

    async def _asked(self) -> Asked:
        """Read what the request says of itself, once."""
        self._said = self._said or await asked(self._request)
        return self._said

    async def _still(self, connection: AsyncConnection) -> Caller:
        """See who the caller is after the wait for a turn: what was taken away meanwhile is gone."""
        self.caller = await self._office.identities.again(connection, shown(self._request))
        return self.caller

    def _hold(self, desk: Desk) -> None:
        """Have the answer held until the data plane goes by what was changed, if that is a matter of its."""
        if desk.bell.number is not None:
            self._state["awaited"] = desk.bell.number

    async def _enter(
        self, connection: AsyncConnection, workspace: str | None, *, among: frozenset[str] = KNOWN
    ) -> Desk:
        workspace_id = await self._workspace(connection, workspace, among)
        if self._needs and workspace_id is None and self.caller.user_id and not self.caller.leads:
            return self._among(connection, self._needs)
        if self._needs is not None and not self._needs & self.caller.grants(workspace_id):
            raise lacking(self._needs)
        return Desk(connection, self.caller, workspace_id, self._office, self._asked)

    def _among(self, connection: AsyncConnection, needed: frozenset[str]) -> Desk:
        """Sit down in all workspaces where the person may do that: the row that is asked for says which it is."""
        open_to_caller = frozenset(place for place in self.caller.roles if needed & self.caller.grants(place))
        if not open_to_caller:
            raise lacking(needed)
        desk = Desk(connection, self.caller, None, self._office, self._asked)
        desk.among = open_to_caller
        return desk

    async def _workspace(self, connection: AsyncConnection, wanted: str | None, among: frozenset[str]) -> str | None:
        own = self.caller.workspace_id
        if among is OPEN:
            # It may have been archived since the key was looked up.
            wanted = wanted or own
        elif wanted == own:
            wanted = None
        if wanted is None:
            return own
        whole = Tenant(connection, self.caller.organisation_id, None)
        rows = await whole.asked(WORKSPACE, workspaces, key=wanted, states=sorted(among))
        found: str | None = rows[0]["id"] if rows else None
        open_to_caller = found == own if own else self.caller.leads or found in self.caller.roles
        if found is None or not open_to_caller:
            message = f"the workspace {wanted!r} is not open to this key"
            raise ForbiddenError(message)
        return found


class News(Protocol):
    """How the data plane learns of a change."""

    def ring(self) -> None:
        """Say that there is one."""
        ...

    async def known(self, number: int) -> None:
        """Wait, but not for ever, until each worker of this node goes by it."""
        ...


class Office:
    """What all desks share, and who is told when something changed."""

    def __init__(
        self, settings: Settings, database: Database, vault: Vault, identities: Identities, news: News
    ) -> None:
        """Take the parts, and of the settings what bounds and names what is written."""
        self.limits = settings.routing.target_limits
        self.key_prefix = settings.store.key_prefix
        self.lends = settings.identity.lend
        self.header_aliases = settings.security.header_aliases
        self.database = database
        self.vault = vault
        self.identities = identities
        self._news = news

    def work(self, request: Request[Any, Caller, Any]) -> Work:
        """Give a route its caller's way to a desk."""
        return Work(self, request)

    @asynccontextmanager
    async def writing_as(self, caller: Caller, asked: Asked) -> AsyncGenerator[Desk]:
        """Change something in all of the organisation; whoever opens this narrows it to what the caller may."""
        await self.ready()
        async with self.database.writing() as connection:
            await self.turn(connection, caller)
            desk = Desk(connection, caller, None, self, partial(_known, asked))
            yield desk
        self.changed(published=desk.bell.rung)

    async def ready(self) -> None:
        """Have a data key for what a change may seal, before it begins: what it takes back takes no key along."""
        # A change that seals nothing needs none; the others say what is wrong.
        with suppress(SettingsError):
            await self.vault.renew(self.database)

    async def turn(self, connection: AsyncConnection, caller: Caller) -> None:
        """Wait until nobody else changes the caller's organisation: whoever comes later sees what was done here."""
        await Tenant(connection, caller.organisation_id, None).alone(self.database.turn_ms)

    def forget(self) -> None:
        """Have callers looked up anew."""
        self.identities.forget()

    def changed(self, *, published: bool) -> None:
        """Tell that something changed: keys are looked up anew, and the data plane learns what it must know."""
        self.forget()
        if published:
            self._news.ring()

    async def known(self, number: int) -> None:
        """Wait until the data plane of this node goes by a change."""
        await self._news.known(number)
