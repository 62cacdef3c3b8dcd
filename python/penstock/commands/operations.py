"""CLI commands that run on the machine of the gateway: check the installation, back up, restore, and shell completion."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.shell_completion import get_completion_class

from penstock.commands.connection import load_local_settings
from penstock.commands.terminal_output import JSON_OPTION, print_json
from penstock.errors import SettingsError
from penstock.settings import MASTER_KEY_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.jobs.doctor import Finding

CONFIG_OPTION = click.option("--config", metavar="FILE", help="Settings file. [default: ./penstock.toml if there]")
STATUS_LABELS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "skipped"}
SHELLS = ("bash", "zsh", "fish")
ARCHIVE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.command(epilog="Example: penstock doctor --config penstock.toml --json")
@CONFIG_OPTION
@click.option("--offline", is_flag=True, help="Do not ask the providers.")
@JSON_OPTION
def doctor(config: str | None, *, offline: bool, as_json: bool) -> None:
    """Check everything that a gateway needs, and say what to do about what is missing.

    Checks the settings, open files, folders, port, certificate, store, master key, Redis, log store, buckets, clocks and
    the hosts of providers. Run it as the user of the gateway, with the same environment. The exit status is 1 if a check failed.
    """
    settings = load_local_settings(config)
    from penstock.jobs.doctor import examine  # noqa: PLC0415 - the other commands do not need it

    findings = asyncio.run(examine(settings, offline=offline))
    if as_json:
        print_json([msgspec.structs.asdict(finding) for finding in findings])
    else:
        _print_findings(findings)
    if any(finding.status == "failed" for finding in findings):
        sys.exit(1)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"{STATUS_LABELS[finding.status]:8} {finding.name}: {finding.message}")
        if finding.hint:
            click.echo(f"{'':8} hint: {finding.hint}")
    counts = [f"{sum(finding.status == status for finding in findings)} {status}" for status in STATUS_LABELS]
    click.echo(f"\n{', '.join(counts)}")


@click.command(epilog="Example: penstock backup /backups/penstock.zip")
@CONFIG_OPTION
@click.argument("file", type=ARCHIVE)
@click.option("--logs", "with_logs", is_flag=True, help="Include the embedded log store; the gateway must be stopped.")
@JSON_OPTION
def backup(config: str | None, file: Path, *, with_logs: bool, as_json: bool) -> None:
    """Write the store and the uploaded files to a new ZIP file; `-` is standard output. The gateway may go on.

    The master key is not in it: keep it elsewhere, because without it no stored credential can be decrypted.
    """
    is_piped = str(file) == "-"
    if is_piped and as_json:
        message = "--json cannot be used if the backup goes to standard output; hint: name a file"
        raise click.UsageError(message)
    settings = load_local_settings(config)
    from penstock.jobs.backup import write_backup  # noqa: PLC0415 - loads slowly

    with ExitStack() as stack:
        done = asyncio.run(write_backup(settings, file, _progress(stack, "backing up"), with_logs=with_logs))
    rows = sum(done.tables.values())
    if as_json:
        print_json({"file": str(file), "tables": done.tables, "rows": rows, "files": done.files, "logs": done.logs})
    else:
        click.echo(
            f"{'standard output' if is_piped else file}: {rows:,} rows of {len(done.tables)} tables, "
            f"{done.files:,} files, {done.logs:,} files of logs",
            err=is_piped,
        )
    if settings.files.store != "folder":
        click.echo(f"not included: uploaded files, because they are in {settings.files.store}", err=True)
    key = settings.store.master_key_file or settings.sibling_path(MASTER_KEY_FILE)
    location = "the setting store.master_key" if settings.store.master_key else key
    click.echo(f"not included: the master key; keep a copy of {location} in another place", err=True)


@click.command(epilog="Example: penstock restore /backups/penstock.zip")
@CONFIG_OPTION
@click.argument("file", type=ARCHIVE)
@JSON_OPTION
def restore(config: str | None, file: Path, *, as_json: bool) -> None:
    """Restore a backup into an empty store, and migrate it to this release; `-` reads standard input.

    Copy the master key to its file first. The store may be of another kind: a backup of SQLite can be restored in
    PostgreSQL. Existing organisations and files are never overwritten.
    """
    settings = load_local_settings(config)
    from penstock.jobs.backup import restore_backup  # noqa: PLC0415 - loads slowly

    with ExitStack() as stack:
        done = asyncio.run(restore_backup(settings, file, _progress(stack, "restoring")))
    rows = sum(done.tables.values())
    if as_json:
        print_json({"tables": done.tables, "rows": rows, "files": done.files, "logs": done.logs, "of": done.created_at})
    else:
        click.echo(
            f"restored {rows:,} rows, {done.files:,} files and {done.logs:,} files of logs, of {done.created_at}"
        )


def _progress(stack: ExitStack, label: str) -> Callable[[int], Callable[[int], None]]:
    """Returns a function that starts a progress bar, if standard error is a terminal."""

    def start(total: int) -> Callable[[int], None]:
        if not total or not sys.stderr.isatty():
            return lambda _: None
        return stack.enter_context(click.progressbar(length=total, label=label, file=sys.stderr)).update

    return start


@click.command(epilog='Example: eval "$(penstock completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in a shell."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        message = f"there is no completion for {shell!r}; allowed: {', '.join(SHELLS)}"
        raise SettingsError(message)
    root = context.find_root().command
    click.echo(completion_class(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())


COMMANDS = (doctor, backup, restore, completion)
