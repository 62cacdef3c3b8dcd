"""CLI commands that import the configuration of another gateway: `penstock import litellm`, `portkey` and `tensorzero`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.commands.terminal_output import JSON_OPTION, print_result
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.imports.output import ImportedState
    from penstock.imports.source import Source

# Exit status if a value of the source has no equivalent.
EXIT_UNSUPPORTED = 3
MAX_SHOWN_FINDINGS = 20
MAX_SOURCES = 1000


@click.group("import")
def import_group() -> None:
    """Import the configuration of another gateway as a state document for `penstock apply`."""


def with_output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that all importers have."""
    options = (
        click.option("--out", required=True, metavar="FILE", help="State document to write (YAML)."),
        click.option("--report", required=True, metavar="FILE", help="Report to write (JSON)."),
        click.option("--allow", is_flag=True, help="Exit with status 0 even if values are unsupported."),
        click.option("--force", is_flag=True, help="Replace existing files."),
        JSON_OPTION,
    )
    for option in options:
        command = option(command)
    return command


@import_group.command(
    "litellm", epilog="Example: penstock import litellm config.yaml --out state.yaml --report report.json"
)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--database", metavar="URL", envvar="LITELLM_DATABASE_URL", show_envvar=True, help="LiteLLM's PostgreSQL database."
)
@click.option("--salt-key-env", metavar="NAME", help="Environment variable that holds LITELLM_SALT_KEY.")
@with_output_options
def import_litellm(
    sources: tuple[str, ...],
    database: str | None,
    salt_key_env: str | None,
    **output: Any,  # noqa: ANN401 - click says no more
) -> None:
    """Import LiteLLM's config.yaml, and the models, teams and keys of its database.

    Exits with status 3 if a value has no equivalent; the files are written nevertheless.
    """
    from penstock.imports.litellm import import_litellm as run  # noqa: PLC0415 - other commands do not need it

    if not (sources or database):
        raise click.UsageError("give a SOURCE, or --database")
    _prepare(output)
    parsed = [_parse_file(file, "yaml") for file in _find_files(sources)]
    if database:
        from penstock.imports.litellm_database import read_database  # noqa: PLC0415 - loads SQLAlchemy

        parsed.append(read_database(database, _read_salt_key(salt_key_env), salt_key_env))
    _finish(run(parsed), output)


@import_group.command(
    "portkey", epilog="Example: penstock import portkey configs.json --out state.yaml --report report.json"
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@with_output_options
def import_portkey(sources: tuple[str, ...], **output: Any) -> None:  # noqa: ANN401 - as above
    """Import Portkey's configs, virtual keys and prompts from JSON files.

    Exits with status 3 if a value has no equivalent; the files are written nevertheless.
    """
    from penstock.imports.portkey import import_portkey as run  # noqa: PLC0415 - loads slowly

    _prepare(output)
    _finish(run([_parse_file(file, "json") for file in _find_files(sources)]), output)


@import_group.command(
    "tensorzero", epilog="Example: penstock import tensorzero 'config/*.toml' --out state.yaml --report report.json"
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@with_output_options
def import_tensorzero(sources: tuple[str, ...], **output: Any) -> None:  # noqa: ANN401 - as above
    """Import TensorZero's models and functions from TOML files; SOURCE may be a pattern such as 'config/**/*.toml'.

    Exits with status 3 if a value has no equivalent; the files are written nevertheless.
    """
    from penstock.imports.tensorzero import import_tensorzero as run  # noqa: PLC0415 - loads slowly
    from penstock.imports.tensorzero_templates import read_templates  # noqa: PLC0415 - loads slowly

    _prepare(output)
    files = _find_files(sources)
    parsed = [_parse_file(file, "toml") for file in files]
    _finish(run(parsed, read_templates(parsed, files)), output)


COMMANDS = (import_group,)


def _prepare(output: Mapping[str, Any]) -> None:
    from penstock.imports.output import reject_existing  # noqa: PLC0415 - loads slowly

    files = [Path(output["out"]), Path(output["report"])]
    if files[0].absolute() == files[1].absolute():
        raise click.UsageError("--out and --report must be two files")
    if not output["force"]:
        reject_existing(files)


def _find_files(patterns: Sequence[str]) -> list[Path]:
    """Returns the files of the arguments, which may be patterns, in a stable order."""
    files: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_file() or not any(item in pattern for item in "*?["):
            files[path] = None
            continue
        base = Path(path.anchor or ".")
        matches = sorted(item for item in base.glob(str(path.relative_to(path.anchor))) if item.is_file())
        if not matches:
            message = f"no file matches {pattern!r}"
            raise SettingsError(message)
        files |= dict.fromkeys(matches)
    if len(files) > MAX_SOURCES:
        message = f"{len(files)} files are given; at most {MAX_SOURCES} can be imported at once"
        raise SettingsError(message)
    return list(files)


def _parse_file(file: Path, kind: str) -> Source:
    from penstock.imports import source  # noqa: PLC0415 - loads slowly

    parse = {"yaml": source.parse_yaml, "json": source.parse_json, "toml": source.parse_toml}[kind]
    return parse(str(file), source.read_text(file))


def _read_salt_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if value := os.environ.get(variable):
        return value
    message = f"the environment variable {variable!r} of --salt-key-env is not set"
    raise SettingsError(message)


def _finish(imported: ImportedState, output: Mapping[str, Any]) -> None:
    """Writes the files, prints a summary, and exits with the status of the import."""
    from penstock.imports.findings import Status  # noqa: PLC0415 - loads slowly
    from penstock.imports.output import check_state, count_statuses, write_results  # noqa: PLC0415 - loads slowly

    out, report = output["out"], output["report"]
    checked = check_state(imported)
    write_results(checked, Path(out), Path(report))
    counts = count_statuses(checked.findings)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    print_result(summary, {"out": out, "report": report, "counts": counts}, as_json=output["as_json"])
    unsupported = [finding for finding in checked.findings if finding.status is Status.UNSUPPORTED]
    for item in unsupported[:MAX_SHOWN_FINDINGS]:
        location = f"{item.source}:{item.line}" if item.line else item.source
        click.echo(": ".join(part for part in ("unsupported", location, item.path, item.message) if part), err=True)
    if len(unsupported) > MAX_SHOWN_FINDINGS:
        click.echo(f"and {len(unsupported) - MAX_SHOWN_FINDINGS} more in {report}", err=True)
    if not output["as_json"]:
        click.echo(f"next: read {report}, set the variables that {out} names, then `penstock apply {out} --plan`")
    if unsupported and not output["allow"]:
        sys.exit(EXIT_UNSUPPORTED)
