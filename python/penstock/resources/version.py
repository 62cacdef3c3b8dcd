"""Route that returns the release of the gateway and the version of its API."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from msgspec import Meta

from penstock import MANAGEMENT_API_VERSION, __version__
from penstock.authorization import allow_anyone


class Version(msgspec.Struct, frozen=True):
    """Release of the gateway, and the API version that it implements."""

    version: Annotated[str, Meta(description="release of the gateway")]
    interface: Annotated[str, Meta(description="version of the API that this release implements")]


@get("/", guards=[allow_anyone], sync_to_thread=False, summary="Version", tags=["Service"])
def get_version() -> Version:
    """Returns the release of the gateway and the API version that it implements."""
    return Version(__version__, MANAGEMENT_API_VERSION)


routes = [get_version]
