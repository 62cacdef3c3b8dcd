"""Test harness of the management API: an application without a server on a store of its own, and the clients that call
it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from joserfc import jws
from joserfc.jwk import ECKey

from penstock.app import create_app
from penstock.settings import Jwt, Settings, Store
from penstock.settings.secret import Secret
from penstock.snapshot.build import Snapshot, SnapshotChannel
from penstock.store.database import Database
from tests.founded import ADMIN_KEY
from tests.unit.asgi import send_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from litestar import Litestar

JWT_DISABLED = Jwt()
# Signing key of the organisation's identity provider.
SIGNING_KEY = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"})
JWT_SETTINGS = Jwt(enabled=True, algorithms=("ES256",), jwks=json.dumps({"keys": [SIGNING_KEY.as_dict(private=False)]}))
PASSWORD = "a password of twelve"


class ManagementClient:
    """Calls the management API with one key."""

    def __init__(self, app: Litestar, database: Database, key: str = ADMIN_KEY) -> None:
        self._app = app
        self.database = database
        self.key = key

    def with_key(self, key: str) -> ManagementClient:
        return ManagementClient(self._app, self.database, key)

    def clear_caller_cache(self) -> None:
        """Makes the API authenticate callers again, as it does one second later."""
        self._app.state["office"].clear_caller_cache()

    async def __call__(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        path, _, query = path.partition("?")
        fields = {"content-type": "application/json", **({"x-gateway-api-key": self.key} if self.key else {})}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = b"" if body is None else json.dumps(body).encode()
        answer = await send_request(self._app, method, f"/v1/{path}", sent, fields, query)
        return answer.status, answer.json() if answer.body else None, answer.headers

    async def request_ok(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        status, answer, _ = await self(method, path, body, **headers)
        assert status == 200, (method, path, status, answer)
        return answer

    async def expect_error(self, status: int, word: str, method: str, path: str, body: object = None) -> None:
        found, answer, _ = await self(method, path, body)
        assert (found, word in str(answer)) == (status, True), (method, path, found, answer)

    async def create_workspace(self, name: str = "w") -> Any:
        return await self.request_ok("POST", "workspaces", {"name": name})

    async def create_key(self, kind: str, **fields: object) -> tuple[str, ManagementClient]:
        """Creates a key; returns its ID and a client that uses it."""
        made = await self.request_ok("POST", f"api-keys/{kind}", {"name": "k", **fields})
        return made["id"], self.with_key(made["key"])

    async def invite_user(self, email: str, role: str = "member", **fields: object) -> tuple[str, str]:
        """Invites a user; returns the invitation's ID and the secret of its link."""
        body = {"email": email, "role": role, "workspaces": [], **fields}
        made = await self.request_ok("POST", "admin/users/invites", body)
        return made["id"], made["invite_link"].partition("token=")[2]

    async def accept_invite(
        self, token: str, password: str = PASSWORD, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        body = {"token": token, "first_name": "A", "last_name": "B", "password": password}
        return await self.with_key("")("POST", "auth/invites", body, **headers)

    async def create_user(self, email: str, role: str = "member", **fields: object) -> str:
        _, token = await self.invite_user(email, role, **fields)
        status, answer, _ = await self.accept_invite(token)
        assert status == 200, answer
        return answer["id"]


def sign_token(**claims: object) -> str:
    """Returns a token of the identity provider with these claims."""
    head = {"alg": "ES256", "kid": "k", "typ": "JWT"}
    return jws.serialize_compact(head, json.dumps(claims), SIGNING_KEY, algorithms=["ES256"])


@asynccontextmanager
async def management_client(
    url: Secret, jwt: Jwt = JWT_DISABLED, key_prefix: str = ""
) -> AsyncIterator[ManagementClient]:
    """Runs the management API on a store that has an organisation."""
    master_key = Secret(base64.b64encode(bytes(32)).decode())
    # No test here depends on database timeouts, so they are generous.
    store = Store(url=url, master_key=master_key, key_prefix=key_prefix, acquire_ms=20_000, statement_ms=40_000)
    database = Database(store, url)
    app = create_app(Settings(store=store, jwt=jwt), SnapshotChannel(Snapshot("first")))
    try:
        yield ManagementClient(app, database)
    finally:
        await app.state["office"].database.close()
        await database.close()


def run_scenario(url: Secret, scene: Callable[[ManagementClient], Awaitable[None]], jwt: Jwt = JWT_DISABLED) -> None:
    """Runs a scenario against a management API on a store."""

    async def run() -> None:
        async with management_client(url, jwt) as api:
            await scene(api)

    asyncio.run(run())
