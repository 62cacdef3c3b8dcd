"""The five common verbs as routes, for a resource of which none differs; a verb that differs is written out instead."""

# Annotations are not postponed: the framework reads the types of each resource off its own routes.
# pyright: reportInvalidTypeForm=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from typing import Any, TypeVar

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from penstock.caller import needs
from penstock.kit.desk import Work
from penstock.kit.fields import IdOrSlug, WorkspaceAsked
from penstock.kit.listing import Page
from penstock.kit.record import Done, Listed, given, moment
from penstock.kit.resource import Resource
from penstock.store.tenant import Row

Struct = TypeVar("Struct", bound=msgspec.Struct)


def five(
    resource: Resource, one: str, new: type[msgspec.Struct], change: type[msgspec.Struct], shown: type[msgspec.Struct]
) -> list[Any]:
    """Make the routes of a resource whose bodies and answers have the names of its columns."""
    scope, tags = resource.name, [f"{one.capitalize()}s"]

    @post("/", status_code=200, guards=[needs(f"{scope}.create")], summary=f"Create {one}", tags=tags)
    async def create(data: JSONBody[new], work: NamedDependency[Work]) -> shown:
        """Make one."""
        values: dict[str, Any] = msgspec.to_builtins(data)
        async with work.writing(values.get("workspace_id")) as desk:
            home = {"workspace_id": desk.workspace} if "workspace_id" in resource.table.c else {}
            return show(shown, await resource.add(desk, {**values, **home}))

    @get("/", guards=[needs(f"{scope}.list")], summary=f"List {one}s", tags=tags)
    async def index(
        work: NamedDependency[Work], page: NamedDependency[Page], workspace_id: WorkspaceAsked = None
    ) -> Listed[shown]:
        """List those that there are."""
        async with work.reading(workspace_id) as desk:
            total, rows = await resource.page(desk, page)
            return Listed(total, [show(shown, row) for row in rows])

    @get("/{key:str}", guards=[needs(f"{scope}.read")], summary=f"Get {one}", tags=tags)
    async def read(key: IdOrSlug, work: NamedDependency[Work]) -> shown:
        """Give one."""
        async with work.reading() as desk:
            return show(shown, await resource.get(desk, key))

    @put("/{key:str}", guards=[needs(f"{scope}.update")], summary=f"Update {one}", tags=tags)
    async def update(key: IdOrSlug, data: JSONBody[change], work: NamedDependency[Work]) -> shown:
        """Change one; what is left out stays."""
        async with work.writing() as desk:
            return show(shown, await resource.change(desk, await resource.get(desk, key), given(data)))

    @delete("/{key:str}", status_code=200, guards=[needs(f"{scope}.delete")], summary=f"Delete {one}", tags=tags)
    async def remove(key: IdOrSlug, work: NamedDependency[Work]) -> Done:
        """Delete one."""
        async with work.writing() as desk:
            await resource.remove(desk, await resource.get(desk, key))
            return Done()

    return [create, index, read, update, remove]


def show(shown: type[Struct], row: Row) -> Struct:
    """Write a row down: each field is the column of its name, moments as the wire has them."""
    fields = [name for name in shown.__struct_fields__ if name in row]
    return shown(**{name: moment(row[name]) if name.endswith("_at") else row[name] for name in fields})
