"""Client of a running gateway's management API, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import httpx2
import msgspec

from penstock.errors import RejectedError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REQUEST_TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 100
NOT_FOUND = 404


# Statuses of errors that are caused by the content of the request.
CONTENT_ERRORS = frozenset({400, 404, 409, 413, 422})


def quote_path_segment(text: str) -> str:
    """Percent-encodes an id or slug as one segment of a path, including `.` and `..`."""
    return quote(text, safe="").replace(".", "%2E") if text.strip(".") == "" else quote(text, safe="")


class ManagementClient:
    """Sends requests to one gateway with one API key."""

    def __init__(self, url: str, key: str) -> None:
        """Validates the URL and the key. The first request opens the connection."""
        message = f"{url!r} is no address of a gateway: expected http://… or https://…; hint: --url, PENSTOCK_URL"
        if not url.startswith(("http://", "https://")):
            raise RemoteError(message)
        # Users may pass the URL for model clients, which ends with `/v1`.
        base = url.rstrip("/").removesuffix("/v1")
        try:
            headers = {"x-gateway-api-key": key}
            self._client = httpx2.Client(
                base_url=base, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False
            )
        except httpx2.InvalidURL:
            raise RemoteError(message) from None
        except UnicodeEncodeError:
            message = "the key is not allowed: expected ASCII; hint: --api-key, PENSTOCK_API_KEY"
            raise RemoteError(message) from None

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Sends a request and returns the JSON object of the response. Raises RemoteError. The message contains the
        field paths of validation errors.
        """
        return self._parse_response(method, path, self._send(method, path, body))

    def find(self, path: str) -> dict[str, Any] | None:
        """Returns an object, or `None` if it does not exist."""
        response = self._send("GET", path, None)
        if response.status_code == NOT_FOUND:
            return None
        return self._parse_response("GET", path, response)

    def iter_rows(self, path: str) -> Iterator[dict[str, Any]]:
        """Yields every row of a list, page by page, oldest first."""
        mark = "&" if "?" in path else "?"
        number, seen_count = 0, 0
        while True:
            page = self.request("GET", f"{path}{mark}page_size={PAGE_SIZE}&current_page={number}&order=asc")
            if not isinstance(page.get("data"), list) or not isinstance(page.get("total"), int):
                raise self._not_a_gateway_error()
            yield from page["data"]
            seen_count += len(page["data"])
            number += 1
            if seen_count >= page["total"] or not page["data"]:
                return

    def iter_newest(self, path: str, limit: int, member: str = "data") -> Iterator[dict[str, Any]]:
        """Yields up to `limit` rows of a list, newest first. `member` is the field of the response that has the
        rows.
        """
        mark = "&" if "?" in path else "?"
        number, remaining = 0, limit
        while remaining > 0:
            size = min(PAGE_SIZE, remaining) if number == 0 else PAGE_SIZE
            page = self.request("GET", f"{path}{mark}page_size={size}&current_page={number}")
            if not isinstance(page.get(member), list):
                raise self._not_a_gateway_error()
            rows: list[dict[str, Any]] = page[member]
            yield from rows[:remaining]
            remaining -= len(rows)
            number += 1
            if len(rows) < size:
                return

    def iter_events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Yields the name and the content of each server-sent event of a stream."""
        timeout = httpx2.Timeout(REQUEST_TIMEOUT_SECONDS)
        try:
            with self._client.stream("GET", path, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    self._parse_response("GET", path, response)
                name = ""
                for line in response.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        yield name, msgspec.json.decode(value)
        except httpx2.TimeoutException:
            raise RemoteError(
                f"{self._client.base_url} sent no heartbeat for {REQUEST_TIMEOUT_SECONDS:g} seconds"
            ) from None
        except httpx2.HTTPError as error:
            raise self._unreachable_error(error) from None

    def _unreachable_error(self, error: Exception) -> RemoteError:
        reason = str(error) or type(error).__name__
        return RemoteError(
            f"{self._client.base_url} cannot be reached: {reason}; hint: is it running? --url, PENSTOCK_URL"
        )

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        try:
            return self._client.request(method, path, json=body)
        except httpx2.InvalidURL as error:
            raise RemoteError(f"the request URL is not valid: {error}") from None
        except httpx2.TimeoutException:
            raise RemoteError(
                f"{self._client.base_url} does not answer within {REQUEST_TIMEOUT_SECONDS:g} seconds"
            ) from None
        except httpx2.HTTPError as error:
            raise self._unreachable_error(error) from None

    def _parse_response(self, method: str, path: str, response: httpx2.Response) -> dict[str, Any]:
        if response.is_success:
            return self._decode_object(response) if response.content else {}
        kind = RejectedError if response.status_code in CONTENT_ERRORS else RemoteError
        raise kind(f"{method} {path}: {response.status_code} {_error_message(response)}")

    def _decode_object(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            body: object = response.json()
        except ValueError:
            raise self._not_a_gateway_error() from None
        if not isinstance(body, dict):
            raise self._not_a_gateway_error()
        return cast("dict[str, Any]", body)

    def _not_a_gateway_error(self) -> RemoteError:
        return RemoteError(f"{self._client.base_url} answers, but is no gateway; hint: --url, PENSTOCK_URL")


def _error_message(response: httpx2.Response) -> str:
    try:
        body: dict[str, Any] = response.json()
        # Errors of the edge itself have the format of model requests, with the field `error`.
        data: dict[str, Any] = body.get("data") or body["error"]
        listed = "; ".join(f"{problem['path']} {problem['message']}".strip() for problem in data.get("errors", []))
        return listed or str(data["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
