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

from penstock.authorization import needs
from penstock.kit.listing import Page, Sizes
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import IdOrSlug, WorkspaceAsked
from penstock.kit.tenant_session import Desk, Office, Work
from penstock.schemas import Done, Listed, given, write_out
from penstock.store.tenant import Row

Struct = type[msgspec.Struct]
# Writes rows down, with what is said of them elsewhere.
Showing = Callable[[Desk, list[Row]], Awaitable[list[Any]]]
Making = Callable[[Desk, Any], Awaitable[Any]]
Changing = Callable[[Desk, Row, Any], Awaitable[Any]]
Leaving = Callable[[Desk, Row], Awaitable[None]]


class Wanted(NamedTuple):
    """Which rows a list is asked for, and of which workspace."""

    workspace: str | None = None
    conditions: Sequence[ColumnElement[bool]] = ()
    sizes: Sizes = Sizes()


def here(workspace_id: WorkspaceAsked = None) -> Wanted:
    """Ask for what is in a workspace."""
    return Wanted(workspace_id)


def anywhere() -> Wanted:
    """Ask for what belongs to the organisation and no workspace."""
    return Wanted()


def after_wanted(request: Request[Any, Any, Any], wanted: NamedDependency[Wanted]) -> Work:
    """Give a caller's way to a desk where that is asked for."""
    return placed(request, wanted.workspace)


def placed(request: Request[Any, Any, Any], workspace_id: WorkspaceAsked = None) -> Work:
    """Give a caller's way to a desk in a workspace."""
    office: Office = request.app.state["office"]
    work = office.work(request)
    work.place = workspace_id
    return work


class Verbs:
    """The verbs of one resource; each is made by itself, and one that differs in more is written out instead."""

    def __init__(self, resource: Resource, one: str, tags: Sequence[str]) -> None:
        """Know what one is called."""
        self.resource = resource
        self.kind = one.replace(" ", "-")
        self._one = one
        self._tags = tags
        self._is_placed = "workspace_id" in resource.table.c
        # With the work rather than beside it: to see to two dependencies takes much longer than to one.
        self._placed = {"work": Provide(placed, sync_to_thread=False)} if self._is_placed else {}

    def _said(self, verb: str, summary: str, told: object = None) -> dict[str, Any]:
        """Say what the description and the guard of a verb need."""
        return {
            "guards": [needs(f"{self.resource.name}.{verb}")],
            "summary": summary,
            "description": getdoc(told) if told else f"{summary}.",
            "tags": self._tags,
        }

    def create(self, new: Struct, made: Any, make: Making) -> Any:  # noqa: ANN401 - what the framework makes of it
        """Make the route that makes one."""

        @post("/", status_code=200, **self._said("create", f"Create {self._one}", make))
        async def create(data: JSONBody[new], work: NamedDependency[Work]) -> made:
            """Make one."""
            async with work.writing(getattr(data, "workspace_id", None)) as desk:
                return await make(desk, data)

        return create

    def index(self, shown: Any, showing: Showing, wanted: Callable[..., Wanted] | None = None) -> Any:  # noqa: ANN401 - as above
        """Make the route that lists them."""
        resource, usual = self.resource, here if self._is_placed else anywhere
        # One after the other, as pages are: to see to two of them at once takes the framework far longer.
        asked = {
            "wanted": Provide(wanted or usual, sync_to_thread=False),
            "work": Provide(after_wanted, sync_to_thread=False),
        }

        said = self._said("list", f"List {self._one}s", wanted)

        @get("/", **said, dependencies=asked)
        async def index(
            work: NamedDependency[Work], page: NamedDependency[Page], wanted: NamedDependency[Wanted]
        ) -> Listed[shown]:
            """List those that there are."""
            async with work.reading(work.place) as desk:
                total, rows = await resource.page(desk, page.within(wanted.sizes), wanted.conditions)
                return Listed(total, await showing(desk, rows))

        return index

    def show(self, shown: Any, showing: Showing) -> Any:  # noqa: ANN401 - as above
        """Make the route that gives one."""
        resource = self.resource

        @get("/{key:str}", **self._said("read", f"Get {self._one}"), dependencies=self._placed)
        async def show(key: IdOrSlug, work: NamedDependency[Work]) -> shown:
            """Give one."""
            async with work.reading(work.place) as desk:
                return (await showing(desk, [await resource.get(desk, key)]))[0]

        return show

    def update(self, change: Struct, changed: Any, alter: Changing) -> Any:  # noqa: ANN401 - as above
        """Make the route that changes one."""
        resource = self.resource

        @put("/{key:str}", **self._said("update", f"Update {self._one}", alter), dependencies=self._placed)
        async def update(key: IdOrSlug, data: JSONBody[change], work: NamedDependency[Work]) -> changed:
            """Change one."""
            async with work.writing(work.place) as desk:
                return await alter(desk, await resource.get(desk, key), data)

        return update

    def remove(self, leave: Leaving) -> Any:  # noqa: ANN401 - as above
        """Make the route that deletes one."""
        resource = self.resource

        @delete(
            "/{key:str}",
            status_code=200,
            **self._said("delete", f"Delete {self._one}", leave),
            dependencies=self._placed,
        )
        async def remove(key: IdOrSlug, work: NamedDependency[Work]) -> Done:
            """Delete one."""
            async with work.writing(work.place) as desk:
                await leave(desk, await resource.get(desk, key))
                return Done()

        return remove


def five(resource: Resource, one: str, new: Struct, change: Struct, shown: Struct) -> list[Any]:
    """Make the routes of a resource whose bodies and answers have the names of its columns."""
    verbs = Verbs(resource, one, [f"{one.capitalize()}s"])
    showing = plain(shown)

    async def make(desk: Desk, data: msgspec.Struct) -> msgspec.Struct:
        """Make one."""
        home = {"workspace_id": desk.workspace} if "workspace_id" in resource.table.c else {}
        return write_out(shown, await resource.add(desk, {**msgspec.to_builtins(data), **home}))

    async def alter(desk: Desk, row: Row, data: msgspec.Struct) -> msgspec.Struct:
        """Change one; what is left out stays."""
        return write_out(shown, await resource.change(desk, row, given(data)))

    return [
        verbs.create(new, shown, make),
        verbs.index(shown, showing),
        verbs.show(shown, showing),
        verbs.update(change, shown, alter),
        verbs.remove(resource.remove),
    ]


def plain(shown: Struct) -> Showing:
    """Write rows down as they are."""

    async def showing(_desk: Desk, rows: list[Row]) -> list[Any]:
        return [write_out(shown, row) for row in rows]

    return showing
