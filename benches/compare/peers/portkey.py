"""Portkey's open-source gateway from npm, with a server library version that supports streaming."""

from __future__ import annotations

import json

from benches.compare import guarded
from benches.compare.peers import packages
from benches.compare.peers.peer import LaunchContext, Peer

GATEWAY_VERSION = "1.15.2"
# With newer releases of this library, every streamed chat returns 500.
NODE_SERVER_VERSION = "1.14.1"


class Portkey(Peer):
    """Receives the provider's address in request headers."""

    name = "portkey"
    is_verbatim = False
    max_rounds = 3

    def install(self) -> str:
        dependencies = {"@portkey-ai/gateway": GATEWAY_VERSION, "@hono/node-server": NODE_SERVER_VERSION}
        self.modules = packages.install_npm_packages(self.cache_dir, dependencies)
        return GATEWAY_VERSION

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        script = self.modules / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        return ["node", str(script), f"--port={launch.port}", "--headless"]

    def environment(self) -> dict[str, str]:
        return {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}

    def request_headers(self, launch: LaunchContext) -> dict[str, str]:
        return {
            **super().request_headers(launch),
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"{launch.provider_url}/v1",
        }

    def headers_for_config(self, launch: LaunchContext, config: str) -> dict[str, str]:
        target = {"provider": "openai", "custom_host": f"{launch.provider_url}/v1", "api_key": "sk-pretend"}
        document = guarded.make_config(config, target)
        return {**super().request_headers(launch), "x-portkey-config": json.dumps(document)}
