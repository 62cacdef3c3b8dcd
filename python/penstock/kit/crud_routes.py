"""The five common verbs as routes; what a resource does in its own way it says as a function that is given a desk."""

# Annotations are not postponed: the framework reads the types of each resource off its own routes.
# pyright: reportInvalidTypeForm=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from collections.abc import Awaitable, Callable, Sequence
from inspect import getdoc
from typing import Any, NamedTuple

import msgspec
from litestar import Request, delete, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody
from sqlalchemy import ColumnElement

from penstock.authorization import require_scopes
from penstock.kit.listing import PageRequest, PageSizes
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import IdOrSlug, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext, Services, TenantSession
from penstock.schemas import EmptyResponse, ListResponse, row_to_struct, sent_fields
from penstock.store.tenant import Row

StructType = type[msgspec.Struct]
# Writes rows down, with what is said of them elsewhere.
RowRenderer = Callable[[TenantSession, list[Row]], Awaitable[list[Any]]]
CreateHandler = Callable[[TenantSession, Any], Awaitable[Any]]
UpdateHandler = Callable[[TenantSession, Row, Any], Awaitable[Any]]
DeleteHandler = Callable[[TenantSession, Row], Awaitable[None]]


class ListQuery(NamedTuple):
    """Which rows a list is asked for, and of which workspace."""

    workspace: str | None = None
    conditions: Sequence[ColumnElement[bool]] = ()
    page_sizes: PageSizes = PageSizes()


def workspace_query(workspace_id: WorkspaceFilter = None) -> ListQuery:
    """Ask for what is in a workspace."""
    return ListQuery(workspace_id)


def organisation_query() -> ListQuery:
    """Ask for what belongs to the organisation and no workspace."""
    return ListQuery()


def list_request_context(request: Request[Any, Any, Any], wanted: NamedDependency[ListQuery]) -> RequestContext:
    """Give a caller's way to a desk where that is asked for."""
    return workspace_request_context(request, wanted.workspace)


def workspace_request_context(request: Request[Any, Any, Any], workspace_id: WorkspaceFilter = None) -> RequestContext:
    """Give a caller's way to a desk in a workspace."""
    office: Services = request.app.state["office"]
    work = office.create_context(request)
    work.place = workspace_id
    return work


class CrudRoutes:
    """The verbs of one resource; each is made by itself, and one that differs in more is written out instead."""

    def __init__(self, resource: Resource, one: str, tags: Sequence[str]) -> None:
        """Know what one is called."""
        self.resource = resource
        self.kind = one.replace(" ", "-")
        self._one = one
        self._tags = tags
        self._is_placed = "workspace_id" in resource.table.c
        # With the work rather than beside it: to see to two dependencies takes much longer than to one.
        self._placed = {"work": Provide(workspace_request_context, sync_to_thread=False)} if self._is_placed else {}

    def _route_options(self, verb: str, summary: str, told: object = None) -> dict[str, Any]:
        """Say what the description and the guard of a verb need."""
        return {
            "guards": [require_scopes(f"{self.resource.name}.{verb}")],
            "summary": summary,
            "description": getdoc(told) if told else f"{summary}.",
            "tags": self._tags,
        }

    def create_route(self, new: StructType, made: Any, make: CreateHandler) -> Any:  # noqa: ANN401 - what the framework makes of it
        """Make the route that makes one."""

        @post("/", status_code=200, **self._route_options("create", f"Create {self._one}", make))
        async def create(data: JSONBody[new], work: NamedDependency[RequestContext]) -> made:
            """Make one."""
            async with work.write_session(getattr(data, "workspace_id", None)) as desk:
                return await make(desk, data)

        return create

    def list_route(self, shown: Any, showing: RowRenderer, wanted: Callable[..., ListQuery] | None = None) -> Any:  # noqa: ANN401 - as above
        """Make the route that lists them."""
        resource, usual = self.resource, workspace_query if self._is_placed else organisation_query
        # One after the other, as pages are: to see to two of them at once takes the framework far longer.
        asked = {
            "wanted": Provide(wanted or usual, sync_to_thread=False),
            "work": Provide(list_request_context, sync_to_thread=False),
        }

        said = self._route_options("list", f"List {self._one}s", wanted)

        @get("/", **said, dependencies=asked)
        async def index(
            work: NamedDependency[RequestContext],
            page: NamedDependency[PageRequest],
            wanted: NamedDependency[ListQuery],
        ) -> ListResponse[shown]:
            """List those that there are."""
            async with work.read_session(work.place) as desk:
                total, rows = await resource.list_page(desk, page.apply_sizes(wanted.page_sizes), wanted.conditions)
                return ListResponse(total, await showing(desk, rows))

        return index

    def get_route(self, shown: Any, showing: RowRenderer) -> Any:  # noqa: ANN401 - as above
        """Make the route that gives one."""
        resource = self.resource

        @get("/{key:str}", **self._route_options("read", f"Get {self._one}"), dependencies=self._placed)
        async def show(key: IdOrSlug, work: NamedDependency[RequestContext]) -> shown:
            """Give one."""
            async with work.read_session(work.place) as desk:
                return (await showing(desk, [await resource.get(desk, key)]))[0]

        return show

    def update_route(self, change: StructType, changed: Any, alter: UpdateHandler) -> Any:  # noqa: ANN401 - as above
        """Make the route that changes one."""
        resource = self.resource

        @put("/{key:str}", **self._route_options("update", f"Update {self._one}", alter), dependencies=self._placed)
        async def update(key: IdOrSlug, data: JSONBody[change], work: NamedDependency[RequestContext]) -> changed:
            """Change one."""
            async with work.write_session(work.place) as desk:
                return await alter(desk, await resource.get(desk, key), data)

        return update

    def delete_route(self, leave: DeleteHandler) -> Any:  # noqa: ANN401 - as above
        """Make the route that deletes one."""
        resource = self.resource

        @delete(
            "/{key:str}",
            status_code=200,
            **self._route_options("delete", f"Delete {self._one}", leave),
            dependencies=self._placed,
        )
        async def remove(key: IdOrSlug, work: NamedDependency[RequestContext]) -> EmptyResponse:
            """Delete one."""
            async with work.write_session(work.place) as desk:
                await leave(desk, await resource.get(desk, key))
                return EmptyResponse()

        return remove


def crud_routes(resource: Resource, one: str, new: StructType, change: StructType, shown: StructType) -> list[Any]:
    """Make the routes of a resource whose bodies and answers have the names of its columns."""
    verbs = CrudRoutes(resource, one, [f"{one.capitalize()}s"])
    showing = plain_renderer(shown)

    async def create_row(desk: TenantSession, data: msgspec.Struct) -> msgspec.Struct:
        """Make one."""
        home = {"workspace_id": desk.required_workspace_id} if "workspace_id" in resource.table.c else {}
        return row_to_struct(shown, await resource.create(desk, {**msgspec.to_builtins(data), **home}))

    async def update_row(desk: TenantSession, row: Row, data: msgspec.Struct) -> msgspec.Struct:
        """Change one; what is left out stays."""
        return row_to_struct(shown, await resource.update(desk, row, sent_fields(data)))

    return [
        verbs.create_route(new, shown, create_row),
        verbs.list_route(shown, showing),
        verbs.get_route(shown, showing),
        verbs.update_route(change, shown, update_row),
        verbs.delete_route(resource.delete),
    ]


def plain_renderer(shown: StructType) -> RowRenderer:
    """Write rows down as they are."""

    async def render_rows(_desk: TenantSession, rows: list[Row]) -> list[Any]:
        return [row_to_struct(shown, row) for row in rows]

    return render_rows
