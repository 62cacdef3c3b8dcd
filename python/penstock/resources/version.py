"""Says which release this is."""

from __future__ import annotations

import msgspec
from litestar import get

from penstock import INTERFACE, __version__
from penstock.caller import anyone


class Version(msgspec.Struct, frozen=True):
    """The release of the gateway, and the version of the interface that it speaks."""

    version: str
    interface: str


@get("/", guards=[anyone], sync_to_thread=False, summary="Version", tags=["Service"])
def version() -> Version:
    """Say which release of the gateway answers, and which version of the interface it speaks."""
    return Version(__version__, INTERFACE)


routes = [version]
