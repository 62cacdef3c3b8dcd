"""Values at the ends of what can be written, in every field of every route: refused or kept, and never a failure of ours."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.app import openapi_json
from tests.integration.batching import jsonl, line, workspace
from tests.integration.test_authorisation import EACH, Route, Scene
from tests.integration.wire import CHAT, JSON, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.managed import Client
    from tests.integration.wire import Answer

DESCRIPTION: dict[str, Any] = json.loads(openapi_json())
# As they stand in a body.
NUMBERS = (b"2147483648", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1e400")
TEXTS = (
    b'"\\u0000"',
    b'"\\ud800"',
    b'"%s"' % (b"x" * 256),
    b'"%s"' % ("\U0001f6b0".encode() * 3000),
    b'"%s"' % (b"x" * 100_000),
    b'"9999-12-31T23:59:59.999-23:59"',
    b'"0001-01-01T00:00:00+23:59"',
)
IN_ADDRESSES = (
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
HERE = "the place of a value"
DEEPEST = 6


class Tried(NamedTuple):
    """A request of a route that is good but for one value."""

    method: str
    path: str
    body: bytes | None
    # Which value of it is another, and what it is.
    place: str
    value: str | bytes


def least(schema: dict[str, Any]) -> Any:
    """The least that a schema allows."""
    schema = plain(schema)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return least(next(one for one in schema[several] if one.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if "object" in types(schema):
        return {name: least(schema["properties"][name]) for name in schema.get("required", ())}
    if "array" in types(schema):
        return [least(schema["items"])] if schema.get("minItems") else []
    text = "2999-01-01T00:00:00Z" if schema.get("format") == "date-time" else "x"
    return {"integer": schema.get("minimum", 1), "number": 1, "boolean": False}.get(min(types(schema) - {"null"}), text)


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return DESCRIPTION["components"]["schemas"][name] if name else schema


class Place(NamedTuple):
    """Where a value stands in a body, and such values as are not refused for what they are."""

    path: str
    values: tuple[bytes, ...]


def types(kind: dict[str, Any]) -> set[str]:
    """What a value may be; anything where nothing is said."""
    said = kind.get("type", ["number", "string"])
    return {said} if isinstance(said, str) else set(said)


def values(kinds: list[dict[str, Any]]) -> tuple[bytes, ...]:
    allowed = set[str]().union(*map(types, kinds))
    numbers = NUMBERS if allowed & {"integer", "number"} else NUMBERS[:1]
    return numbers + (TEXTS if "string" in allowed else TEXTS[:1])


def spoiled(schema: dict[str, Any], good: object, path: str = "", depth: int = 0) -> Iterator[tuple[Place, Any]]:
    """Put the mark of a value in each place of a body in turn, the rest staying good."""
    schema = plain(schema)
    kinds = [plain(one) for several in ("anyOf", "oneOf") for one in schema.get(several, ())] or [schema]
    yield Place(path, values(kinds)), HERE
    for kind in kinds if depth < DEEPEST else ():
        if "array" in types(kind):
            first = good[0] if isinstance(good, list) and good else None
            yield from ((at, [inner]) for at, inner in spoiled(kind.get("items", {}), first, f"{path}[0]", depth + 1))
        if "object" not in types(kind) and "properties" not in kind:
            continue
        row = good if isinstance(good, dict) else least(kind)
        for name, inside in kind.get("properties", {}).items():
            for at, inner in spoiled(inside, row.get(name), f"{path}.{name}", depth + 1):
                yield at, {**row, name: inner}
        if kind.get("additionalProperties", not kind.get("properties")):
            more = kind.get("additionalProperties")
            for at, inner in spoiled(more if isinstance(more, dict) else {}, None, f"{path}.key", depth + 1):
                yield at, {**row, "key": inner}
            yield Place(f"{path}: a name", TEXTS), {**row, HERE: "x"}


def in_bodies(route: Route, path: str, body: object) -> Iterator[Tried]:
    described = DESCRIPTION["paths"][route.path][route.method.lower()]
    content = described.get("requestBody", {}).get("content", {}).get("application/json")
    for place, whole in spoiled(content["schema"], body) if content else ():
        written = json.dumps(whole).encode()
        for value in place.values:
            yield Tried(route.method, path, written.replace(json.dumps(HERE).encode(), value), place.path, value)


def in_addresses(route: Route, path: str, body: object) -> Iterator[Tried]:
    described = DESCRIPTION["paths"][route.path][route.method.lower()]
    written = None if body is None else json.dumps(body).encode()
    parts, names = path.partition("?")[0].split("/"), route.path.split("/")
    for value in IN_ADDRESSES:
        for parameter in described.get("parameters", ()):
            if parameter["in"] == "query":
                more = f"{path}{'&' if '?' in path else '?'}{parameter['name']}={value}"
                yield Tried(route.method, more, written, f"?{parameter['name']}", value)
        for index, name in enumerate(names):
            if name.startswith("{"):
                other = "/".join([*parts[:index], value, *parts[index + 1 :]])
                yield Tried(route.method, other, written, name, value)


@pytest.fixture(scope="module")
def scene(admin: Client) -> Scene:
    return Scene(admin)


def send(scene: Scene, route: Route, tried: Tried) -> Answer:
    who = "an admin of the organisation" if route.needs is None else "organisation-service with all scopes"
    headers = {**JSON, **scene.callers[who][0]}
    for _ in range(3):
        answer = ask(scene.admin.gateway.base_url, tried.path, tried.body, headers, method=tried.method)
        # On a busy machine a store may be too slow for its time, and says so; what is asked again must be answered.
        if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
            break
    return answer


def test_no_value_of_any_field_is_a_failure_of_ours(scene: Scene):
    failed: list[object] = []
    count = 0
    with ThreadPoolExecutor(4) as pool:
        for route in EACH:
            path, body = scene.fill(route)
            tries = [*in_addresses(route, path, body), *in_bodies(route, path, body)]
            count += len(tries)
            for tried, answer in zip(tries, pool.map(partial(send, scene, route), tries), strict=True):
                if answer.status >= 500:
                    failed.append((route.id, tried.place, tried.value[:40], answer.status, answer.body[:300]))
    assert not failed, "\n".join(map(str, failed))
    assert count > 3000
    # What was taken can be read.
    for route in EACH:
        if route.method == "GET":
            path, body = scene.fill(route)
            assert send(scene, route, Tried("GET", path, None, "", "")).status == 200, path


def form(name: bytes, purpose: bytes = b"batch") -> bytes:
    part = b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    return (
        part % (b"purpose", b"", purpose) + part % (b"file", b'; filename="%s"' % name, jsonl(line(1))) + b"--b--\r\n"
    )


def test_no_value_of_a_batch_or_of_a_file_is_one_either(admin: Client):
    caller = workspace(admin, "extremes")
    url, key = admin.gateway.base_url, {"x-gateway-api-key": caller.key}
    formed = {**key, "content-type": "multipart/form-data; boundary=b"}
    file = ask(url, "/v1/files", form(b"lines.jsonl"), formed).json()["id"]
    made = {"input_file_id": file, "endpoint": CHAT, "completion_window": "immediate"}
    batch = caller.made("/v1/batches", made)["id"]
    tries: list[tuple[str, Answer]] = []
    for method, path, body in (
        ("POST", "/v1/batches", made),
        ("PUT", "/v1/batches/{batch_id}", {"internal_output_file_id": file}),
    ):
        route, filled = Route(method, path, frozenset()), path.replace("{batch_id}", batch)
        for tried in [*in_addresses(route, filled, body), *in_bodies(route, filled, body)]:
            answer = ask(url, tried.path, tried.body, {**JSON, **key}, method=method)
            tries.append((f"{route.id} {tried.place} {tried.value[:40]!r}", answer))
    for value in (b"\xff", b"\xed\xa0\x80", b"x" * 256, b"x" * 3000, b"\0", "\U0001f6b0".encode() * 300):
        forms = (
            form(value),
            form(b"a", value),
            form(b"a").replace(b'"purpose"', b'"purpose"\r\ncontent-type: a/b; charset=no'),
        )
        tries += [(f"file {value[:9]!r}", ask(url, "/v1/files", sent, formed)) for sent in forms]
    failed = [(what, answer.status, answer.body[:200]) for what, answer in tries if answer.status >= 500]
    assert not failed, "\n".join(map(str, failed))
    assert {answer.status for _, answer in tries} >= {200, 400}
