"""Boundary values in every field of every management route. Each value is accepted or rejected, and never causes a 5xx
status.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.app import openapi_json
from tests.integration.batching import batch_line, create_workspace, to_jsonl
from tests.integration.raw_http import CHAT_PATH, JSON_HEADERS, send_raw_request
from tests.integration.test_authorisation import CANONICAL_ROUTES, AccessScenario, Route
from tests.integration.test_authorisation import TABLES as AUTHORISATION_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.management_client import Client
    from tests.integration.raw_http import Response

# `AccessScenario` creates logs and tokens, which need these settings.
TABLES = AUTHORISATION_TABLES
DESCRIPTION: dict[str, Any] = json.loads(openapi_json())
# JSON source text, as it stands in a body.
EXTREME_NUMBERS = (b"2147483648", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1e400")
EXTREME_STRINGS = (
    b'"\\u0000"',
    b'"\\ud800"',
    b'"%s"' % (b"x" * 256),
    b'"%s"' % ("\U0001f6b0".encode() * 3000),
    b'"%s"' % (b"x" * 100_000),
    b'"9999-12-31T23:59:59.999-23:59"',
    b'"0001-01-01T00:00:00+23:59"',
)
EXTREME_URL_VALUES = (
    "2147483648",
    "9223372036854775808",
    "-9223372036854775809",
    "1e400",
    "%00",
    "%ED%A0%80",
    "%FF",
    "x" * 3000,
    "9999-12-31T23:59:59.999-23:59",
    "0001-01-01T00:00:00%2B23:59",
)
# The response of this route does not end. It has the filters of `/v1/logs`.
ROUTES = tuple(route for route in CANONICAL_ROUTES if route.path != "/v1/logs/tail")
# Logs have a store of their own, so their routes are tried with SQLite only. All other routes are tried with
# PostgreSQL, which rejects more values.
LOG_PATHS = ("/v1/analytics", "/v1/logs", "/v1/admin/logs", "/v1/feedback")
PLACEHOLDER = "the place of a value"
MAX_DEPTH = 6
# Each route is tried with every fourth of its cases.
CASE_STEP = 4
# A route with more parameters has the filters of logs.
MAX_OWN_PARAMETERS = 21


class RequestCase(NamedTuple):
    """A request that is valid except for one value."""

    method: str
    path: str
    body: bytes | None
    # Location of the replaced value, such as `?page_size` or the path in the body.
    location: str
    # Value that replaces it.
    value: str | bytes


def minimal_value(schema: dict[str, Any]) -> Any:
    """Returns the smallest value that a schema allows."""
    schema = resolve_ref(schema)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return minimal_value(next(item for item in schema[several] if item.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if "object" in allowed_types(schema):
        return {name: minimal_value(schema["properties"][name]) for name in schema.get("required", ())}
    if "array" in allowed_types(schema):
        return [minimal_value(schema["items"])] if schema.get("minItems") else []
    text = "2999-01-01T00:00:00Z" if schema.get("format") == "date-time" else "x"
    return {"integer": schema.get("minimum", 1), "number": 1, "boolean": False}.get(
        min(allowed_types(schema) - {"null"}), text
    )


def resolve_ref(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return DESCRIPTION["components"]["schemas"][name] if name else schema


class ValueLocation(NamedTuple):
    """Location of a value in a body, with the extreme values that its type allows."""

    path: str
    values: tuple[bytes, ...]


def allowed_types(kind: dict[str, Any]) -> set[str]:
    """Returns the JSON types that a schema allows; number and string if it names none."""
    content = kind.get("type", ["number", "string"])
    return {content} if isinstance(content, str) else set(content)


def extreme_values(kinds: list[dict[str, Any]]) -> tuple[bytes, ...]:
    allowed = set[str]().union(*map(allowed_types, kinds))
    numbers = EXTREME_NUMBERS if allowed & {"integer", "number"} else EXTREME_NUMBERS[:1]
    return numbers + (EXTREME_STRINGS if "string" in allowed else EXTREME_STRINGS[:1])


def iter_bodies_with_placeholder(
    schema: dict[str, Any], good: object, path: str = "", depth: int = 0
) -> Iterator[tuple[ValueLocation, Any]]:
    """Yields copies of a valid body with the placeholder at each location in turn."""
    schema = resolve_ref(schema)
    kinds = [resolve_ref(item) for several in ("anyOf", "oneOf") for item in schema.get(several, ())] or [schema]
    yield ValueLocation(path, extreme_values(kinds)), PLACEHOLDER
    for kind in kinds if depth < MAX_DEPTH else ():
        if "array" in allowed_types(kind):
            first = good[0] if isinstance(good, list) and good else None
            yield from (
                (at, [inner])
                for at, inner in iter_bodies_with_placeholder(kind.get("items", {}), first, f"{path}[0]", depth + 1)
            )
        if "object" not in allowed_types(kind) and "properties" not in kind:
            continue
        row = good if isinstance(good, dict) else minimal_value(kind)
        for name, inside in kind.get("properties", {}).items():
            for at, inner in iter_bodies_with_placeholder(inside, row.get(name), f"{path}.{name}", depth + 1):
                yield at, {**row, name: inner}
        if kind.get("additionalProperties", not kind.get("properties")):
            more = kind.get("additionalProperties")
            for at, inner in iter_bodies_with_placeholder(
                more if isinstance(more, dict) else {}, None, f"{path}.key", depth + 1
            ):
                yield at, {**row, "key": inner}
            yield ValueLocation(f"{path}: a name", EXTREME_STRINGS), {**row, PLACEHOLDER: "x"}


def iter_body_cases(route: Route, path: str, body: object) -> Iterator[RequestCase]:
    described = DESCRIPTION["paths"][route.path][route.method.lower()]
    content = described.get("requestBody", {}).get("content", {}).get("application/json")
    for location, complete in iter_bodies_with_placeholder(content["schema"], body) if content else ():
        written = json.dumps(complete).encode()
        for value in location.values:
            yield RequestCase(
                route.method, path, written.replace(json.dumps(PLACEHOLDER).encode(), value), location.path, value
            )


def iter_url_cases(route: Route, path: str, body: object, number: int = 0) -> Iterator[RequestCase]:
    """Yields the cases of the route with this number. Many routes share the filters of logs, so each of them is tried with
    another value of a filter.
    """
    described = DESCRIPTION["paths"][route.path][route.method.lower()]
    written = None if body is None else json.dumps(body).encode()
    parts, names = path.partition("?")[0].split("/"), route.path.split("/")
    parameters = described.get("parameters", ())
    has_filters = len(parameters) > MAX_OWN_PARAMETERS
    for turn, value in enumerate(EXTREME_URL_VALUES):
        for position, parameter in enumerate(parameters):
            is_turn = not has_filters or (turn + position + number) % len(EXTREME_URL_VALUES) == 0
            if parameter["in"] == "query" and is_turn:
                more = f"{path}{'&' if '?' in path else '?'}{parameter['name']}={value}"
                yield RequestCase(route.method, more, written, f"?{parameter['name']}", value)
        for index, name in enumerate(names):
            if name.startswith("{"):
                other = "/".join([*parts[:index], value, *parts[index + 1 :]])
                yield RequestCase(route.method, other, written, name, value)


@pytest.fixture(scope="module")
def scenario(admin: Client) -> AccessScenario:
    return AccessScenario(admin)


def send_case(scenario: AccessScenario, route: Route, tried: RequestCase) -> Response:
    who = "an admin of the organisation" if route.required_scopes is None else "organisation-service with all scopes"
    headers = {**JSON_HEADERS, **scenario.callers[who][0]}
    for _ in range(3):
        response = send_raw_request(
            scenario.admin.gateway.base_url, tried.path, tried.body, headers, method=tried.method
        )
        # On a busy machine the database may time out, which returns 503; a retry must succeed.
        if response.status != HTTPStatus.SERVICE_UNAVAILABLE:
            break
    return response


# About 2,500 requests.
@pytest.mark.slow(50)
@pytest.mark.timeout(400)
def test_no_field_value_causes_a_server_error(scenario: AccessScenario, request: pytest.FixtureRequest):
    is_sqlite = request.node.callspec.params["new_store"] == "sqlite"
    failed: list[object] = []
    count = 0
    with ThreadPoolExecutor(4) as pool:
        for number, route in enumerate(ROUTES):
            if is_sqlite != route.path.startswith(LOG_PATHS):
                continue
            path, body = scenario.prepare_request(route)
            every = [*iter_url_cases(route, path, body, number), *iter_body_cases(route, path, body)]
            # Each route begins at another case, so that other routes try the cases that this one leaves out.
            tries = every[number % CASE_STEP :: CASE_STEP]
            count += len(tries)
            for tried, response in zip(tries, pool.map(partial(send_case, scenario, route), tries), strict=True):
                if response.status >= 500:
                    failed.append((route.id, tried.location, tried.value[:40], response.status, response.body[:300]))
    assert not failed, "\n".join(map(str, failed))
    assert count > (200 if is_sqlite else 600)
    # Accepted values can be read back.
    for route in ROUTES:
        if route.method == "GET" and is_sqlite == route.path.startswith(LOG_PATHS):
            path, body = scenario.prepare_request(route)
            assert send_case(scenario, route, RequestCase("GET", path, None, "", "")).status == 200, path


def upload_form(name: bytes, purpose: bytes = b"batch") -> bytes:
    part = b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    return (
        part % (b"purpose", b"", purpose)
        + part % (b"file", b'; filename="%s"' % name, to_jsonl(batch_line(1)))
        + b"--b--\r\n"
    )


def test_no_batch_or_file_value_causes_a_server_error(admin: Client):
    caller = create_workspace(admin, "extremes")
    url, key = admin.gateway.base_url, {"x-gateway-api-key": caller.key}
    formed = {**key, "content-type": "multipart/form-data; boundary=b"}
    file = send_raw_request(url, "/v1/files", upload_form(b"lines.jsonl"), formed).json()["id"]
    fields = {"input_file_id": file, "endpoint": CHAT_PATH, "completion_window": "immediate"}
    batch = caller.create("/v1/batches", fields)["id"]
    tries: list[tuple[str, Response]] = []
    for method, path, body in (
        ("POST", "/v1/batches", fields),
        ("PUT", "/v1/batches/{batch_id}", {"internal_output_file_id": file}),
    ):
        route, filled = Route(method, path, frozenset()), path.replace("{batch_id}", batch)
        for tried in [*iter_url_cases(route, filled, body), *iter_body_cases(route, filled, body)]:
            response = send_raw_request(url, tried.path, tried.body, {**JSON_HEADERS, **key}, method=method)
            tries.append((f"{route.id} {tried.location} {tried.value[:40]!r}", response))
    for value in (b"\xff", b"\xed\xa0\x80", b"x" * 256, b"x" * 3000, b"\0", "\U0001f6b0".encode() * 300):
        forms = (
            upload_form(value),
            upload_form(b"a", value),
            upload_form(b"a").replace(b'"purpose"', b'"purpose"\r\ncontent-type: a/b; charset=no'),
        )
        tries += [(f"file {value[:9]!r}", send_raw_request(url, "/v1/files", sent, formed)) for sent in forms]
    failed = [(label, response.status, response.body[:200]) for label, response in tries if response.status >= 500]
    assert not failed, "\n".join(map(str, failed))
    assert {response.status for _, response in tries} >= {200, 400}
