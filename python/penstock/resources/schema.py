"""The OpenAPI 3.1 document of the management API as JSON, and a page that displays it without a CDN."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from litestar import MediaType, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import License, Server
from litestar.serialization import encode_json

from penstock import MANAGEMENT_API_VERSION
from penstock.authorization import allow_anyone
from penstock.kit.openapi import build_openapi

if TYPE_CHECKING:
    from litestar import Request

# The page is one file with an inline script; it loads only the OpenAPI document.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

routes: list[Any] = []


class SchemaPagePlugin(OpenAPIRenderPlugin):
    """Renders the page at /schema."""

    def __init__(self) -> None:
        """Sets the path of the page. Each request reads the file."""
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the framework's
        """Returns the static page, which fetches the OpenAPI document itself."""
        return Path(__file__).with_suffix(".html").read_bytes()


class SchemaJsonPlugin(JsonRenderPlugin):
    """Renders the OpenAPI document at /schema/openapi.json."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the framework's
        """Returns the framework's OpenAPI document with the gateway's additions."""
        return encode_json(build_openapi(request.app))


class DataPlaneJsonPlugin(OpenAPIRenderPlugin):
    """Renders the OpenAPI document of the data plane at /schema/data-plane.json."""

    def __init__(self) -> None:
        """Sets the path of the document."""
        super().__init__(path="/data-plane.json", media_type=MediaType.JSON)

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the framework's
        """Returns the generated document."""
        return Path(__file__).with_name("schema_data_plane.json").read_bytes()


def build_openapi_config() -> OpenAPIConfig:
    """Returns the configuration of the OpenAPI document: its title, version and routes."""
    return OpenAPIConfig(
        title="Penstock management API",
        version=MANAGEMENT_API_VERSION,
        description="All functions of the gateway other than requests to model providers.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        servers=[Server(url="/")],
        use_handler_docstrings=True,
        render_plugins=[SchemaPagePlugin(), SchemaJsonPlugin(), DataPlaneJsonPlugin()],
        openapi_router=Router(
            "/schema",
            route_handlers=[],
            guards=[allow_anyone],
            include_in_schema=False,
            response_headers={"content-security-policy": CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"},
        ),
    )
