"""Database session of one caller within its organisation and workspace. Checks scopes and records every change in the
audit log.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from litestar import Request  # noqa: TC002 - the framework reads the annotations at runtime
from litestar.enums import RequestEncodingType
from sqlalchemy import bindparam, or_, select

from penstock.access.audit import RequestInfo, write_audit_rows
from penstock.authorization import Caller, extract_credential, missing_scope_error
from penstock.errors import ForbiddenError, PreconditionFailedError, Problem, SettingsError, UnavailableError
from penstock.fetch import Fetcher
from penstock.ids import generate_key, generate_slug
from penstock.kit.client_ip import client_address
from penstock.kit.compat import expects_single_limits, takes_workspace
from penstock.kit.preconditions import WILDCARD_ETAG, claim_idempotency_key, parse_if_match, row_etag
from penstock.kit.request_id import request_id
from penstock.schemas import field_error, invalid_error, unknown_reference_error
from penstock.settings import read_toml_file
from penstock.store.prompt_tables import prompts
from penstock.store.tables import configs, versions, workspaces
from penstock.store.tenant import TenantStore, select_by_id_or_slug

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping

    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.access.authentication import CallerAuthenticator
    from penstock.secrets.vault import Vault
    from penstock.settings import Settings
    from penstock.store.database import Database
    from penstock.store.tenant import Row


# Header with the Unix time in milliseconds after which the edge worker no longer waits for the response.
DEADLINE_HEADER = "x-penstock-deadline-ms"
# Statuses of workspaces that a session may change, and may read. An archived workspace is read-only.
WRITABLE_STATES = frozenset({"active"})
READABLE_STATES = WRITABLE_STATES | {"archived"}
# Read-only fields, besides times, that other requests and jobs change. A client may therefore send back an old value.
CHANGING_FIELDS = frozenset(["status", "current_usage", "updated_by", "version_id", "workspace_count"])
# Built only once, because building a query takes longer than running it.
WORKSPACE_ID_QUERY = (
    select_by_id_or_slug(workspaces, bindparam("key"))
    .with_only_columns(workspaces.c.id)
    .where(workspaces.c.status.in_(bindparam("states", expanding=True)))
)
# Selects a version of a prompt if it may be used: the prompt and its workspace are active.
PROMPT_VERSION_QUERY = (
    select(versions)
    .join(prompts, prompts.c.id == versions.c.resource_id)
    .join(workspaces, workspaces.c.id == prompts.c.workspace_id)
    .where(prompts.c.id == bindparam("prompt_id"), versions.c.number == bindparam("number"))
    .where(prompts.c.status == "active", workspaces.c.status == "active")
)


class RequestedRow:
    """The row that a request is about, as it was read, and the entity tags that the client expects."""

    table: Table | None = None
    row: Row | None = None
    expected_tags: frozenset[str] | None = None

    @property
    def row_id(self) -> str:
        """Id of the row; empty if there is no row."""
        return self.row["id"] if self.row else ""


class TenantSession(TenantStore):
    """One transaction of one caller, inside one organisation and workspace."""

    def __init__(
        self,
        connection: AsyncConnection,
        caller: Caller,
        workspace_id: str | None,
        services: Services,
        read_request_info: Callable[[], Awaitable[RequestInfo]],
    ) -> None:
        """Opens the session within the organisation of the caller."""
        super().__init__(connection, caller.organisation_id, workspace_id)
        self.caller = caller
        # Called only when a change is recorded, because most requests change no data.
        self._read_request_info = read_request_info
        self.about = RequestedRow()
        # Workspace of audit entries for rows that do not name a workspace themselves.
        self.noted_in: str | None = None
        self._services = services

    @property
    def required_workspace_id(self) -> str:
        """Id of the workspace; raises InvalidError if the session has no single workspace."""
        if self.workspace_id is None:
            raise field_error("workspace_id", "is required with a key that is not bound to a single workspace")
        return self.workspace_id

    @property
    def bound_workspace_id(self) -> str:
        """Id of the workspace, for routes without a parameter for it; raises ForbiddenError if the session has no single
        workspace.
        """
        if self.workspace_id is None:
            raise ForbiddenError("this caller is not bound to a workspace; send a key of a workspace")
        return self.workspace_id

    @property
    def workspace_ids(self) -> frozenset[str] | None:
        """Ids of the accessible workspaces; `None` if the whole organisation is accessible."""
        return self.among if self.workspace_id is None else frozenset([self.workspace_id])

    def set_requested_row(self, table: Table, row: Row) -> None:
        """Records the row that the request is about, unless one is recorded already."""
        if self.about.table is None:
            self.about.table, self.about.row = table, {name: row[name] for name in _column_names(table)}
            self.narrow_to_workspace(row)

    def narrow_to_workspace(self, row: Row) -> None:
        """Restricts the session to the workspace of this row, if several workspaces are accessible."""
        if self.among is not None and row.get("workspace_id") in self.among:
            self.workspace_id, self.among = row["workspace_id"], None

    def etag_before(self) -> str | None:
        """Returns the entity tag of the requested row as it was read, or `None`."""
        return row_etag(self.about.row) if self.about.row else None

    async def etag_after(self) -> str | None:
        """Returns the entity tag of the requested row after the change; `None` if the row no longer exists."""
        if self.about.table is None:
            return None
        row = await self.organisation().find(self.about.table, self.about.row_id)
        return row_etag(row) if row else None

    async def check_precondition(self, table: Table, row: Row) -> None:
        """Compares the requested row with If-Match, once, and locks it. Raises PreconditionFailedError if it was
        changed.
        """
        about = self.about
        if about.expected_tags is None or about.table is not table or about.row_id != row["id"]:
            return
        locked_rows = await self.fetch_rows(select(table).where(table.c.id == row["id"]).with_for_update(), table)
        if not locked_rows or not about.expected_tags & {WILDCARD_ETAG, row_etag(locked_rows[0])}:
            raise _precondition_failed("names another state: it was changed since it was read; hint: read it again")
        about.expected_tags = None

    @property
    def granted_scopes(self) -> frozenset[str]:
        """Scopes of the caller here. Without a single workspace, the scopes that it has in all accessible workspaces."""
        if self.among is None:
            return self.caller.granted_scopes(self.workspace_id)
        every = [self.caller.granted_scopes(workspace_id) for workspace_id in self.among]
        return every[0].intersection(*every[1:])

    def require_any_scope(self, *scopes: str) -> None:
        """Raises ForbiddenError unless the caller has one of these scopes. For routes whose scope depends on the row."""
        if not self.granted_scopes.intersection(scopes):
            raise missing_scope_error(scopes)

    def organisation(self) -> TenantSession:
        """Returns a session for the whole organisation, for rows that its workspaces share. The calling code must
        restrict access.
        """
        session = TenantSession(self.connection, self.caller, None, self._services, self._read_request_info)
        session.change_flag, session.about = self.change_flag, self.about
        return session

    async def resolve_reference(
        self, path: str, table: Table, key: str, description: str, *conditions: ColumnElement[bool]
    ) -> Row:
        """Returns the row that a field of the body names; rejects the field if there is none."""
        row = await self.fetch_first(select_by_id_or_slug(table, key).where(*conditions), table)
        if row is None:
            raise unknown_reference_error(path, f"{key!r} is no {description}")
        return row

    async def resolve_workspace(self, path: str, key: str, allowed_ids: Collection[str]) -> Row:
        """Returns the workspace that a field of the body names. An archived workspace is accepted only if `allowed_ids`
        contains its id.
        """
        is_open = or_(workspaces.c.status == "active", workspaces.c.id.in_(allowed_ids))
        return await self.resolve_reference(
            path, workspaces, key, "workspace of this organisation that is not archived", is_open
        )

    async def resolve_config(
        self, path: str, key: str, allowed_id: str | None, *conditions: ColumnElement[bool]
    ) -> Row:
        """Returns the config that a field of the body names. Accepts an archived one only if `allowed_id` is its id."""
        is_open = or_(configs.c.status == "active", configs.c.id == allowed_id)
        scope = "workspace" if self.workspace_id else "organisation"
        return await self.resolve_reference(
            path, configs, key, f"config of this {scope} that is not archived", is_open, *conditions
        )

    def check_grantable_scopes(self, scopes: Iterable[str], workspace_id: str | None) -> None:
        """Rejects granting scopes that the caller does not have; raises ForbiddenError."""
        if ungrantable := sorted(set(scopes) - self.caller.grantable_scopes(workspace_id)):
            raise ForbiddenError(f"this key may not give {ungrantable[0]!r}: it does not have that scope")

    async def record_change(
        self, action: str, *, before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None
    ) -> None:
        """Records a change in the audit log."""
        await write_audit_rows(
            self, self.caller, await self._read_request_info(), action, [(before, after)], self.noted_in
        )

    def note_changed_budget(self, limit_id: str) -> None:
        """Checks a budget for alerts after the change, because its limit or threshold changed. `limit_id` may also be
        that of an owner, such as `api_key:…`, for all its budgets.
        """
        self.change_flag.budgets.add(limit_id)

    async def record_deletions(self, action: str, rows: Iterable[Row]) -> None:
        """Records the deletion of each of these rows in the audit log."""
        await write_audit_rows(
            self, self.caller, await self._read_request_info(), action, [(row, None) for row in rows], self.noted_in
        )

    async def generate_unused_slug(self, table: Table, prefix: str, name: str, length: int) -> str:
        """Generates a slug that no row here has. Random suffixes alone would collide among thousands of equal names."""
        org_session = self.organisation()
        while await org_session.count(table, [table.c.slug == (slug := generate_slug(prefix, name, length))]):
            pass
        return slug

    @property
    def allows_machine_identity(self) -> bool:
        """True if the operator lets stored configs use the identity of this machine."""
        return self._services.lends

    @property
    def max_policies(self) -> int:
        """Maximum number of active policies of a workspace."""
        return self._services.max_policies

    def file_provider_slugs(self) -> frozenset[str]:
        """Returns the slugs of the providers in the settings file, which all workspaces may use."""
        return self._services.file_provider_slugs()

    @property
    def fetcher(self) -> Fetcher:
        """HTTP client with the address policy for URLs that tenants choose."""
        return self._services.fetcher

    def generate_key(self) -> str:
        """Generates the secret of an API key of the gateway."""
        return generate_key(self._services.key_prefix)

    async def expects_single_limits(self) -> bool:
        """Returns true if the client expects one limit object instead of a list."""
        return expects_single_limits((await self._read_request_info()).fields, self._services.header_aliases)

    async def seal(self, text: str, owner: str) -> str:
        """Encrypts a credential of a row; `owner` is the id of the row."""
        return await self._services.vault.seal(self.connection, text, owner)

    async def open(self, sealed: str, owner: str) -> str:
        """Decrypts a credential of a row; `owner` is the id of the row."""
        return await self._services.vault.open(self.connection, sealed, owner)


def _precondition_failed(reason: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"If-Match {reason}", [Problem("If-Match", reason)])


@cache
def _column_names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


async def read_request_metadata(request: Request[Any, Any, Any]) -> RequestInfo:
    """Reads the metadata of a request for the audit log, with its body if that is JSON."""
    is_json = request.content_type[0] == RequestEncodingType.JSON
    body = await request.body() if is_json and request.method != "GET" else b""
    return RequestInfo(
        request.method,
        request.url.path[:2048],
        request.url.query[:2048],
        request_id(request.scope),
        client_address(request),
        dict(request.headers),
        body,
        request.route_handler.status_code,
    )


def _reject_if_late(request: Request[Any, Any, Any]) -> None:
    """Raises UnavailableError, so that nothing is saved, if the edge worker no longer waits and has sent the client a
    503.
    """
    deadlines = [int(text) for text in request.headers.getall(DEADLINE_HEADER, []) if text.isdecimal()]
    if deadlines and time.time() * 1000 > min(deadlines):
        raise UnavailableError("the change took too long; nothing was changed: try again")


async def _return_metadata(request_info: RequestInfo) -> RequestInfo:
    return request_info


class RequestContext:
    """Dependency of a route: opens sessions for the caller of the request."""

    def __init__(self, services: Services, request: Request[Any, Caller, Any]) -> None:
        """Stores the caller that the guard authenticated."""
        self.caller = request.auth
        self._request = request
        self._state: dict[str, Any] = request.scope["state"]
        self.limits = services.limits
        self._services = services
        # Scopes of which the guard required one. `None` if it required none, and the route itself restricts access.
        self._needs: frozenset[str] | None = request.scope["state"]["needs"]
        self._request_info: RequestInfo | None = None
        # Workspace from the query string, if the route reads it.
        self.query_workspace: str | None = None

    @asynccontextmanager
    async def read_session(self, workspace: str | None = None) -> AsyncGenerator[TenantSession]:
        """Opens a read session in a workspace, by id or slug, or in the whole organisation if the key allows that."""
        async with self._services.database.read_connection() as connection:
            session = await self._open_session(connection, workspace)
            yield session
            self._state["etag"] = session.etag_before()

    @asynccontextmanager
    async def ingest_session(self) -> AsyncGenerator[TenantSession]:
        """Opens a session for data that is not written to the store. With an Idempotency-Key it is a write session,
        which claims the key; otherwise a read session, which takes no lock.
        """
        has_key = self._request.headers.get("idempotency-key") is not None
        async with self.write_session() if has_key else self.read_session() as session:
            yield session

    @asynccontextmanager
    async def unchecked_read_session(self) -> AsyncGenerator[TenantSession]:
        """Opens a read session in the organisation without a scope check. The route itself must restrict access."""
        async with self._services.database.read_connection() as connection:
            yield TenantSession(
                connection, self.caller, self.caller.workspace_id, self._services, self._request_metadata
            )

    @asynccontextmanager
    async def unchecked_write_session(self) -> AsyncGenerator[TenantSession]:
        """Opens a session to change the caller's own data, without a scope check. The route itself must restrict
        access.
        """
        if self._request.headers.get("if-match") is not None:
            raise _precondition_failed("names a state, but this request depends on none")
        async with self._services.write_session_as(self.caller, await self._request_metadata()) as session:
            session.caller = await self._authenticate_again(session.connection)
            yield session
            _reject_if_late(self._request)
        self._delay_response(session)

    @asynccontextmanager
    async def write_session(self, workspace: str | None = None) -> AsyncGenerator[TenantSession]:
        """Opens a session for changes; they are committed if the block raises no error."""
        # Reads the body first, so that a slow client does not occupy the organisation's lock.
        await self._request_metadata()
        await self._services.prepare_data_key()
        async with self._services.database.write_transaction() as connection:
            await self._services.lock_organisation(connection, self.caller)
            await self._authenticate_again(connection)
            session = await self._open_session(connection, workspace, among=WRITABLE_STATES)
            await claim_idempotency_key(session, self._request)
            session.about.expected_tags = parse_if_match(self._request.headers.get("if-match"))
            yield session
            self._reject_unchecked_fields()
            if session.about.expected_tags is not None:
                raise _precondition_failed("names a state, but this request depends on none")
            _reject_if_late(self._request)
            self._state["etag"] = await session.etag_after()
        self._services.changed_budgets |= session.change_flag.budgets
        self._services.notify_change(published=session.change_flag.is_set)
        self._delay_response(session)

    @property
    def sends_read_fields(self) -> bool:
        """True if the body has read-only fields, which the client read in a response."""
        return bool(self._state.get("unchanged"))

    async def check_unchanged(self, session: TenantSession, response: msgspec.Struct) -> None:
        """Accepts read-only fields in the body if they have the values that the client read: those in `response`.
        Raises InvalidError for other values.
        """
        current = msgspec.to_builtins(response)
        problems: list[Problem] = []
        for name, sent in self._state.pop("unchanged", {}).items():
            if sent in (None, current[name]) or name in CHANGING_FIELDS or name.endswith("_at"):
                continue
            if name == "workspace_id" and isinstance(sent, str):
                row = await session.organisation().find(workspaces, sent)
                if row and row["id"] == current[name]:
                    continue
            problems.append(
                Problem(name, f"cannot be changed here: it is {msgspec.json.encode(current[name]).decode()}")
            )
        if problems:
            raise invalid_error(problems)

    def _reject_unchecked_fields(self) -> None:
        """Raises InvalidError if the route did not compare the read-only fields of the body."""
        if remaining := self._state.get("unchanged"):
            raise invalid_error([Problem(name, "can only be read") for name in remaining])

    def _requested_workspace(self, workspace: str | None) -> str | None:
        """Returns the workspace of the query, or else of the body."""
        sent: object = self._state.get("body_workspace")
        if (
            self._request_info
            and self._request_info.body
            and "body" not in self._state
            and takes_workspace(self._request.route_handler)
        ):
            # The route reads no body, but some clients name the workspace in it.
            with suppress(msgspec.DecodeError, RecursionError):
                document: object = msgspec.json.decode(self._request_info.body)
                sent = cast("dict[str, object]", document).get("workspace_id") if isinstance(document, dict) else None
        if sent is None:
            return workspace
        if not isinstance(sent, str):
            raise field_error("workspace_id", "is not allowed: expected a string, the id or slug of the workspace")
        if workspace not in {None, sent}:
            raise field_error(
                "workspace_id", f"{sent!r} in the body differs from {workspace!r} in the query; send one of them"
            )
        return sent

    async def _request_metadata(self) -> RequestInfo:
        """Reads the metadata of the request, once."""
        self._request_info = self._request_info or await read_request_metadata(self._request)
        return self._request_info

    async def _authenticate_again(self, connection: AsyncConnection) -> Caller:
        """Authenticates the caller again after the wait for the lock, because access may have been revoked meanwhile."""
        self.caller = await self._services.identities.authenticate_uncached(
            connection, extract_credential(self._request)
        )
        return self.caller

    async def authenticate_again(self) -> None:
        """Authenticates the caller of a long response again. Raises UnauthorisedError if its credential is no longer
        valid.
        """
        self.caller = await self._services.identities.authenticate(extract_credential(self._request))

    def _delay_response(self, session: TenantSession) -> None:
        """Delays the response until the data plane applies the change, if the change affects it."""
        if session.change_flag.number is not None:
            self._state["awaited"] = session.change_flag.number

    async def _open_session(
        self, connection: AsyncConnection, workspace: str | None, *, among: frozenset[str] = READABLE_STATES
    ) -> TenantSession:
        workspace_id = await self._resolve_workspace_id(connection, self._requested_workspace(workspace), among)
        if self._needs and workspace_id is None and self.caller.user_id and not self.caller.is_organisation_admin:
            return self._open_multi_workspace_session(connection, self._needs)
        if self._needs is not None and not self._needs & self.caller.granted_scopes(workspace_id):
            raise missing_scope_error(self._needs)
        return TenantSession(connection, self.caller, workspace_id, self._services, self._request_metadata)

    def _open_multi_workspace_session(self, connection: AsyncConnection, needed: frozenset[str]) -> TenantSession:
        """Opens a session in all workspaces where the user has one of these scopes. The requested row decides which of
        them applies.
        """
        open_to_caller = frozenset(
            workspace_id for workspace_id in self.caller.roles if needed & self.caller.granted_scopes(workspace_id)
        )
        if not open_to_caller:
            raise missing_scope_error(needed)
        session = TenantSession(connection, self.caller, None, self._services, self._request_metadata)
        session.among = open_to_caller
        return session

    async def _resolve_workspace_id(
        self, connection: AsyncConnection, requested: str | None, among: frozenset[str]
    ) -> str | None:
        own_id = self.caller.workspace_id
        if among is WRITABLE_STATES:
            # Also looks up the key's own workspace, which may have been archived since the caller was authenticated.
            requested = requested or own_id
        elif requested == own_id:
            requested = None
        if requested is None:
            return own_id
        org_store = TenantStore(connection, self.caller.organisation_id, None)
        rows = await org_store.fetch_prepared(WORKSPACE_ID_QUERY, workspaces, key=requested, states=sorted(among))
        workspace_id: str | None = rows[0]["id"] if rows else None
        open_to_caller = (
            workspace_id == own_id if own_id else self.caller.is_organisation_admin or workspace_id in self.caller.roles
        )
        if workspace_id is None or not open_to_caller:
            message = f"the workspace {requested!r} is not open to this key"
            raise ForbiddenError(message)
        return workspace_id


class ChangeNotifier(Protocol):
    """Notifies the data plane of changes."""

    def notify(self) -> None:
        """Reports that something changed."""
        ...

    async def wait_until_applied(self, number: int) -> None:
        """Waits until each worker of this node applies the change, or a timeout passes."""
        ...


class Services:
    """Services that all sessions share. Also notifies the data plane and clears caches after a change."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        vault: Vault,
        identities: CallerAuthenticator,
        notifier: ChangeNotifier,
    ) -> None:
        """Stores the services, and the settings that limit or name stored values."""
        self._settings_file = settings.file
        self.limits = settings.routing.target_limits
        self.key_prefix = settings.store.key_prefix
        self.lends = settings.identity.allow_provider_use
        self.max_policies = settings.limits.workspace_policies
        self.fetcher = Fetcher(settings)
        self.header_aliases = settings.security.header_aliases
        self.database = database
        self.vault = vault
        self.identities = identities
        self._notifier = notifier
        # Budgets whose limit or threshold changed. The usage ledger checks them for alerts.
        self.changed_budgets: set[str] = set()

    def file_provider_slugs(self) -> frozenset[str]:
        """Returns the slugs of the providers in the settings file."""
        tables: object = []
        with suppress(SettingsError):
            tables = read_toml_file(self._settings_file).get("providers", []) if self._settings_file else []
        rows = cast("list[object]", tables) if isinstance(tables, list) else []
        return frozenset(str(cast("dict[str, Any]", row).get("slug")) for row in rows if isinstance(row, dict))

    def create_context(self, request: Request[Any, Caller, Any]) -> RequestContext:
        """Creates the context of a request."""
        return RequestContext(self, request)

    @asynccontextmanager
    async def write_session_as(self, caller: Caller, request_info: RequestInfo) -> AsyncGenerator[TenantSession]:
        """Opens a session for changes in the whole organisation of a caller. The calling code must restrict access."""
        await self.prepare_data_key()
        async with self.database.write_transaction() as connection:
            await self.lock_organisation(connection, caller)
            session = TenantSession(connection, caller, None, self, partial(_return_metadata, request_info))
            yield session
        self.changed_budgets |= session.change_flag.budgets
        self.notify_change(published=session.change_flag.is_set)

    async def prepare_data_key(self) -> None:
        """Creates a data key before a change that may encrypt something, so that a rollback of the change does not
        remove the key.
        """
        # A change that encrypts nothing needs no master key. Other changes report themselves that it is missing.
        with suppress(SettingsError):
            await self.vault.renew_data_keys(self.database)

    async def lock_organisation(self, connection: AsyncConnection, caller: Caller) -> None:
        """Waits for the lock on the caller's organisation, so that changes of an organisation do not overlap."""
        await TenantStore(connection, caller.organisation_id, None).lock_organisation(self.database.turn_ms)

    def clear_caller_cache(self) -> None:
        """Clears the cache of authenticated callers."""
        self.identities.clear_cache()

    def notify_change(self, *, published: bool) -> None:
        """Clears the cache of callers and, if `published`, notifies the data plane."""
        self.clear_caller_cache()
        if published:
            self._notifier.notify()

    async def find_prompt_version(self, prompt_id: str, number: int) -> Row | None:
        """Returns a version of an active prompt for the engine, whichever organisation it belongs to."""
        async with self.database.read_connection() as connection:
            rows = await connection.execute(PROMPT_VERSION_QUERY, {"prompt_id": prompt_id, "number": number})
            return cast("Row | None", rows.mappings().first())

    async def wait_until_applied(self, number: int) -> None:
        """Waits until the data plane of this node applies a change."""
        await self._notifier.wait_until_applied(number)
