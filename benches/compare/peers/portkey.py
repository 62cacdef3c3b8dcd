"""Portkey's open-source gateway from npm, with a server library version that supports streaming."""

from __future__ import annotations

from benches.compare.peers import packages
from benches.compare.peers.peer import Peer, Stand

VERSION = "1.15.2"
# With newer releases of this library, every streamed chat returns 500.
SERVER = "1.14.1"


class Portkey(Peer):
    """Receives the provider's address in request headers."""

    name = "portkey"
    verbatim = False
    rounds_at_most = 3

    def install(self) -> str:
        dependencies = {"@portkey-ai/gateway": VERSION, "@hono/node-server": SERVER}
        self.modules = packages.node(self.cache, dependencies)
        return VERSION

    def command(self, stand: Stand) -> list[str]:
        script = self.modules / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        return ["node", str(script), f"--port={stand.port}", "--headless"]

    def environment(self) -> dict[str, str]:
        return {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}

    def headers(self, stand: Stand) -> dict[str, str]:
        return {
            **super().headers(stand),
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"{stand.provider}/v1",
        }
