"""CRUD routes. A new resource is one short file, and is guarded, tenant-isolated, audited and documented like the
others.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litestar import Router
from sqlalchemy import select
from sqlalchemy.schema import CreateTable

from penstock.app import create_app
from penstock.app.routers import require_guards
from penstock.organisation.bootstrap import bootstrap_organisation
from penstock.settings import Secret, Settings, Store
from penstock.snapshot.build import Snapshot, SnapshotChannel
from penstock.store.database import Database
from penstock.store.migrate import migrate
from penstock.store.tables import audit_log
from tests.unit.asgi import Response, run_lifespan, send_request
from tests.unit.kit import shelves

if TYPE_CHECKING:
    import pytest
    from litestar import Litestar

ADMIN_KEY = "admin-key-of-the-tests-0123456789"


async def prepare_store(url: Secret) -> Settings:
    store = Store(url=url, master_key=Secret(base64.b64encode(bytes(32)).decode()))
    database = Database(store, url)
    await migrate(database)
    await bootstrap_organisation(database, Secret(ADMIN_KEY))
    async with database.write_transaction() as connection:
        await connection.execute(CreateTable(shelves.SHELVES))
    await database.close()
    return Settings(store=store)


async def fetch_audit_actions(settings: Settings) -> list[str]:
    database = Database(settings.store, settings.store.url or Secret(""))
    async with database.read_connection() as connection:
        rows = await connection.execute(select(audit_log.c.action).where(audit_log.c.resource_type == "configs"))
    await database.close()
    return [row.action for row in rows]


def test_crud_resource_has_at_most_60_lines():
    source = Path(shelves.__file__).read_text()
    assert len(source.splitlines()) <= 60


def test_minimal_resource_has_all_common_features(store_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    async def scenario() -> tuple[dict[str, Any], list[str]]:
        settings = await prepare_store(store_url)
        app = create_app(settings, SnapshotChannel(Snapshot("first")))
        app.register(Router("/v1/shelves", route_handlers=shelves.routes))
        require_guards(app)
        async with run_lifespan(app):
            await exercise_routes(app)
        return app.openapi_schema.to_schema(), await fetch_audit_actions(settings)

    description, actions = asyncio.run(scenario())
    assert set(description["paths"]["/v1/shelves/{key}"]) == {"get", "put", "delete"}
    assert set(description["paths"]["/v1/shelves"]) == {"get", "post"}
    assert set(description["components"]["schemas"]["Shelf"]["properties"]) == set(shelves.Shelf.__struct_fields__)
    assert actions == ["create", "update", "delete"]


async def exercise_routes(app: Litestar) -> None:
    async def call_api(method: str, path: str, body: object = None, query: str = "", **headers: str) -> Response:
        fields = {"x-gateway-api-key": ADMIN_KEY, "content-type": "application/json", **headers}
        sent = b"" if body is None else json.dumps(body).encode()
        return await send_request(app, method, f"/v1/{path}", sent, fields, query)

    workspace = (await call_api("GET", "workspaces")).json()["data"][0]["id"]
    body = {"name": "top", "workspace_id": workspace}
    shelve = (await call_api("POST", "shelves", body)).json()
    assert (shelve["name"], shelve["note"], shelve["object"]) == ("top", None, "shelf")
    assert (await call_api("POST", "shelves", {**body, "colour": 1})).status == 400
    assert (await call_api("POST", "shelves", body, **{"x-gateway-api-key": "nobody"})).status == 401
    read = await call_api("GET", f"shelves/{shelve['id']}")
    assert read.json() == shelve
    listed = (await call_api("GET", "shelves", query=f"workspace_id={workspace}&page_size=1")).json()
    assert (listed["total"], listed["data"], listed["object"]) == (1, [shelve], "list")
    careful = {"if-match": read.headers["etag"]}
    changed = (await call_api("PUT", f"shelves/{shelve['id']}", {"note": "dusty"}, **careful)).json()
    assert (changed["name"], changed["note"]) == ("top", "dusty")
    assert (await call_api("DELETE", f"shelves/{shelve['id']}", **careful)).status == 412
    assert (await call_api("DELETE", f"shelves/{shelve['id']}")).json() == {}
    gone = await call_api("GET", f"shelves/{shelve['id']}")
    assert (gone.status, gone.json()["data"]["errorCode"]) == (404, "AB08")
