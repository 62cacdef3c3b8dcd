"""A gateway with a store, and its management API as an admin, a workspace or a person calls it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.founded import ADMIN_KEY
from tests.integration.wire import Response, send_raw_request

if TYPE_CHECKING:
    from tests.gateway import Gateway


@dataclass
class Client:
    """Calls with one key."""

    gateway: Gateway
    key: str = ADMIN_KEY
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: object = None) -> Response:
        # Who signed in has a cookie among the headers, and no key.
        shown = {"x-gateway-api-key": self.key} if self.key else {}
        headers = {**shown, "content-type": "application/json", **self.headers}
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
        """Make something, which must work."""
        return expect_ok(self.post(path, body))

    def read(self, path: str) -> dict[str, Any]:
        """Read something, which must be there."""
        return expect_ok(self.get(path))

    def with_new_key(self, **fields: object) -> Client:
        """Make a key, and call with it."""
        kind = fields.pop("kind", "workspace/service")
        made = self.create(f"/v1/api-keys/{kind}", {"name": "key of a test", **fields})
        return Client(self.gateway, made["key"])


def expect_ok(answer: Response) -> dict[str, Any]:
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json()


def expect_error(answer: Response, status: int, code: str, *words: str) -> None:
    """Check that something was refused in the envelope, in these words."""
    assert answer.status == status, (answer.status, answer.body)
    body = answer.json()
    assert (body["success"], body["data"]["errorCode"]) == (False, code), body
    assert all(word in json.dumps(body["data"]) for word in words), body


def row_state(tag: str | None) -> str:
    """In which state a row is, of the tag of an answer: what a change is answered with says no more."""
    return (tag or "").strip('"').partition(".")[0]
