"""What every gateway in the comparison answers about itself."""

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
    """Why a peer cannot take part."""


@dataclass(frozen=True)
class Stand:
    """Where a gateway is put: its port, its provider and a folder of its own."""

    port: int
    provider: str
    """The address of the pretend provider, without a path."""
    folder: Path

    @property
    def provider_address(self) -> str:
        """Host and port alone."""
        return self.provider.removeprefix("http://")


class Peer:
    """A gateway: how it is installed, started and asked. A peer overrides what differs."""

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
        """Make it ready to start and return its version."""
        raise NotImplementedError

    def command(self, stand: Stand) -> list[str]:
        """Write what it needs into the folder and return the command that runs in front."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Variables on top of the bare ones."""
        return {}

    def path(self, *, streamed: bool) -> str:  # noqa: ARG002 - for those that override it
        return CHAT

    def headers(self, stand: Stand) -> dict[str, str]:  # noqa: ARG002 - peers differ in what they need
        return {"authorization": "Bearer sk-pretend"}

    def path_routed(self, config: str) -> str:  # noqa: ARG002 - as above
        """Where it is asked to go by one of its configs, if that is another place."""
        return self.path(streamed=False)

    def headers_routed(self, stand: Stand, config: str) -> dict[str, str]:  # noqa: ARG002 - as above
        """How it is asked to go by one of its configs, if that is another way."""
        return self.headers(stand)

    def save_configs(self, stand: Stand) -> None:
        """Give it more of its configs than it was started with, if it can have any."""

    def model(self, name: str) -> str:
        """The provider's model as this gateway's callers name it."""
        return name

    def written(self, stand: Stand) -> int | None:  # noqa: ARG002 - as above
        """How many requests it has recorded, where it writes records that can be counted."""
        return None


def run(*command: str | Path, cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Run an installer quietly; what it said last is the reason when it fails."""
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
