"""Internal routes between the edge's engines and the control process. They are never reachable from the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from penstock.authorization import authenticate, engine_only
from penstock.batches.batch_passes import is_valid_pass
from penstock.errors import NotFoundError
from penstock.guardrails.trial_plans import take_plan
from penstock.metrics import MetricsStore
from penstock.node_store import NodeStore
from penstock.snapshot.build import SnapshotChannel

if TYPE_CHECKING:
    from penstock.kit.tenant_session import Services

LONG_POLL_SECONDS = 20.0
MAX_PUSH_BYTES = 1024 * 1024
EPOCH_HEADER = "x-penstock-epoch"
# Largest integer that the database column can have. No prompt has this many versions.
MAX_VERSION_NUMBER = 2**31 - 1


@post("/metrics", status_code=204)
async def accept_metrics(request: Request[Any, Any, Any], figures: NamedDependency[MetricsStore]) -> None:
    """Stores the metrics that one worker pushes."""
    figures.accept_push(await request.body())


class NodeStoreEntry(msgspec.Struct):
    """A named value that one worker shares with the others."""

    name: str
    value: str


@post("/notes")
async def put_node_entry(request: Request[Any, Any, Any], notes: NamedDependency[NodeStore]) -> Response[bytes]:
    """Stores an entry for the other workers and returns the value that it replaces; 204 if there was none."""
    note = msgspec.json.decode(await request.body(), type=NodeStoreEntry)
    return _build_entry_response(notes.put(note.name, note.value))


@get("/notes")
async def get_node_entry(name: FromQuery[str], notes: NamedDependency[NodeStore]) -> Response[bytes]:
    """Returns the value of an entry; 204 if there is none."""
    return _build_entry_response(notes.get(name))


def _build_entry_response(value: str | None) -> Response[bytes]:
    if value is None:
        return Response(b"", status_code=204)
    return Response(value.encode(), status_code=200, media_type="text/plain")


@get("/identity", status_code=204)
async def check_identity(request: Request[Any, Any, Any]) -> None:
    """Authenticates the credential of a request whose body an engine is still reading. Reads no body and checks no
    scope: the request itself is checked once it is complete.
    """
    await authenticate(request)


@get("/snapshot")
async def get_snapshot(
    published: NamedDependency[SnapshotChannel], epoch: FromQuery[str] = "", worker: FromQuery[int | None] = None
) -> Response[bytes]:
    """Returns the snapshot once it differs from the engine's, as a long poll; 204 if it does not change in time. Sends
    only the changes if the engine's epoch is known.
    """
    if worker is not None:
        published.record_worker_epoch(worker, epoch)
    snapshot = await published.wait_for_newer(epoch, LONG_POLL_SECONDS)
    if snapshot is None:
        return Response(b"", status_code=204)
    document = snapshot.to_json(published.find_recent(epoch))
    return Response(document, media_type="application/json", headers={EPOCH_HEADER: snapshot.epoch})


class PublishedVersion(msgspec.Struct, frozen=True):
    """A version of a prompt, as the engine reads it."""

    number: int
    id: str
    content: dict[str, Any]


@get("/prompts/{prompt_id:str}/{number:int}")
async def get_prompt_version(
    request: Request[Any, Any, Any], prompt_id: FromPath[str], number: FromPath[int]
) -> PublishedVersion:
    """Returns a version of an active prompt that is not in the snapshot. Versions never change, so engines cache them."""
    services: Services | None = request.app.state["services"]
    prompt_version = (
        await services.find_prompt_version(prompt_id, number) if services and number <= MAX_VERSION_NUMBER else None
    )
    if prompt_version is None:
        message = "there is no such version of an active prompt"
        raise NotFoundError(message)
    return PublishedVersion(prompt_version["number"], prompt_version["id"], prompt_version["content"]["content"])


@post("/trial-plans/{name:str}")
async def take_trial_plan(name: FromPath[str]) -> Response[bytes]:
    """Returns the plan of guardrail trials, once; 404 if there is none of this name."""
    plan = take_plan(name)
    if plan is None:
        message = "there is no such plan"
        raise NotFoundError(message)
    return Response(plan, status_code=201, media_type="application/json")


@get("/batch-passes/{name:str}", status_code=204)
async def check_batch_pass(name: FromPath[str]) -> None:
    """Returns 204 if this process has issued the pass and not revoked it; 404 otherwise."""
    if not is_valid_pass(name):
        message = "there is no such pass"
        raise NotFoundError(message)


routes = [
    Router(
        "/internal",
        route_handlers=[
            accept_metrics,
            put_node_entry,
            get_node_entry,
            check_identity,
            get_snapshot,
            get_prompt_version,
            take_trial_plan,
            check_batch_pass,
        ],
        guards=[engine_only],
        include_in_schema=False,
        request_max_body_size=MAX_PUSH_BYTES,
    )
]
