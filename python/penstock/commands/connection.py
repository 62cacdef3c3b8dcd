"""Connection options of the CLI commands: the URL of the gateway and the API key. Opens the client for them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock import settings as settings_module

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock.remote import ManagementClient
    from penstock.settings import Settings

_URL_OPTION = click.option(
    "--url",
    envvar="PENSTOCK_URL",
    default="http://127.0.0.1:8787",
    show_default=True,
    show_envvar=True,
    help="URL of the gateway.",
)
_API_KEY_OPTION = click.option(
    "--api-key",
    envvar=["PENSTOCK_ADMIN_KEY", "PENSTOCK_API_KEY"],
    required=True,
    show_envvar=True,
    help="API key; prefer PENSTOCK_ADMIN_KEY, because other users of this machine can see command lines.",
)


def with_connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options `--url` and `--api-key` to a command."""
    return _URL_OPTION(_API_KEY_OPTION(command))


@contextmanager
def open_remote(url: str, api_key: str) -> Generator[ManagementClient]:
    """Opens a client for the management API of a gateway."""
    # Imported here: the HTTP client takes longer to load than most commands take to run.
    from penstock.remote import ManagementClient  # noqa: PLC0415 - loads slowly

    remote = ManagementClient(url, api_key)
    try:
        yield remote
    finally:
        remote.close()


def load_local_settings(config: str | None) -> Settings:
    """Reads the settings of the gateway on this machine, for commands that work on its files."""
    return settings_module.load_settings(settings_module.find_settings_file(config, os.environ), os.environ)


def quote_path_segment(text: str) -> str:
    """Percent-encodes an id or slug as one segment of a path."""
    from penstock import remote  # noqa: PLC0415 - loads slowly

    return remote.quote_path_segment(text)
