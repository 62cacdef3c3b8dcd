"""The `penstock` command. Except for the modules below, only this one reads the environment.

`commands.connection` reads them for other commands. `snapshot.build` and `commands.state` read the `${NAME}` variables
that files refer to, and `commands.imports` reads the salt key from the variable that an option names. `listen` reads
the folder of the session, and `engine` sets the options of the memory allocator.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock import __version__, process, process_log
from penstock import settings as settings_module
from penstock.commands import analytics, imports, limits, logs, operations, prompts, rerate, resources, state
from penstock.commands.terminal_output import JSON_OPTION, print_json, print_result
from penstock.errors import PenstockError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import Settings
    from penstock.snapshot.build import PreparedStore

# Longest time in seconds that a command waits for a gateway or a database.
MAX_WAIT_SECONDS = 3600


class ErrorReportingGroup(click.Group):
    """Click group that prints a `PenstockError` as one message and exits with status 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            click.echo(f"penstock: {error}", err=True)
            sys.exit(1)


class SecondsRange(click.FloatRange):
    """A range of seconds that rejects NaN. Click's comparisons accept NaN, and a wait with it as its limit never ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """Returns the number of seconds. Fails if the value is no number, or outside the range."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number", param, ctx)
        return seconds


def describe_version() -> str:
    """Returns the version, with the commit that a wheel was built from."""
    commit = read_commit()
    return f"penstock {__version__}" + (f" ({commit})" if commit else "")


def read_commit() -> str:
    """Returns the commit that this wheel was built from; an empty string in a checkout."""
    file = Path(__file__).with_name("bin") / "commit"
    return file.read_text(encoding="ascii").strip() if file.exists() else ""


