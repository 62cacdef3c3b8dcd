"""Test harness of the management API: an application without a server on a store of its own, and the clients that call
it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from joserfc import jws
from joserfc.jwk import ECKey

from penstock.app import create_app
from penstock.settings import Settings, Store
from penstock.settings.jwt import Jwt
from penstock.settings.secret import Secret
from penstock.snapshot.build import Snapshot, SnapshotChannel
from penstock.store.database import Database
from tests.bootstrapped_store import ADMIN_KEY
from tests.unit.asgi import send_request, stream_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from penstock.app.application import Application
    from penstock.log_api.service import LogService
    from tests.unit.asgi import Response

JWT_DISABLED = Jwt()
# Applications that no test uses at the moment. Registering their routes takes most of the time of a short test.
IDLE_APPLICATIONS: list[Application] = []
# Signing key of the organisation's identity provider.
SIGNING_KEY = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"})
JWT_SETTINGS = Jwt(enabled=True, algorithms=("ES256",), jwks=json.dumps({"keys": [SIGNING_KEY.as_dict(private=False)]}))
PASSWORD = "a password of twelve"


class ManagementClient:
    """Calls the management API with one key."""

    def __init__(self, app: Application, database: Database, key: str = ADMIN_KEY) -> None:
        self.app = app
        self.database = database
        self.key = key

    def with_key(self, key: str) -> ManagementClient:
        return ManagementClient(self.app, self.database, key)

    def clear_caller_cache(self) -> None:
        """Makes the API authenticate callers again, as it does one second later."""
        self.app.state["services"].clear_caller_cache()

    async def __call__(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        path, _, query = path.partition("?")
        fields = {"content-type": "application/json", **({"x-gateway-api-key": self.key} if self.key else {})}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = b"" if body is None else json.dumps(body).encode()
        response = await send_request(self.app, method, f"/v1/{path}", sent, fields, query)
        return response.status, response.json() if response.body else None, response.headers

    def dependency(self, name: str) -> Any:
        """Returns a service that the application gives its routes."""
        return self.app.parts.services[name]

    async def fetch(self, path: str) -> Response:
        """Sends a GET request to a complete path; returns the response as it is."""
        path, _, query = path.partition("?")
        return await send_request(
            self.app, "GET", path, headers={"x-gateway-api-key": self.key} if self.key else {}, query=query
        )

    async def open_stream(self, path: str) -> AsyncGenerator[tuple[str, Any]]:
        """Opens a stream of server-sent events; yields their names and contents."""
        path, _, query = path.partition("?")
        buffer = b""
        chunks = stream_request(self.app, f"/v1/{path}", {"x-gateway-api-key": self.key}, query)
        async with aclosing(chunks):
            async for chunk in chunks:
                *events, buffer = (buffer + chunk).split(b"\n\n")
                for event in events:
                    name, data = event.decode().split("\n", 1)
                    yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def request_ok(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        status, response, _ = await self(method, path, body, **headers)
        assert status == 200, (method, path, status, response)
        return response

    async def expect_error(self, status: int, word: str, method: str, path: str, body: object = None) -> None:
        actual, response, _ = await self(method, path, body)
        assert (actual, word in str(response)) == (status, True), (method, path, actual, response)

    async def create_workspace(self, name: str = "w") -> Any:
        return await self.request_ok("POST", "workspaces", {"name": name})

    async def create_key(self, kind: str, **fields: object) -> tuple[str, ManagementClient]:
        """Creates a key; returns its ID and a client that uses it."""
        key = await self.request_ok("POST", f"api-keys/{kind}", {"name": "k", **fields})
        return key["id"], self.with_key(key["key"])

    async def invite_user(self, email: str, role: str = "member", **fields: object) -> tuple[str, str]:
        """Invites a user; returns the invitation's ID and the secret of its link."""
        body = {"email": email, "role": role, "workspaces": [], **fields}
        invite = await self.request_ok("POST", "admin/users/invites", body)
        return invite["id"], invite["invite_link"].partition("token=")[2]

    async def accept_invite(
        self, token: str, password: str = PASSWORD, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        body = {"token": token, "first_name": "A", "last_name": "B", "password": password}
        return await self.with_key("")("POST", "auth/invites", body, **headers)

    async def create_user(self, email: str, role: str = "member", **fields: object) -> str:
        _, token = await self.invite_user(email, role, **fields)
        status, response, _ = await self.accept_invite(token)
        assert status == 200, response
        return response["id"]


def sign_token(**claims: object) -> str:
    """Returns a token of the identity provider with these claims."""
    head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
    return jws.serialize_compact(head, json.dumps(claims), SIGNING_KEY, algorithms=["ES256"])


@asynccontextmanager
async def management_client(
    url: Secret,
    jwt: Jwt = JWT_DISABLED,
    key_prefix: str = "",
    log_service: LogService | None = None,
    settings_file: str | None = None,
    **sections: Any,
) -> AsyncIterator[ManagementClient]:
    """Runs the management API on a store that has an organisation. `sections` are further sections of the settings."""
    master_key = Secret(base64.b64encode(bytes(32)).decode())
    # No test here depends on database timeouts, so they are generous.
    store = Store(url=url, master_key=master_key, key_prefix=key_prefix, acquire_ms=20_000, statement_ms=40_000)
    database = Database(store, url)
    settings = Settings(store=store, jwt=jwt, file=settings_file, **sections)
    registered = IDLE_APPLICATIONS.pop() if IDLE_APPLICATIONS else None
    app = create_app(settings, SnapshotChannel(Snapshot("first")), log_service, registered=registered)
    try:
        yield ManagementClient(app, database)
    finally:
        await app.state["services"].database.close()
        await database.close()
        IDLE_APPLICATIONS.append(app)


def run_scenario(url: Secret, scenario: Callable[[ManagementClient], Awaitable[None]], jwt: Jwt = JWT_DISABLED) -> None:
    """Runs a scenario against a management API on a store."""

    async def run() -> None:
        async with management_client(url, jwt) as api:
            await scenario(api)

    asyncio.run(run())
