"""Client of the management API, for an admin, a workspace key or a user."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.bootstrapped_store import ADMIN_KEY
from tests.integration.raw_http import Response, send_raw_request

if TYPE_CHECKING:
    from tests.gateway import Gateway


@dataclass
class Client:
    """Management API client with one key."""

    gateway: Gateway
    key: str = ADMIN_KEY
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: object = None) -> Response:
        # A signed-in user has a session cookie in `headers` and no key.
        fields = {"x-gateway-api-key": self.key} if self.key else {}
        headers = {**fields, "content-type": "application/json", **self.headers}
        sent = b"" if body is None else json.dumps(body).encode()
        return send_raw_request(self.gateway.base_url, path, sent, headers, method=method)

    def get(self, path: str) -> Response:
        return self.send("GET", path)

    def post(self, path: str, body: object) -> Response:
        return self.send("POST", path, body)

    def put(self, path: str, body: object) -> Response:
        return self.send("PUT", path, body)

    def delete(self, path: str, body: object = None) -> Response:
        return self.send("DELETE", path, body)

    def create(self, path: str, body: object) -> dict[str, Any]:
        """Creates an object with POST and returns it; fails if the status is not 200."""
        return expect_ok(self.post(path, body))

    def read(self, path: str) -> dict[str, Any]:
        """Returns the object at `path`; fails if the status is not 200."""
        return expect_ok(self.get(path))

    def with_new_key(self, **fields: object) -> Client:
        """Creates an API key and returns a client that uses it."""
        kind = fields.pop("kind", "workspace/service")
        key = self.create(f"/v1/api-keys/{kind}", {"name": "key of a test", **fields})
        return Client(self.gateway, key["key"])


def expect_ok(response: Response) -> dict[str, Any]:
    assert response.status == 200, (response.status, response.body)
    return response.json()


def expect_error(response: Response, status: int, code: str, *words: str) -> None:
    """Checks the status and the error code of an error response, and that it contains these words."""
    assert response.status == status, (response.status, response.body)
    body = response.json()
    assert (body["success"], body["data"]["errorCode"]) == (False, code), body
    assert all(word in json.dumps(body["data"]) for word in words), body


def row_state(tag: str | None) -> str:
    """Returns the part of an ETag that identifies the state of a row. Responses to changes carry only this part."""
    return (tag or "").strip('"').partition(".")[0]