@click.group(
    cls=ErrorReportingGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(message=describe_version(), version=__version__)
def main() -> None:
    """Penstock: an AI gateway."""


@main.command(epilog="Example: penstock serve --mock")
@click.option(
    "--config", metavar="FILE", help="Settings file. [env: PENSTOCK_CONFIG; default: ./penstock.toml if there]"
)
@click.option("--host", help="IP address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on. [default: 8787]")
@click.option(
    "--mock",
    metavar="[PROGRAM]",
    is_flag=False,
    flag_value="",
    help="Run the mock provider of the wheel too, or this program, and print example commands.",
)
@click.option(
    "--mock-port",
    type=click.IntRange(0, 65535),
    help="Port of the mock provider, on 127.0.0.1; 0: any. [default: 8788, or any if that is in use]",
)
@click.option("--migrate", is_flag=True, default=None, help="Migrate the store's tables first.")
@click.option("--no-store", is_flag=True, help="Use the settings file alone: no store, no console, no management API.")
def serve(  # noqa: PLR0913, PLR0917 - one parameter for each option
    config: str | None,
    host: str | None,
    port: int | None,
    mock: str | None,
    mock_port: int | None,
    migrate: bool | None,
    no_store: bool,
) -> None:
    """Run the gateway.

    Without a settings file, a new store is created in ./penstock-data, and its admin key is printed once.
    """
    if mock_port is not None and mock is None:
        message = "--mock-port needs --mock"
        raise click.UsageError(message)
    process.tune_memory_for_start()
    values = {"server.host": host, "server.port": port, "store.migrate": migrate}
    settings = load_settings(config, {**values, "store.enabled": False if no_store else None})
    process_log.configure(settings.log)
    # Imported here, because the other commands do not need them.
    from penstock.engine_build import check_engine_build
    from penstock.guardrails.default_models import register_checks
    from penstock.listen import check_open_host, check_ports_are_free
    from penstock.pricing import engine_export
    from penstock.snapshot.build import Snapshot, build_valid_snapshot, find_missing_providers

    check_engine_build()
    # Checked before the store is created: its admin key is printed only once, so a start that fails afterwards would
    # lose it.
    check_ports_are_free(settings)
    # Done before the fork, because all processes compile guardrails.
    register_checks(settings)
    await_preparation = start_preparation(settings, with_demo=mock is not None)
    engine_export.start_public_list()
    # Imported here, while the two child processes prepare the store and load the public list.
    from penstock import serve as server

    store = await_preparation()
    if store.master_key:
        settings = settings.with_master_key(store.master_key)
    # The public list is loaded before the fork, so that all processes share its memory. The snapshot is built and
    # checked in a separate process, whose 2 MB are then freed.
    engine_export.export_public_list()
    good = process.run_in_child(
        lambda: msgspec.msgpack.encode(build_valid_snapshot(settings, store.stored)), "building the snapshot"
    )
    snapshot = msgspec.msgpack.decode(good, type=Snapshot)
    check_open_host(settings, snapshot.keys)
    if settings.store_url is None:
        for problem in find_missing_providers(settings):
            logging.getLogger("penstock").warning("%s: %s", settings.file, problem)
    if store.admin_key:
        print_admin_key(store.admin_key)
    with ExitStack() as stack:
        if mock is not None:
            from penstock import mock as pretend

            url = stack.enter_context(pretend.run_mock_provider(mock or str(pretend.BUNDLED_PROGRAM), mock_port))
            settings = msgspec.structs.replace(settings, mock=msgspec.structs.replace(settings.mock, host=url))

        def announce_start(ready: Settings) -> None:
            print_startup_message(ready, store, snapshot.keys, tries=mock is not None)
            process.notify_service_manager(os.environ.get("NOTIFY_SOCKET"))

        status = server.serve(settings, snapshot, announce_start)
    sys.exit(status)


@main.command(epilog="Example: penstock init --email ann@example.com")
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@click.option("--email", help="E-mail address of the organisation's owner.")
@JSON_OPTION
def init(config: str | None, email: str | None, *, as_json: bool) -> None:
    """Create the store with its first organisation, and print the admin key once."""
    settings = load_settings(config, {})
    from penstock.jobs.prepare import initialise_store

    admin_key = initialise_store(settings, email)
    known = "the store is ready; its admin key was configured, or was printed when the store was created"
    print_admin_key(admin_key, known, as_json=as_json)


@main.command(epilog="Example: penstock migrate --wait 120")
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@click.option(
    "--wait",
    type=SecondsRange(0, MAX_WAIT_SECONDS),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for a database that does not answer. [default: 0]",
)
@JSON_OPTION
def migrate(config: str | None, wait: float, *, as_json: bool) -> None:
    """Migrate the store's tables to the current revision."""
    settings = load_settings(config, {})
    from penstock.jobs.prepare import migrate_store

    before, after = migrate_store(settings, wait_seconds=wait)
    text = f"the store is at revision {after}" + ("" if before == after else f", it was at {before or 'none'}")
    print_result(text, {"revision": after, "previous_revision": before}, as_json=as_json)


@main.command(epilog="Example: penstock health --url http://127.0.0.1:8787")
@click.option(
    "--url",
    envvar="PENSTOCK_URL",
    metavar="URL",
    help="URL of the gateway. [env: PENSTOCK_URL; default: the address that the settings name]",
)
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@click.option(
    "--timeout",
    type=SecondsRange(0.1, MAX_WAIT_SECONDS),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the whole check.",
)
@click.option("--certificate", metavar="FILE", help="Accept only this certificate (PEM), whatever name it is for.")
@JSON_OPTION
def health(url: str | None, config: str | None, timeout: float, certificate: str | None, as_json: bool) -> None:
    """Report if the gateway is ready for requests; the exit status is 0 if it is, and 1 if not."""
    from penstock import health_check

    address, own_certificate = (url, None) if url else find_gateway_url(config)
    result = health_check.check_health(address, timeout, certificate or own_certificate)
    if as_json:
        print_json({"ready": result.is_ready, "message": result.message})
    else:
        click.echo(result.message, err=not result.is_ready)
    sys.exit(0 if result.is_ready else 1)


def find_gateway_url(config: str | None) -> tuple[str, str | None]:
    """Returns the local address of the gateway that these settings describe, and the file of its certificate, if it has
    one.
    """
    try:
        settings = load_settings(config, {})
    except SettingsError:
        # A running gateway continues while its settings file has errors, so it is still checked.
        settings = settings_module.load_settings(None, os.environ)
    return local_url(settings), settings.server.tls_certificate_file if settings.server.has_tls else None


@main.command(epilog="Example: penstock check penstock.toml")
@click.argument("file", required=False)
@JSON_OPTION
def check(file: str | None, *, as_json: bool) -> None:
    """Validate a settings file, or a routing config (a file that ends in .json), and report all errors.

    Without FILE, validate the settings that the gateway would read: PENSTOCK_CONFIG or ./penstock.toml, if there is
    one, and the environment. Rejects everything that `penstock serve` would reject; nothing is created and no other
    machine is asked.
    """
    default = settings_module.DEFAULT_SETTINGS_FILE
    file = file or os.environ.get("PENSTOCK_CONFIG") or (default if Path(default).exists() else None)
    if file and file.endswith(".json"):
        check_config(file)
        print_result(f"{file} is good", {"file": file, "is_good": True}, as_json=as_json)
        return
    from penstock.jobs.prepare import check_store
    from penstock.listen import check_open_host
    from penstock.pricing import price_book
    from penstock.snapshot.build import build_valid_snapshot, find_missing_providers

    settings = load_settings(file, {})
    snapshot = build_valid_snapshot(settings)
    if file:
        price_book.read_price_rows(file)
    check_open_host(settings, snapshot.keys)
    if problems := find_missing_providers(settings):
        if settings.store_url is None:
            message = f"{file!r} cannot be used:"
            raise SettingsError(message, problems)
        for problem in problems:
            click.echo(f"warning: {problem}, unless the store has it", err=True)
    check_store(settings)
    text = f"{file or 'the environment, without a settings file,'} is good: {snapshot.keys} keys, snapshot {snapshot.epoch[:12]}"
    fields = {"file": file, "is_good": True, "keys": snapshot.keys, "snapshot": snapshot.epoch}
    print_result(text, fields, as_json=as_json)


def check_config(file: str) -> None:
    """Validates a routing config and reports every error with its JSON path."""
    from penstock import engine

    try:
        engine.check("config", Path(file).read_bytes(), load_settings(None, {}).routing.target_limits)
    except OSError as error:
        message = f"cannot read {file!r}: {error.strerror}"
        raise SettingsError(message) from None
    except engine.EngineError as error:
        details = "\n".join(f"  {problem['path']} {problem['message']}" for problem in error.problems)
        message = f"{file!r} cannot be used:\n{details}"
        raise SettingsError(message) from None


@main.command(epilog="Example: penstock openapi > openapi.json")
def openapi() -> None:
    """Print the OpenAPI document of the management API."""
    from penstock.app import openapi_json

    click.echo(msgspec.json.format(openapi_json(), indent=2))


@main.command(epilog="Example: penstock settings")
def settings() -> None:
    """Print the reference of all settings."""
    from penstock.settings.reference import render_markdown

    click.echo(render_markdown())


@main.command(epilog="Example: penstock version")
@JSON_OPTION
def version(*, as_json: bool) -> None:
    """Print the version."""
    print_result(describe_version(), {"version": __version__, "commit": read_commit() or None}, as_json=as_json)


@resources.keys.command("reset-admin", epilog="Example: penstock keys reset-admin")
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@JSON_OPTION
def reset_admin(config: str | None, *, as_json: bool) -> None:
    """Replace a lost admin key, on the machine that has the store; the old one stops working.

    The new key is PENSTOCK_ADMIN_KEY if that is set; otherwise a generated key is printed once. The audit log records
    the change.
    """
    settings = load_settings(config, {})
    from penstock.jobs.prepare import reset_admin_key

    print_admin_key(reset_admin_key(settings), "PENSTOCK_ADMIN_KEY is the admin key now", as_json=as_json)


@resources.users.command("sign-in-link", epilog="Example: penstock users sign-in-link --email ann@example.com")
@click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
@click.option("--email", help="E-mail address of the user. [default: the owner]")
@click.option("--url", help="Base URL of the gateway. [default: server.public_url, or the address in the settings]")
@JSON_OPTION
def sign_in_link(config: str | None, email: str | None, url: str | None, *, as_json: bool) -> None:
    """Print a link that signs a user in to the console once, on the machine that has the store.

    It works for an hour. Earlier links of the user stop working. The audit log records it.
    """
    settings = load_settings(config, {})
    from penstock.jobs.prepare import issue_sign_in_link

    if url and not url.startswith(("http://", "https://")):
        message = f"--url {url!r} is not allowed: expected http://… or https://…"
        raise SettingsError(message)
    token = issue_sign_in_link(settings, email)
    link = format_sign_in_url(url or browser_url(settings), token)
    print_result(link, {"link": link}, as_json=as_json)


for command in (
    *state.COMMANDS,
    *resources.COMMANDS,
    *logs.COMMANDS,
    *analytics.COMMANDS,
    *rerate.COMMANDS,
    *limits.COMMANDS,
    *operations.COMMANDS,
    *imports.COMMANDS,
    *prompts.COMMANDS,
):
    main.add_command(command)


def start_preparation(settings: Settings, *, with_demo: bool = False) -> Callable[[], PreparedStore]:
    """Starts to prepare the store in a separate process, so that the memory needed for it is freed. Returns the function
    that waits for it.
    """
    from penstock.snapshot.build import PreparedStore

    if settings.store_url is None and not settings.creates_store:
        return PreparedStore

    def run_preparation() -> bytes:
        from penstock.jobs.prepare import prepare_for_start

        return prepare_for_start(settings, with_demo=with_demo)

    child = process.ChildTask(run_preparation, "preparing the store")
    return lambda: msgspec.msgpack.decode(child.result(), type=PreparedStore)


def print_admin_key(admin_key: str | None, known: str = "", *, as_json: bool = False) -> None:
    """Prints a new admin key, which cannot be shown again. If `admin_key` is `None`, prints `known` instead."""
    text = f"admin key (it is shown this once): {admin_key}" if admin_key else known
    print_result(text, {"admin_key": admin_key}, as_json=as_json)


def load_settings(config: str | None, options: dict[str, object]) -> Settings:
    """Reads the settings from the command-line options, the environment and the settings file."""
    file = settings_module.find_settings_file(config, os.environ)
    return settings_module.load_settings(file, os.environ, options)


def print_startup_message(ready: Settings, store: PreparedStore, keys: int, *, tries: bool) -> None:
    """Prints the addresses of the gateway and its console, and example commands if `tries` is true."""
    click.echo(f"penstock {__version__} listens on {format_url(ready.bind_address, ready)}")
    # The console is shown only with a store, because no user can sign in without one.
    if ready.store_url:
        url = browser_url(ready)
        click.echo(f"console: {url}/console/")
        if store.sign_in_token:
            click.echo(f"sign in once, within an hour: {format_sign_in_url(url, store.sign_in_token)}")
        if ready.store.data_dir:
            click.echo(f"data: {ready.store.data_dir}; back up this folder, and keep it private")
    if tries:
        from penstock import examples

        key_needed = bool(keys) or ready.require_key
        lines = examples.format_examples(local_url(ready), key_needed=key_needed, demo_key=store.demo_key)
        click.echo("\n".join(["", *lines, ""]))
    sys.stdout.flush()


def browser_url(settings: Settings) -> str:
    """Returns the URL of the gateway for browsers: a session that was begun at another address may not work there."""
    return (settings.server.public_url or local_url(settings)).rstrip("/")


def local_url(settings: Settings) -> str:
    """Returns the URL at which programs on this machine reach the gateway, also if it listens on all addresses."""
    from penstock.listen import local_host

    return format_url(local_host(settings), settings)


def format_url(host: str, settings: Settings) -> str:
    """Returns the URL of the gateway at an IP address."""
    scheme = "https" if settings.server.has_tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def format_sign_in_url(url: str, token: str) -> str:
    """Returns a sign-in link. Browsers do not send what follows `#`, so the secret is in no log of a proxy."""
    return f"{url.rstrip('/')}/console/#sign-in={token}"
