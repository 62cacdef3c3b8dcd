"""What the edge's engines ask and tell the control process; never reachable from the network."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from penstock.authorization import engine_only
from penstock.metrics import Figures
from penstock.node_store import Notes
from penstock.snapshot.build import Published

HOLD_SECONDS = 20.0
LARGEST_PUSH = 1024 * 1024
EPOCH_HEADER = "x-penstock-epoch"


@post("/metrics", status_code=204)
async def accept_metrics(request: Request[Any, Any, Any], figures: NamedDependency[Figures]) -> None:
    """Keep the figures of one worker."""
    figures.accept(await request.body())


class Note(msgspec.Struct):
    """What one worker tells the others."""

    name: str
    said: str


@post("/notes")
async def take_note(request: Request[Any, Any, Any], notes: NamedDependency[Notes]) -> Response[bytes]:
    """Keep it for them, and give what it takes the place of."""
    note = msgspec.json.decode(await request.body(), type=Note)
    return _told(notes.put(note.name, note.said))


@get("/notes")
async def give_note(name: FromQuery[str], notes: NamedDependency[Notes]) -> Response[bytes]:
    """Give what was said under a name; where nothing was, say that there is nothing."""
    return _told(notes.find(name))


def _told(said: str | None) -> Response[bytes]:
    if said is None:
        return Response(b"", status_code=204)
    return Response(said.encode(), status_code=200, media_type="text/plain")


@get("/snapshot")
async def give_snapshot(
    published: NamedDependency[Published], epoch: FromQuery[str] = "", worker: FromQuery[int | None] = None
) -> Response[bytes]:
    """Give the snapshot as soon as it is another than the one the engine has; what changed, where that is known."""
    if worker is not None:
        published.hear(worker, epoch)
    snapshot = await published.newer_than(epoch, HOLD_SECONDS)
    if snapshot is None:
        return Response(b"", status_code=204)
    document = snapshot.document(published.known(epoch))
    return Response(document, media_type="application/json", headers={EPOCH_HEADER: snapshot.epoch})


routes = [
    Router(
        "/internal",
        route_handlers=[accept_metrics, take_note, give_note, give_snapshot],
        guards=[engine_only],
        include_in_schema=False,
        request_max_body_size=LARGEST_PUSH,
    )
]
