"""HAProxy, the plain proxy with the lowest overhead."""

from __future__ import annotations

from benches.compare.peers import packages
from benches.compare.peers.peer import LaunchContext, Peer, run_command

# Without http-no-delay, half of all chunks arrive 80 ms late.
CONFIG_TEMPLATE = """
global
    maxconn 8192
    nbthread 1
defaults
    mode http
    option http-no-delay
    option http-keep-alive
    http-reuse always
    timeout connect 5s
    timeout client 300s
    timeout server 300s
frontend callers
    bind 127.0.0.1:{port} backlog 4096
    default_backend provider
backend provider
    server provider {provider}
"""


class Haproxy(Peer):
    """Runs one thread and reuses connections to the provider."""

    name = "haproxy"

    def install(self) -> str:
        self.program = packages.install_debian_program("haproxy", "haproxy")
        return run_command(self.program, "-v").split()[2].partition("-")[0]

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        config = launch.folder / "haproxy.cfg"
        config.write_text(CONFIG_TEMPLATE.format(port=launch.port, provider=launch.provider_address))
        return [self.program, "-db", "-f", str(config)]
