"""Bifrost, built from its Go module. Unavailable if Go is not installed or the module cannot be downloaded."""

from __future__ import annotations

import json
import shutil

from benches.compare.peers.peer import LaunchContext, Peer, PeerUnavailable, run_command

GO_MODULE = "github.com/maximhq/bifrost/transports/bifrost-http@latest"


class Bifrost(Peer):
    """Configured by its file only, without a database or a request log."""

    name = "bifrost"
    is_verbatim = False
    max_rounds = 3

    def install(self) -> str:
        self.program = self.cache_dir / "bin" / "bifrost-http"
        if not self.program.is_file():
            if not shutil.which("go"):
                message = "`go` is missing; install Go to measure this peer"
                raise PeerUnavailable(message)
            run_command("go", "install", GO_MODULE, more={"GOBIN": str(self.program.parent)})
        lines = run_command("go", "version", "-m", self.program).splitlines()
        return next((line.split()[2] for line in lines if line.strip().startswith("mod")), "?")

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        key = {"name": "pretend", "value": "sk-pretend", "models": ["*"], "weight": 1.0}
        provider = {"keys": [key], "network_config": {"base_url": launch.provider_url}}
        config = {
            "client": {"enable_logging": False, "drop_excess_requests": False},
            "providers": {"openai": provider},
            "config_store": {"enabled": False},
            "logs_store": {"enabled": False},
        }
        (launch.folder / "config.json").write_text(json.dumps(config))
        listen_flags = ["-host", "127.0.0.1", "-port", str(launch.port), "-app-dir", str(launch.folder)]
        return [str(self.program), *listen_flags, "-log-level", "error"]

    def environment(self) -> dict[str, str]:
        return {"GOMAXPROCS": "1"}

    def model_name(self, name: str) -> str:
        return f"openai/{name}"
