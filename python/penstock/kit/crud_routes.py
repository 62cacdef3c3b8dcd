"""Generic create, read, update, delete and list routes of a resource. A resource passes functions for the parts that it
implements itself.
"""

# This module does not postpone annotations, because the framework reads the types of each resource from its routes.
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
from penstock.kit.compat import SHOWN_OPTION
from penstock.kit.numbered_pages import PageRequest, PageSizes
from penstock.kit.resource import Resource
from penstock.kit.route_parameters import IdOrSlug, WorkspaceFilter
from penstock.kit.tenant_session import RequestContext, Services, TenantSession
from penstock.schemas import EmptyResponse, ListResponse, row_to_struct, sent_fields
from penstock.store.tenant import Row

StructType = type[msgspec.Struct]
# Converts rows to response structs, and loads the related rows that these need.
RowRenderer = Callable[[TenantSession, list[Row]], Awaitable[list[Any]]]
# Create and update handlers get the session, the row (update only), the body, and the result of `prepare` if it is set.
CreateHandler = Callable[..., Awaitable[Any]]
UpdateHandler = Callable[..., Awaitable[Any]]
# Does slow work before the transaction, in which other changes wait. It gets the context, the key of an update, and
# the body.
PrepareHandler = Callable[..., Awaitable[Any]]
DeleteHandler = Callable[[TenantSession, Row], Awaitable[None]]


class ListQuery(NamedTuple):
    """Workspace, conditions and page sizes of a list request."""

    workspace: str | None = None
    conditions: Sequence[ColumnElement[bool]] = ()
    page_sizes: PageSizes = PageSizes()


def workspace_query(workspace_id: WorkspaceFilter = None) -> ListQuery:
    """Lists the rows of a workspace."""
    return ListQuery(workspace_id)


def organisation_query() -> ListQuery:
    """Lists rows that belong to the organisation and to no workspace."""
    return ListQuery()


def list_request_context(request: Request[Any, Any, Any], list_query: NamedDependency[ListQuery]) -> RequestContext:
    """Returns the request context for the workspace of a list request."""
    return workspace_request_context(request, list_query.workspace)


def workspace_request_context(request: Request[Any, Any, Any], workspace_id: WorkspaceFilter = None) -> RequestContext:
    """Returns the request context for a workspace, from which the route opens a session."""
    services: Services = request.app.state["services"]
    context = services.create_context(request)
    context.query_workspace = workspace_id
    return context


