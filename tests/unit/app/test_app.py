"""Application of the control process: its routes, its error responses, and what the engine sends to it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from litestar import Litestar, get, post
from litestar.params import JSONBody

from penstock import app as module
from penstock import resource_paths
from penstock.app import create_app, error_responses, routers
from penstock.app.routers import require_guards
from penstock.authorization import allow_anyone
from penstock.errors import ConflictError, Problem, StartupError
from penstock.listen import open_metrics_listener
from penstock.settings import Records, Settings
from penstock.settings.monitoring import Metrics
from penstock.settings.secret import Secret
from penstock.snapshot.build import Snapshot, SnapshotChannel
from tests.unit import asgi
from tests.unit.asgi import Response, run_lifespan, send_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

METRICS_PUSH = {
    "worker": 1,
    "pid": 7,
    "requests": {"2xx": 3, "5xx": 1},
    "duration_bounds_ms": [1, 5],
    "durations": [2, 1, 1],
    "duration_us": 8000,
    "in_flight": 2,
    "brand_new": 5,
}


def make_settings(folder: Path) -> Settings:
    return Settings(records=Records(path=str(folder / "records.jsonl")), metrics=Metrics(enabled=True))


def run_with_app(settings: Settings, work: Callable[[Litestar, SnapshotChannel], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        published = SnapshotChannel(Snapshot("first"))
        app = create_app(settings, published)
        async with run_lifespan(app):
            return await work(app, published)

    return asyncio.run(run())


def request_once(settings: Settings, method: str, path: str, **more: Any) -> Response:
    return run_with_app(settings, lambda app, _: send_request(app, method, path, **more))


def test_workers_share_values_through_the_node_store(tmp_path: Path):
    async def scenario(app: Litestar, _: SnapshotChannel) -> list[Response]:
        note = json.dumps({"name": "due:openai/resp 1", "value": "m\n"}).encode()
        return [
            await send_request(app, "GET", "/internal/notes", query="name=due%3Aopenai%2Fresp%201"),
            await send_request(app, "POST", "/internal/notes", note),
            await send_request(app, "GET", "/internal/notes", query="name=due%3Aopenai%2Fresp%201"),
        ]

    before, remaining, result = run_with_app(make_settings(tmp_path), scenario)
    assert (before.status, remaining.status, result.status, result.body) == (204, 204, 200, b"m\n")


def test_health_lists_the_reporting_workers(tmp_path: Path):
    async def scenario(app: Litestar, _: SnapshotChannel) -> Response:
        assert (await send_request(app, "POST", "/internal/metrics", json.dumps(METRICS_PUSH).encode())).status == 204
        return await send_request(app, "GET", "/v1/health")

    body = run_with_app(make_settings(tmp_path), scenario).json()
    assert body["status"] == "success"
    assert body["workers"] == [{"worker": 1}]


def test_health_lists_a_worker_before_its_first_metrics(tmp_path: Path):
    async def scenario(app: Litestar, published: SnapshotChannel) -> Response:
        published.record_worker_epoch(2, "first")
        return await send_request(app, "GET", "/v1/health")

    body = run_with_app(make_settings(tmp_path), scenario).json()
    assert body["workers"] == [{"worker": 2}]


def test_version_reports_the_interface(tmp_path: Path):
    assert request_once(make_settings(tmp_path), "GET", "/v1/version").json()["interface"] == "2.0.0"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/no-such", 404, "AB08"),
        ("DELETE", "/v1/version", 405, "AB01"),
        ("POST", "/internal/metrics", 400, "AB01"),
    ],
)
def test_errors_are_returned_in_the_envelope(tmp_path: Path, method: str, path: str, status: int, code: str):
    response = request_once(make_settings(tmp_path), method, path)
    assert response.status == status
    assert response.json()["success"] is False
    assert response.json()["data"]["errorCode"] == code


def test_own_errors_are_shown_and_defects_only_logged(caplog: pytest.LogCaptureFixture):
    @get("/known", guards=[allow_anyone])
    async def raise_conflict() -> None:
        raise ConflictError("it exists already", [Problem("name", "is taken")])

    @get("/defect", guards=[allow_anyone])
    async def raise_defect() -> None:
        raise RuntimeError("canary")

    @post("/typed", guards=[allow_anyone])
    async def parse_body(data: JSONBody[dict[str, int]]) -> None:
        del data

    app = Litestar(
        [raise_conflict, raise_defect, parse_body],
        exception_handlers={Exception: error_responses.render_error},
        logging_config=None,
    )
    first = asyncio.run(send_request(app, "GET", "/known"))
    assert (first.status, first.json()["data"]["errors"]) == (409, [{"path": "name", "message": "is taken"}])
    second = asyncio.run(send_request(app, "GET", "/defect"))
    assert second.status == 500
    assert second.json() == {"success": False, "data": {"message": "something went wrong", "errorCode": "AB04"}}
    assert "canary" in caplog.text
    third = asyncio.run(send_request(app, "POST", "/typed", b'{"a": "x"}', {"content-type": "application/json"}))
    assert (third.status, third.json()["data"]["errorCode"]) == (400, "AB01")


def test_unguarded_route_prevents_startup():
    @get("/open")
    async def unguarded_route() -> None: ...

    with pytest.raises(StartupError, match="'/open' declares no guard"):
        require_guards(Litestar([unguarded_route], openapi_config=None))


def test_metrics_are_disabled_by_default(tmp_path: Path):
    assert request_once(Settings(records=make_settings(tmp_path).records), "GET", "/metrics").status == 404


@pytest.mark.parametrize("path", ["/metrics", "/dataservice/metrics"])
def test_engine_metrics_are_exported_to_prometheus(tmp_path: Path, path: str):
    async def scenario(app: Litestar, _: SnapshotChannel) -> Response:
        await send_request(app, "POST", "/internal/metrics", json.dumps(METRICS_PUSH).encode())
        return await send_request(app, "GET", path)

    response = run_with_app(make_settings(tmp_path), scenario)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'penstock_requests_total{worker="1",status="2xx"} 3' in response.body.decode()
    assert "# TYPE penstock_job_restarts_total counter\npenstock_job_restarts_total 0\n" in response.body.decode()


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("", {}, 200),
        ("", {"x-forwarded-for": "127.0.0.1"}, 200),
        ("", {"x-forwarded-for": "192.0.2.1"}, 403),
        ("", {"x-forwarded-for": "192.0.2.1, 127.0.0.1"}, 403),
        ("", {"x-forwarded-for": "127.0.0.1", "via": "1.1 proxy"}, 403),
        ("", {"x-forwarded-for": "192.0.2.1", "authorization": "Bearer secret"}, 403),
        ("secret", {"x-forwarded-for": "192.0.2.1", "authorization": "Bearer secret"}, 200),
        ("secret", {"x-forwarded-for": "127.0.0.1"}, 401),
        ("secret", {"authorization": "Bearer Secret"}, 401),
        ("secret", {"authorization": "Basic secret"}, 401),
    ],
)
def test_metrics_need_the_token_or_a_client_on_this_machine(
    tmp_path: Path, token: str, headers: dict[str, str], status: int
):
    metrics = Metrics(enabled=True, token=Secret(token) if token else None)
    settings = Settings(records=make_settings(tmp_path).records, metrics=metrics)
    response = request_once(settings, "GET", "/metrics", headers=headers)
    assert response.status == status
    assert (status == 200) == (b"penstock_job_restarts_total" in response.body)


def test_port_of_its_own_serves_only_metrics(tmp_path: Path):
    token = Secret("secret")
    metrics = Metrics(enabled=True, listen="127.0.0.1:0", token=token)
    settings = Settings(records=make_settings(tmp_path).records, metrics=metrics)
    listener = open_metrics_listener(settings)
    assert listener

    async def run() -> list[httpx2.Response]:
        app = create_app(settings, SnapshotChannel(Snapshot("first")), metrics_socket=listener)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with run_lifespan(app), httpx2.AsyncClient(base_url=address) as client:
            allowed = {"authorization": "Bearer secret"}
            return [
                await client.get("/metrics", headers=allowed),
                await client.get("/dataservice/metrics", headers=allowed),
                await client.get("/metrics"),
                await client.get("/v1/health", headers=allowed),
            ]

    with listener:
        responses = asyncio.run(run())
    assert [response.status_code for response in responses] == [200, 200, 401, 404]
    assert responses[0].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "penstock_job_restarts_total 0" in responses[0].text
    assert responses[2].headers["www-authenticate"] == "Bearer"


def test_snapshot_is_sent_at_once_or_on_change(tmp_path: Path):
    async def scenario(app: Litestar, published: SnapshotChannel) -> None:
        first = await send_request(app, "GET", "/internal/snapshot", query="epoch=none")
        assert (first.status, first.headers["x-penstock-epoch"]) == (200, "first")
        assert first.body == published.current.to_json()
        waiting = asyncio.create_task(send_request(app, "GET", "/internal/snapshot", query="epoch=first"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        published.publish(Snapshot("second"))
        assert (await waiting).headers["x-penstock-epoch"] == "second"
        last = asyncio.create_task(send_request(app, "GET", "/internal/snapshot", query="epoch=second"))
        await asyncio.sleep(0)
        published.close()
        assert (await last).status == 204

    run_with_app(make_settings(tmp_path), scenario)


def test_proxied_request_cannot_reach_internal_routes(tmp_path: Path):
    response = request_once(
        make_settings(tmp_path), "GET", "/internal/snapshot", headers={"x-forwarded-for": "10.0.0.1"}
    )
    assert response.status == 404
    assert not (tmp_path / "records.jsonl").exists()


def test_openapi_page_loads_no_external_resources(tmp_path: Path):
    description = request_once(make_settings(tmp_path), "GET", "/schema/openapi.json").json()
    assert description["openapi"].startswith("3.1")
    assert set(description["paths"]) >= {"/v1/health", "/v1/version", "/metrics"}
    assert not [path for path in description["paths"] if path.startswith("/internal")]
    page = request_once(make_settings(tmp_path), "GET", "/schema")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"http://" not in page.body
    assert b"https://" not in page.body
    assert b" src=" not in page.body
    missing = request_once(make_settings(tmp_path), "GET", "/schema/no-such")
    assert (missing.status, b"://" in missing.body) == (404, False)


def test_every_operation_and_field_is_described():
    description = json.loads(module.openapi_json())
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["description"], path
            for parameter in operation.get("parameters", ()):
                # On SQLite, a search compares all other letters exactly.
                about = parameter["description"]
                assert not about.startswith("part of") or about.endswith("ignoring the case of ASCII letters"), path
    for name, schema in description["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            assert about.get("description"), f"{name}.{field}"


def test_every_resource_module_has_routes_below_each_of_its_prefixes():
    router = routers.build_router(resource_paths.module_names())
    handlers = {route.path: getattr(route, "route_handlers", ()) for route in router.routes}
    assert handlers.keys() >= {"/v1/health", "/v1/version", "/metrics", "/dataservice/metrics"}
    # All paths of a route share one handler, because each handler needs memory.
    assert handlers["/v1/health"][0] is handlers["/admin/health"][0]
    assert set(resource_paths.module_names()) >= {"health", "version", "metrics", "schema", "internal"}


def test_options_lists_all_methods_of_a_path():
    app = module.create_documented_app()
    actual = {
        path: asyncio.run(send_request(app, "OPTIONS", path)) for path in ("/v1/api-keys/a", "/v2/api-keys/a/rotate")
    }
    assert {path: (response.status, response.headers["allow"]) for path, response in actual.items()} == {
        "/v1/api-keys/a": (204, "DELETE, GET, OPTIONS, PUT"),
        "/v2/api-keys/a/rotate": (204, "OPTIONS, POST"),
    }


# ── an application that fails or hangs fails its test, with the cause ──────────────────────────────────────────────


async def fail_at_once(_scope: object, _receive: Receive, _send: Send) -> None:
    raise LookupError("of a test")


async def fail_after_startup_failed(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})
    raise LookupError("of a test")


async def fail_at_shutdown(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise LookupError("of a test")


async def return_silently(_scope: object, _receive: Receive, _send: Send) -> None:
    pass


async def hang(_scope: object, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def run_app(app: asgi.App) -> None:
    async with asgi.run_lifespan(app):
        pass


@pytest.mark.parametrize("app", [fail_at_once, fail_after_startup_failed, fail_at_shutdown])
def test_application_error_is_raised(app: asgi.App):
    with pytest.raises(LookupError, match="of a test"):
        asyncio.run(run_app(app))


@pytest.mark.parametrize(("app", "words"), [(return_silently, "ended"), (hang, "waits")])
def test_silent_end_and_hang_are_distinguished(monkeypatch: pytest.MonkeyPatch, app: asgi.App, words: str):
    monkeypatch.setattr(asgi, "LIFESPAN_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(AssertionError, match=f"{words} without saying lifespan.startup.complete"):
        asyncio.run(run_app(app))
