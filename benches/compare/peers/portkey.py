"""Portkey's open gateway from npm, with the server library that lets it stream."""

from __future__ import annotations

from benches.compare.peers import packages
from benches.compare.peers.peer import Peer, Stand

VERSION = "1.15.2"
# As published every streamed chat answers 500: newer releases of this library break it.
SERVER = "1.14.1"


class Portkey(Peer):
    """Told by headers where the provider is, as its callers do."""

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