class CrudRoutes:
    """Builds the routes of one resource, one method per route. A route that differs too much is written in the
    resource's own module.
    """

    def __init__(
        self, resource: Resource, singular: str, tags: Sequence[str], plural: str = "", scopes: str = ""
    ) -> None:
        """Stores the resource and the singular and plural names for summaries. `scopes` is the prefix of its scopes, if
        it differs from the resource's name.
        """
        self.resource = resource
        self._scopes = scopes or resource.name
        self.kind = singular.replace(" ", "-")
        self._singular, self._plural = singular, plural or f"{singular}s"
        self._tags = tags
        self._is_in_workspace = "workspace_id" in resource.table.c
        # One dependency provides both the workspace and the request context, because the framework resolves two
        # dependencies much more slowly.
        self._workspace_dependency = (
            {"context": Provide(workspace_request_context, sync_to_thread=False)} if self._is_in_workspace else {}
        )

    def _route_options(self, verb: str, summary: str, documented: object = None) -> dict[str, Any]:
        """Returns the guard and the OpenAPI description of a route."""
        return {
            "guards": [require_scopes(f"{self._scopes}.{verb}")],
            "summary": summary,
            "description": getdoc(documented) if documented else f"{summary}.",
            "tags": self._tags,
        }

    def create_route(
        self,
        new: StructType,
        response_type: Any,  # noqa: ANN401 - any type that the framework encodes
        make: CreateHandler,
        prepare: PrepareHandler | None = None,
    ) -> Any:  # noqa: ANN401 - a route handler of the framework
        """Builds the route that creates an object."""

        @post("/", status_code=200, **self._route_options("create", f"Create {self._singular}", make))
        async def create(data: JSONBody[new], context: NamedDependency[RequestContext]) -> response_type:
            """Creates an object."""
            prepared = [await prepare(context, data)] if prepare else []
            async with context.write_session(getattr(data, "workspace_id", None)) as session:
                return await make(session, data, *prepared)

        return create

    def list_route(
        self,
        response_type: Any,  # noqa: ANN401 - any type that the framework encodes
        showing: RowRenderer,
        requested: Callable[..., ListQuery] | None = None,
    ) -> Any:  # noqa: ANN401 - a route handler of the framework
        """Builds the route that lists the objects."""
        resource, default_query = self.resource, workspace_query if self._is_in_workspace else organisation_query
        # `context` depends on `list_query`, because the framework resolves two independent dependencies much more
        # slowly.
        dependencies = {
            "list_query": Provide(requested or default_query, sync_to_thread=False),
            "context": Provide(list_request_context, sync_to_thread=False),
        }

        route_options = self._route_options("list", f"List {self._plural}", requested)

        @get("/", **route_options, dependencies=dependencies)
        async def index(
            context: NamedDependency[RequestContext],
            page: NamedDependency[PageRequest],
            list_query: NamedDependency[ListQuery],
        ) -> ListResponse[response_type]:
            """Lists one page of the objects."""
            async with context.read_session(context.query_workspace) as session:
                total, rows = await resource.list_page(
                    session, page.apply_sizes(list_query.page_sizes), list_query.conditions
                )
                return ListResponse(total, await showing(session, rows))

        return index

    def get_route(self, response_type: Any, showing: RowRenderer) -> Any:  # noqa: ANN401 - a route handler of the framework
        """Builds the route that returns one object."""
        resource = self.resource

        @get(
            "/{key:str}",
            **self._route_options("read", f"Get {self._singular}"),
            dependencies=self._workspace_dependency,
        )
        async def show(key: IdOrSlug, context: NamedDependency[RequestContext]) -> response_type:
            """Returns one object."""
            async with context.read_session(context.query_workspace) as session:
                return (await showing(session, [await resource.get(session, key)]))[0]

        return show

    def update_route(
        self,
        change: StructType,
        changed: Any,  # noqa: ANN401 - any type that the framework encodes
        alter: UpdateHandler,
        response_type: Any,  # noqa: ANN401 - any type that the framework encodes
        showing: RowRenderer,
        prepare: PrepareHandler | None = None,
    ) -> Any:  # noqa: ANN401 - a route handler of the framework
        """Builds the route that updates an object. A client may also send back read-only fields of `response_type`."""
        resource = self.resource
        route_options = self._route_options("update", f"Update {self._singular}", alter)

        @put("/{key:str}", **route_options, dependencies=self._workspace_dependency, opt={SHOWN_OPTION: response_type})
        async def update(key: IdOrSlug, data: JSONBody[change], context: NamedDependency[RequestContext]) -> changed:
            """Updates an object."""
            prepared = [await prepare(context, key, data)] if prepare else []
            async with context.write_session(context.query_workspace) as session:
                row = await resource.get(session, key)
                if context.sends_read_fields:
                    await context.check_unchanged(session, (await showing(session, [row]))[0])
                return await alter(session, row, data, *prepared)

        return update

    def delete_route(self, leave: DeleteHandler) -> Any:  # noqa: ANN401 - a route handler of the framework
        """Builds the route that deletes an object."""
        resource = self.resource

        @delete(
            "/{key:str}",
            status_code=200,
            **self._route_options("delete", f"Delete {self._singular}", leave),
            dependencies=self._workspace_dependency,
        )
        async def remove(key: IdOrSlug, context: NamedDependency[RequestContext]) -> EmptyResponse:
            """Deletes an object."""
            async with context.write_session(context.query_workspace) as session:
                await leave(session, await resource.get(session, key))
                return EmptyResponse()

        return remove


def crud_routes(
    resource: Resource, item: str, new: StructType, change: StructType, response_type: StructType
) -> list[Any]:
    """Builds all five routes of a resource whose request and response fields have the names of its columns."""
    verbs = CrudRoutes(resource, item, [f"{item.capitalize()}s"])
    showing = plain_renderer(response_type)

    async def create_row(session: TenantSession, data: msgspec.Struct) -> msgspec.Struct:
        """Creates an object."""
        workspace_field = {"workspace_id": session.required_workspace_id} if "workspace_id" in resource.table.c else {}
        return row_to_struct(
            response_type, await resource.create(session, {**msgspec.to_builtins(data), **workspace_field})
        )

    async def update_row(session: TenantSession, row: Row, data: msgspec.Struct) -> msgspec.Struct:
        """Updates an object. Omitted fields keep their values."""
        return row_to_struct(response_type, await resource.update(session, row, sent_fields(data)))

    return [
        verbs.create_route(new, response_type, create_row),
        verbs.list_route(response_type, showing),
        verbs.get_route(response_type, showing),
        verbs.update_route(change, response_type, update_row, response_type, showing),
        verbs.delete_route(resource.delete),
    ]


def plain_renderer(response_type: StructType) -> RowRenderer:
    """Returns a renderer that copies columns to the response fields of the same name."""

    async def render_rows(_session: TenantSession, rows: list[Row]) -> list[Any]:
        return [row_to_struct(response_type, row) for row in rows]

    return render_rows
