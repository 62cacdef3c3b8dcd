"""A running gateway's management API, from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import httpx2

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATIENCE = 30.0
PAGE = 100
MISSING = 404


class RemoteError(PenstockError):
    """The gateway refused, or is not there."""


class Remote:
    """Asks one gateway with one key."""

    def __init__(self, url: str, key: str) -> None:
        """Open nothing before the first question."""
        self._client = httpx2.Client(
            base_url=url.rstrip("/"), headers={"x-gateway-api-key": key}, timeout=PATIENCE, trust_env=False
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask, and give the answer; what is refused is told with the paths of the fields."""
        return self._given(method, path, self._send(method, path, body))

    def find(self, path: str) -> dict[str, Any] | None:
        """Read what may not be there."""
        answer = self._send("GET", path, None)
        if answer.status_code == MISSING:
            return None
        return self._given("GET", path, answer)

    def all_of(self, path: str) -> Iterator[dict[str, Any]]:
        """Give every row of a list, page by page, oldest first."""
        mark = "&" if "?" in path else "?"
        number, seen = 0, 0
        while True:
            page = self.ask("GET", f"{path}{mark}page_size={PAGE}&current_page={number}&order=asc")
            yield from page["data"]
            seen += len(page["data"])
            number += 1
            if seen >= page["total"] or not page["data"]:
                return

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        try:
            return self._client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            message = f"{self._client.base_url} does not answer: {type(error).__name__}"
            raise RemoteError(message) from None

    def _given(self, method: str, path: str, answer: httpx2.Response) -> dict[str, Any]:
        if answer.is_success:
            return cast("dict[str, Any]", answer.json()) if answer.content else {}
        raise RemoteError(f"{method} {path}: {answer.status_code} {_said(answer)}")


def _said(answer: httpx2.Response) -> str:
    try:
        data: dict[str, Any] = answer.json()["data"]
        listed = "; ".join(f"{problem['path']} {problem['message']}".strip() for problem in data.get("errors", []))
        return listed or str(data["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
