"""Interface of a compared gateway: installation, start command, and how requests to it look."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[3]
CACHE_DIR = REPOSITORY_ROOT / ".cache" / "peers"
CHAT_PATH = "/v1/chat/completions"
INSTALL_TIMEOUT_SECONDS = 900
MAX_REASON_LENGTH = 300


class PeerUnavailable(Exception):  # noqa: N818 - the name describes the state of the peer
    """Raised if a peer cannot be measured; the message is the reason."""


@dataclass(frozen=True)
class LaunchContext:
    """Everything a gateway needs to start: its port, its provider and its own folder."""

    port: int
    provider_url: str
    """Address of the mock provider, without a path."""
    folder: Path

    @property
    def provider_address(self) -> str:
        """Host and port of the provider, without the scheme."""
        return self.provider_url.removeprefix("http://")


class Peer:
    """A compared gateway: how it is installed, started and called. Subclasses override what differs."""

    name = ""
    has_process = True
    """True if the peer is a process to start and to measure; false for requests sent directly to the provider."""
    is_verbatim = True
    """True if the peer forwards the provider's events unchanged, so that they can be counted exactly."""
    timeout_seconds = 30.0
    """Time limit for each response of the peer."""
    max_rounds = 100
    """Maximum number of rounds in which the peer is measured. Lower for peers that no target refers to."""

    @property
    def cache_dir(self) -> Path:
        return CACHE_DIR / self.name

    def install(self) -> str:
        """Installs the gateway and returns its version."""
        raise NotImplementedError

    def prepare_command(self, launch: LaunchContext) -> list[str]:
        """Writes the configuration into the folder and returns the command that runs in the foreground."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Returns variables that are added to the minimal environment."""
        return {}

    def chat_path(self, *, streamed: bool) -> str:  # noqa: ARG002 - subclasses use it
        return CHAT_PATH

    def request_headers(self, launch: LaunchContext) -> dict[str, str]:  # noqa: ARG002 - other peers use it
        return {"authorization": "Bearer sk-pretend"}

    def chat_path_for_config(self, config: str) -> str:  # noqa: ARG002 - as above
        """Returns the path that selects one of the gateway's configs, if the path differs."""
        return self.chat_path(streamed=False)

    def headers_for_config(self, launch: LaunchContext, config: str) -> dict[str, str]:  # noqa: ARG002 - as above
        """Returns the headers that select one of the gateway's configs, if the headers differ."""
        return self.request_headers(launch)

    def save_configs(self, launch: LaunchContext) -> None:
        """Adds configs to the running gateway, if it supports that."""

    def model_name(self, name: str) -> str:
        """Returns the provider's model name as clients of this gateway send it."""
        return name

    def count_records(self, launch: LaunchContext) -> int | None:  # noqa: ARG002 - as above
        """Returns the number of recorded requests, or `None` if the gateway writes no records that can be counted."""
        return None


def run_command(*command: str | Path, cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output. Raises `PeerUnavailable` with the last output lines if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **(more or {})},
            timeout=INSTALL_TIMEOUT_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"`{command[0]}`: {error}"
        raise PeerUnavailable(message) from error
    if done.returncode:
        output_lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        message = f"`{Path(command[0]).name}` failed: {' / '.join(output_lines[-2:])[:MAX_REASON_LENGTH]}"
        raise PeerUnavailable(message)
    return done.stdout + done.stderr
