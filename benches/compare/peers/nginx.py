"""nginx, the plain reverse proxy. The targets are multiples of its values."""

from __future__ import annotations

import os

from benches.compare.peers import packages
from benches.compare.peers.peer import CHAT_PATH, LaunchContext, Peer, run_command

CONFIG_TEMPLATE = """
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_max_body_size 100m;
    client_body_buffer_size 2m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    proxy_cache_path {folder}/kept keys_zone=kept:10m;
    upstream provider {{
        server {provider};
        keepalive 1024;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_read_timeout 300s;
        location / {{ proxy_pass http://provider; }}
        location /streamed/ {{ proxy_buffering off; proxy_pass http://provider/; }}
        location /kept/ {{
            proxy_cache kept;
            proxy_cache_methods POST;
            proxy_cache_key "$http_authorization $request_uri $request_body";
            proxy_cache_valid 200 1h;
            add_header x-gateway-cache-status $upstream_cache_status;
            proxy_pass http://provider/;
        }}
    }}
}}
"""


class Nginx(Peer):
    """Buffers complete responses, where nginx is fastest; does not buffer streams."""

    name = "nginx"

    def install(self) -> str:
        self.program = packages.install_debian_program("nginx", "nginx")
        return run_command(self.program, "-v").partition("/")[2].strip()

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        config = launch.folder / "nginx.conf"
        config.write_text(
            CONFIG_TEMPLATE.format(
                # Without this directive, workers started by root run as a user that may not read the folder.
                user="" if os.geteuid() else "user root;",
                folder=launch.folder,
                provider=launch.provider_address,
                port=launch.port,
            )
        )
        log = str(launch.folder / "error.log")
        return [self.program, "-e", log, "-c", str(config), "-g", "daemon off;"]

    def chat_path(self, *, streamed: bool) -> str:
        return f"/streamed{CHAT_PATH}" if streamed else CHAT_PATH

    def chat_path_for_config(self, config: str) -> str:
        return f"/{config}{CHAT_PATH}"
