"""Says which release this is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from msgspec import Meta

from penstock import MANAGEMENT_API_VERSION, __version__
from penstock.authorization import allow_anyone


class Version(msgspec.Struct, frozen=True):
    """The release of the gateway, and the version of the interface that it speaks."""

    version: Annotated[str, Meta(description="release of the gateway")]
    interface: Annotated[str, Meta(description="version of the interface that it speaks")]


@get("/", guards=[allow_anyone], sync_to_thread=False, summary="Version", tags=["Service"])
def get_version() -> Version:
    """Say which release of the gateway answers, and which version of the interface it speaks."""
    return Version(__version__, MANAGEMENT_API_VERSION)


routes = [get_version]
