"""Web console: the files that `make console` built, served from memory. Every address of a page returns the same
document, because the console reads the page from the address. It uses only the management API, with the session of the
user.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litestar import Request, Response, get
from litestar.response import Redirect

from penstock.authorization import allow_anyone
from penstock.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILD_FOLDER = Path(__file__).parents[1] / "console"
PREFIX = "/console"
ASSETS = "assets/"
# The document is the same for every page. The document refers to its files by relative paths. For each further segment
# in the address of a page, the paths need another `../`.
DOCUMENT_NAME, RELATIVE_PREFIX = "index.html", "./"
CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
# Cache headers. The names of assets contain a hash of their content, so they never change; the document may change.
IMMUTABLE, REVALIDATED = "public, max-age=31536000, immutable", "no-cache"


@cache
def load_build() -> Mapping[str, bytes]:
    """Returns the built files by name. The document is uncompressed, all others are compressed. Returns nothing if the
    console was not built.
    """
    if not BUILD_FOLDER.is_dir():
        return {}
    files = [path for path in BUILD_FOLDER.rglob("*") if path.is_file()]
    return {str(path.relative_to(BUILD_FOLDER)).removesuffix(".gz"): path.read_bytes() for path in files}


@get(["/", "/{rest:path}"], guards=[allow_anyone], include_in_schema=False, sync_to_thread=False)
def get_console(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Returns a file of the console, or its document for the address of a page."""
    # Litestar removes the slash at the end of `path`.
    path = request.scope["raw_path"].decode("ascii", "replace")
    if path == PREFIX:
        # The redirect is relative, because a proxy may serve the gateway below another path.
        return Redirect(path=f"{PREFIX.removeprefix('/')}/", headers=dict(SECURITY_HEADERS))
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
    return build_response(load_build(), path.removeprefix(f"{PREFIX}/"), accepts_gzip=accepts_gzip)


def build_response(build: Mapping[str, bytes], name: str, *, accepts_gzip: bool) -> Response[bytes]:
    """Returns the file with this name below the console. Raises NotFoundError if there is none, or no build."""
    if DOCUMENT_NAME not in build:
        message = "the console is not part of this build; hint: make console"
        raise NotFoundError(message)
    if name in build and name != DOCUMENT_NAME:
        return _file_response(name, build[name], accepts_gzip=accepts_gzip)
    if name.startswith(ASSETS):
        message = f"the console has no file {name[:80]!r}; hint: load the page again"
        raise NotFoundError(message)
    document = build[DOCUMENT_NAME].replace(f'"{RELATIVE_PREFIX}'.encode(), f'"{_steps_up(name)}'.encode())
    return _response(document, DOCUMENT_NAME, {"cache-control": "no-store"})


def _steps_up(name: str) -> str:
    """Returns the relative path from the address of a page up to the console."""
    return "../" * name.count("/") or RELATIVE_PREFIX


def _file_response(name: str, compressed: bytes, *, accepts_gzip: bool) -> Response[bytes]:
    caching = {"cache-control": IMMUTABLE if name.startswith(ASSETS) else REVALIDATED, "vary": "accept-encoding"}
    if accepts_gzip:
        return _response(compressed, name, {**caching, "content-encoding": "gzip"})
    return _response(gzip.decompress(compressed), name, caching)


def _response(content: bytes, name: str, headers: Mapping[str, str]) -> Response[bytes]:
    return Response(content, media_type=CONTENT_TYPES[Path(name).suffix], headers={**SECURITY_HEADERS, **headers})


routes = [get_console]
