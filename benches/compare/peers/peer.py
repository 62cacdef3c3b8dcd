"""Interface of a compared gateway: installation, start command, and how requests to it look."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "peers"
CHAT = "/v1/chat/completions"
INSTALL_SECONDS = 900
REASON_LENGTH = 300


class Unavailable(Exception):  # noqa: N818 - says what the peer is
    """Raised if a peer cannot be measured; the message is the reason."""


@dataclass(frozen=True)
class Stand:
    """Everything a gateway needs to start: its port, its provider and its own folder."""

    port: int
    provider: str
    """The address of the pretend provider, without a path."""
    folder: Path

    @property
    def provider_address(self) -> str:
        """Host and port of the provider, without the scheme."""
        return self.provider.removeprefix("http://")


class Peer:
    """A compared gateway: how it is installed, started and called. Subclasses override what differs."""

    name = ""
    process = True
    """Whether there is something to start and to measure (not so when asking directly)."""
    verbatim = True
    """Whether the provider's events pass as they are, so that they can be counted exactly."""
    patience = 30.0
    """Seconds until it must have answered."""
    rounds_at_most = 100
    """Peers that no target names are measured in fewer rounds."""

    @property
    def cache(self) -> Path:
        return CACHE / self.name

    def install(self) -> str:
        """Installs the gateway and returns its version."""
        raise NotImplementedError

    def command(self, stand: Stand) -> list[str]:
        """Writes the configuration into the folder and returns the command that runs in the foreground."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Returns variables that are added to the minimal environment."""
        return {}

    def path(self, *, streamed: bool) -> str:  # noqa: ARG002 - for those that override it
        return CHAT

    def headers(self, stand: Stand) -> dict[str, str]:  # noqa: ARG002 - peers differ in what they need
        return {"authorization": "Bearer sk-pretend"}

    def path_routed(self, config: str) -> str:  # noqa: ARG002 - as above
        """Returns the path that selects one of the gateway's configs, if the path differs."""
        return self.path(streamed=False)

    def headers_routed(self, stand: Stand, config: str) -> dict[str, str]:  # noqa: ARG002 - as above
        """Returns the headers that select one of the gateway's configs, if the headers differ."""
        return self.headers(stand)

    def save_configs(self, stand: Stand) -> None:
        """Adds configs to the running gateway, if it supports that."""

    def model(self, name: str) -> str:
        """Returns the provider's model name as clients of this gateway send it."""
        return name

    def written(self, stand: Stand) -> int | None:  # noqa: ARG002 - as above
        """Returns the number of recorded requests, or `None` if the gateway writes no records that can be counted."""
        return None


def run(*command: str | Path, cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output. Raises `PeerUnavailable` with the last output lines if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **(more or {})},
            timeout=INSTALL_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"`{command[0]}`: {error}"
        raise Unavailable(message) from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        message = f"`{Path(command[0]).name}` failed: {' / '.join(said[-2:])[:REASON_LENGTH]}"
        raise Unavailable(message)
    return done.stdout + done.stderr
