"""The `penstock` command. The only place that reads settings from the environment.

What files name as `${NAME}` is read in `snapshot` and `administer`, the folder of a session in `listen`, and `engine` says
what the allocator is to know.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock import __version__, admin_commands, process
from penstock import settings as settings_module
from penstock.errors import PenstockError, SettingsError

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.snapshot.build import PreparedStore


class ErrorReportingGroup(click.Group):
    """Turns the errors of ours into one message and exit status 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            click.echo(f"penstock: {error}", err=True)
            sys.exit(1)


@click.group(
    cls=ErrorReportingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
def main() -> None:
    """Penstock: an AI gateway."""


@main.command()
@click.option(
    "--config", metavar="FILE", help="Settings file. [env: PENSTOCK_CONFIG; default: ./penstock.toml if there]"
)
@click.option("--host", help="IP address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on. [default: 8787]")
@click.option("--mock", metavar="PROGRAM", help="Run this pretend provider too, and print lines to try.")
@click.option("--migrate", is_flag=True, default=None, help="Bring the store's tables up to date first.")
def serve(config: str | None, host: str | None, port: int | None, mock: str | None, migrate: bool | None) -> None:
    """Run the gateway."""
    process.limit_malloc_arenas()
    settings = load_settings(config, {"server.host": host, "server.port": port, "store.migrate": migrate})
    logging.basicConfig(level=settings.log.level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: the other commands need neither Granian nor an event loop.
    from penstock import serve as server
    from penstock.listen import check_open_host
    from penstock.pricing import engine_export
    from penstock.snapshot.build import Snapshot, build_valid_snapshot

    found = prepare_store(settings)
    stored, admin_key = found.stored, found.admin_key
    if found.master_key:
        settings = settings.with_master_key(found.master_key)
    # Read here, so that every process has it. What finding the snapshot good takes, 2 MB, they need not inherit.
    engine_export.export_public_list()
    good = process.run_in_child(lambda: msgspec.msgpack.encode(build_valid_snapshot(settings, stored)))
    snapshot = msgspec.msgpack.decode(good, type=Snapshot)
    check_open_host(settings, snapshot.keys)
    if admin_key:
        print_admin_key(admin_key)
    with ExitStack() as stack:
        if mock:
            from penstock import mock as pretend

            url = stack.enter_context(pretend.run_mock_provider(mock))
            settings = msgspec.structs.replace(settings, mock=settings_module.Mock(host=url))
        status = server.serve(
            settings, snapshot, lambda ready: print_startup_message(ready, snapshot.keys, tries=bool(mock))
        )
    sys.exit(status)


@main.command()
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@click.option("--email", help="E-mail address of the organisation's owner.")
def init(config: str | None, email: str | None) -> None:
    """Make the store with its first organisation, and print the admin key once."""
    settings = load_settings(config, {})
    from penstock.jobs.prepare import initialise_store

    admin_key = initialise_store(settings, email)
    if admin_key:
        print_admin_key(admin_key)
    else:
        click.echo("the store is ready; it has an admin key already, or it was given")


@main.command()
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
def migrate(config: str | None) -> None:
    """Bring the store's tables up to date."""
    settings = load_settings(config, {})
    from penstock.jobs.prepare import migrate_store

    before, after = migrate_store(settings)
    click.echo(f"the store is at revision {after}" + ("" if before == after else f", it was at {before or 'none'}"))


@main.command()
@click.argument("file", required=False)
def check(file: str | None) -> None:
    """Say whether a settings file can be used, or a routing config (a file that ends in .json), and if not, why.

    Without FILE it is the settings file that the gateway would read: PENSTOCK_CONFIG, or ./penstock.toml.
    """
    file = file or os.environ.get("PENSTOCK_CONFIG") or settings_module.DEFAULT_SETTINGS_FILE
    if file.endswith(".json"):
        check_config(file)
        return
    from penstock.pricing import price_book
    from penstock.snapshot.build import build_valid_snapshot

    snapshot = build_valid_snapshot(load_settings(file, {}))
    price_book.read_price_rows(file)
    click.echo(f"{file} is good: {snapshot.keys} keys, snapshot {snapshot.epoch[:12]}")


def check_config(file: str) -> None:
    """Say whether a routing config can be saved, and if not, every problem with its place."""
    from penstock import engine

    try:
        engine.check("config", Path(file).read_bytes(), load_settings(None, {}).routing.target_limits)
    except OSError as error:
        message = f"cannot read {file!r}: {error.strerror}"
        raise SettingsError(message) from None
    except engine.EngineError as error:
        told = "\n".join(f"  {problem['path']} {problem['message']}" for problem in error.problems)
        message = f"{file!r} cannot be used:\n{told}"
        raise SettingsError(message) from None
    click.echo(f"{file} is good")


@main.command()
def openapi() -> None:
    """Print the description of the management API."""
    from penstock.app import openapi_json

    click.echo(msgspec.json.format(openapi_json(), indent=2))


@main.command()
def settings() -> None:
    """Print the reference of all settings."""
    from penstock.settings.reference import render_markdown

    click.echo(render_markdown())


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"penstock {__version__}")


for command in admin_commands.COMMANDS:
    main.add_command(command)


def prepare_store(settings: Settings) -> PreparedStore:
    """See to the store in a process of its own: what that takes in memory is gone with it."""
    from penstock.snapshot.build import PreparedStore

    if settings.store_url is None:
        return PreparedStore()

    def run_preparation() -> bytes:
        from penstock.jobs.prepare import prepare_for_start

        return prepare_for_start(settings)

    return msgspec.msgpack.decode(process.run_in_child(run_preparation), type=PreparedStore)


def print_admin_key(admin_key: str) -> None:
    """Print a key that nobody can be told again."""
    click.echo(f"admin key (it is shown this once): {admin_key}")


def load_settings(config: str | None, options: dict[str, object]) -> Settings:
    """Read the settings from the options, the environment and the file."""
    file = settings_module.find_settings_file(config, os.environ)
    return settings_module.load_settings(file, os.environ, options)


def print_startup_message(ready: Settings, keys: int, *, tries: bool) -> None:
    """Say that the gateway answers, and what to try."""
    host = f"[{ready.bind_address}]" if ":" in ready.bind_address else ready.bind_address
    url = f"http://{host}:{ready.server.port}"
    click.echo(f"penstock {__version__} listens on {url}")
    if tries:
        from penstock import examples

        click.echo("\n".join(["", *examples.format_examples(url, key_needed=bool(keys) or ready.require_key), ""]))
    sys.stdout.flush()
