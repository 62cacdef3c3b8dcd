"""Baseline without a gateway: the load client sends its requests directly to the mock provider."""

from __future__ import annotations

from benches.compare.peers.peer import Peer


class Direct(Peer):
    """Baseline from which the added latency of the gateways is computed."""

    name = "direct"
    has_process = False

    def install(self) -> str:
        return ""
