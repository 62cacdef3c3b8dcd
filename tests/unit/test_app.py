"""The control process's application: what it serves, how it refuses, what the engine tells it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from litestar import Litestar, get, post
from litestar.params import JSONBody

from penstock import app as module
from penstock import resources
from penstock.app import check_guards, create_app
from penstock.authorization import allow_anyone
from penstock.errors import ConflictError, Problem, StartupError
from penstock.settings import Metrics, Records, Settings
from penstock.snapshot.build import Snapshot, SnapshotChannel
from tests.unit import asgi
from tests.unit.asgi import Answer, ask, living

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

PUSH = {
    "worker": 1,
    "pid": 7,
    "requests": {"2xx": 3, "5xx": 1},
    "duration_bounds_ms": [1, 5],
    "durations": [2, 1, 1],
    "duration_us": 8000,
    "in_flight": 2,
    "brand_new": 5,
}


def settings(folder: Path) -> Settings:
    return Settings(records=Records(path=str(folder / "records.jsonl")), metrics=Metrics(enabled=True))


def run(given: Settings, scene: Callable[[Litestar, SnapshotChannel], Awaitable[Any]]) -> Any:
    async def all_of_it() -> Any:
        published = SnapshotChannel(Snapshot("first"))
        app = create_app(given, published)
        async with living(app):
            return await scene(app, published)

    return asyncio.run(all_of_it())


def asked(given: Settings, method: str, path: str, **more: Any) -> Answer:
    return run(given, lambda app, _: ask(app, method, path, **more))


def test_workers_leave_notes_for_each_other(tmp_path: Path):
    async def scene(app: Litestar, _: SnapshotChannel) -> list[Answer]:
        note = json.dumps({"name": "due:openai/resp 1", "said": "m\n"}).encode()
        return [
            await ask(app, "GET", "/internal/notes", query="name=due%3Aopenai%2Fresp%201"),
            await ask(app, "POST", "/internal/notes", note),
            await ask(app, "GET", "/internal/notes", query="name=due%3Aopenai%2Fresp%201"),
        ]

    before, left, found = run(settings(tmp_path), scene)
    assert (before.status, left.status, found.status, found.body) == (204, 204, 200, b"m\n")


def test_health_tells_which_workers_report(tmp_path: Path):
    async def scene(app: Litestar, _: SnapshotChannel) -> Answer:
        assert (await ask(app, "POST", "/internal/metrics", json.dumps(PUSH).encode())).status == 204
        return await ask(app, "GET", "/v1/health")

    body = run(settings(tmp_path), scene).json()
    assert body["status"] == "success"
    assert body["workers"] == [{"worker": 1, "pid": 7}]


def test_version_is_said(tmp_path: Path):
    assert asked(settings(tmp_path), "GET", "/v1/version").json()["interface"] == "2.0.0"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/no-such", 404, "AB08"),
        ("DELETE", "/v1/version", 405, "AB01"),
        ("POST", "/internal/metrics", 400, "AB01"),
    ],
)
def test_what_goes_wrong_is_answered_in_the_envelope(tmp_path: Path, method: str, path: str, status: int, code: str):
    answer = asked(settings(tmp_path), method, path)
    assert answer.status == status
    assert answer.json()["success"] is False
    assert answer.json()["data"]["errorCode"] == code


def test_errors_of_ours_keep_their_words_and_defects_keep_theirs_to_the_log(caplog: pytest.LogCaptureFixture):
    @get("/known", guards=[allow_anyone])
    async def known() -> None:
        raise ConflictError("it exists already", [Problem("name", "is taken")])

    @get("/defect", guards=[allow_anyone])
    async def defect() -> None:
        raise RuntimeError("canary")

    @post("/typed", guards=[allow_anyone])
    async def typed(data: JSONBody[dict[str, int]]) -> None:
        del data

    app = Litestar([known, defect, typed], exception_handlers={Exception: module.render_error}, logging_config=None)
    first = asyncio.run(ask(app, "GET", "/known"))
    assert (first.status, first.json()["data"]["errors"]) == (409, [{"path": "name", "message": "is taken"}])
    second = asyncio.run(ask(app, "GET", "/defect"))
    assert second.status == 500
    assert second.json() == {"success": False, "data": {"message": "something went wrong", "errorCode": "AB04"}}
    assert "canary" in caplog.text
    third = asyncio.run(ask(app, "POST", "/typed", b'{"a": "x"}', {"content-type": "application/json"}))
    assert (third.status, third.json()["data"]["errorCode"]) == (400, "AB01")


def test_an_application_with_an_unguarded_route_does_not_start():
    @get("/open")
    async def unguarded() -> None: ...

    with pytest.raises(StartupError, match="'/open' declares no guard"):
        check_guards(Litestar([unguarded], openapi_config=None))


def test_figures_are_shown_only_when_asked_for(tmp_path: Path):
    assert asked(Settings(records=settings(tmp_path).records), "GET", "/metrics").status == 404


@pytest.mark.parametrize("path", ["/metrics", "/dataservice/metrics"])
def test_figures_of_the_engines_are_shown_to_prometheus(tmp_path: Path, path: str):
    async def scene(app: Litestar, _: SnapshotChannel) -> Answer:
        await ask(app, "POST", "/internal/metrics", json.dumps(PUSH).encode())
        return await ask(app, "GET", path)

    answer = run(settings(tmp_path), scene)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'penstock_requests_total{worker="1",status="2xx"} 3' in answer.body.decode()
    assert "# TYPE penstock_job_restarts_total counter\npenstock_job_restarts_total 0\n" in answer.body.decode()


def test_the_snapshot_is_given_at_once_or_when_it_changes(tmp_path: Path):
    async def scene(app: Litestar, published: SnapshotChannel) -> None:
        first = await ask(app, "GET", "/internal/snapshot", query="epoch=none")
        assert (first.status, first.headers["x-penstock-epoch"]) == (200, "first")
        assert first.body == published.current.to_json()
        waiting = asyncio.create_task(ask(app, "GET", "/internal/snapshot", query="epoch=first"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        published.publish(Snapshot("second"))
        assert (await waiting).headers["x-penstock-epoch"] == "second"
        last = asyncio.create_task(ask(app, "GET", "/internal/snapshot", query="epoch=second"))
        await asyncio.sleep(0)
        published.close()
        assert (await last).status == 204

    run(settings(tmp_path), scene)


def test_what_came_through_a_proxy_does_not_reach_the_engines_own_routes(tmp_path: Path):
    answer = asked(settings(tmp_path), "GET", "/internal/snapshot", headers={"x-forwarded-for": "10.0.0.1"})
    assert answer.status == 404
    assert not (tmp_path / "records.jsonl").exists()


def test_the_description_is_served_with_a_page_that_loads_nothing_from_elsewhere(tmp_path: Path):
    description = asked(settings(tmp_path), "GET", "/schema/openapi.json").json()
    assert description["openapi"].startswith("3.1")
    assert set(description["paths"]) >= {"/v1/health", "/v1/version", "/metrics"}
    assert not [path for path in description["paths"] if path.startswith("/internal")]
    page = asked(settings(tmp_path), "GET", "/schema")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"http://" not in page.body
    assert b"https://" not in page.body
    assert b" src=" not in page.body
    missing = asked(settings(tmp_path), "GET", "/schema/no-such")
    assert (missing.status, b"://" in missing.body) == (404, False)


def test_every_operation_of_the_description_is_explained():
    description = json.loads(module.openapi_json())
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["description"], path
    for name, schema in description["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            assert about.get("description"), f"{name}.{field}"


def test_every_module_of_the_resources_is_served():
    assert {router.path for router in module.build_routers(resources.module_names())} >= {
        "/v1/health",
        "/v1/version",
        "/metrics",
    }
    assert set(resources.module_names()) >= {"health", "version", "metrics", "schema", "internal"}


# ── an application that fails or goes silent fails its test, with what was wrong ───────────────────────────────────


async def fails_at_once(_scope: object, _receive: Receive, _send: Send) -> None:
    raise LookupError("of a test")


async def fails_with_a_word(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})
    raise LookupError("of a test")


async def fails_at_the_end(_scope: object, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    raise LookupError("of a test")


async def ends_without_a_word(_scope: object, _receive: Receive, _send: Send) -> None:
    pass


async def waits_for_ever(_scope: object, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def live(app: asgi.App) -> None:
    async with asgi.living(app):
        pass


@pytest.mark.parametrize("app", [fails_at_once, fails_with_a_word, fails_at_the_end])
def test_what_an_application_fails_with_is_raised(app: asgi.App):
    with pytest.raises(LookupError, match="of a test"):
        asyncio.run(live(app))


@pytest.mark.parametrize(("app", "words"), [(ends_without_a_word, "ended"), (waits_for_ever, "waits")])
def test_an_application_that_says_nothing_is_told_apart(monkeypatch: pytest.MonkeyPatch, app: asgi.App, words: str):
    monkeypatch.setattr(asgi, "PATIENCE", 0.05)
    with pytest.raises(AssertionError, match=f"{words} without saying lifespan.startup.complete"):
        asyncio.run(live(app))
