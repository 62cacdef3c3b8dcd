"""No gateway at all: the load client asks the pretend provider."""

from __future__ import annotations

from benches.compare.peers.peer import Peer


class Direct(Peer):
    """What the others' added latency is counted from."""

    name = "direct"
    process = False

    def install(self) -> str:
        return ""
