"""The description of the management API: OpenAPI 3.1 as JSON, and a page that reads it without a CDN."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from litestar import Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import License, Server
from litestar.serialization import encode_json

from penstock import MANAGEMENT_API_VERSION
from penstock.authorization import allow_anyone
from penstock.kit.openapi import build_openapi

if TYPE_CHECKING:
    from litestar import Request

# The page is one file with its script inside; it loads nothing but the description beside it.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

routes: list[Any] = []


class SchemaPagePlugin(OpenAPIRenderPlugin):
    """The page at /schema."""

    def __init__(self) -> None:
        """Read the page when it is asked for, not at start."""
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the framework's
        """Give the page as it is: it fetches the description itself."""
        return Path(__file__).with_suffix(".html").read_bytes()


class SchemaJsonPlugin(JsonRenderPlugin):
    """The description at /schema/openapi.json."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the framework's
        """Give what the framework knows with what we add."""
        return encode_json(build_openapi(request.app))


def build_openapi_config() -> OpenAPIConfig:
    """Say what the description is about and where it is served."""
    return OpenAPIConfig(
        title="Penstock management API",
        version=MANAGEMENT_API_VERSION,
        description="Everything about the gateway that is not a call to a model provider.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        servers=[Server(url="/")],
        use_handler_docstrings=True,
        render_plugins=[SchemaPagePlugin(), SchemaJsonPlugin()],
        openapi_router=Router(
            "/schema",
            route_handlers=[],
            guards=[allow_anyone],
            include_in_schema=False,
            response_headers={"content-security-policy": CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"},
        ),
    )
