"""CLI commands that export and apply the declarative state of a running gateway."""

from __future__ import annotations

import os
import sys
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from penstock.commands.connection import open_remote, with_connection_options
from penstock.commands.terminal_output import print_json
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")

# Minimum number of steps for a progress bar. With fewer, the command ends before the bar would help.
MIN_PROGRESS_STEPS = 10
# First line of an exported file.
EXPORT_HEADER = "# Credentials are masked. A mask keeps the stored credential; where none is stored, replace the mask with ${NAME}.\n"


@click.command(epilog="Example: penstock export -o state.yaml")
@with_connection_options
@click.option("-o", "--output", type=click.File("w"), default="-", help="File to write. [default: standard output]")
def export(url: str, api_key: str, output: Any) -> None:  # noqa: ANN401 - click says no more
    """Export the state as YAML, except guardrails; credentials stay masked."""
    from penstock.declarative import plan as state  # noqa: PLC0415 - loads slowly
    from penstock.declarative.document import count_masks  # noqa: PLC0415 - loads slowly

    with open_remote(url, api_key) as remote:
        document = state.export_state(remote, partial(_with_progress_bar, "reading"))
    output.write(EXPORT_HEADER + _dump_yaml(document))
    if count := count_masks(document):
        click.echo(f"masked credentials: {count}; to apply the file elsewhere, replace them with ${{NAME}}", err=True)


@click.command(epilog="Example: penstock apply state.yaml --dry-run")
@with_connection_options
@click.argument("file", type=click.File("r"))
@click.option(
    "--plan",
    "--dry-run",
    "only_plan",
    is_flag=True,
    help="Show the changes without applying them; exit status 2 if there are any.",
)
@click.option("--yes", is_flag=True, help="Apply without confirmation.")
@click.option("--prune", is_flag=True, help="Delete what is not in the file, in the lists that the file contains.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON; needs --plan.")
def apply(  # noqa: PLR0913, PLR0917 - one parameter for each option
    url: str,
    api_key: str,
    file: Any,  # noqa: ANN401 - click says no more
    only_plan: bool,
    yes: bool,
    prune: bool,
    as_json: bool,
) -> None:
    """Show and apply the changes that a YAML file describes; `${NAME}` is read from the environment.

    Only the mask of a stored credential is known: a credential that produces the same mask counts as unchanged.
    """
    from penstock.declarative.plan import Plan  # noqa: PLC0415 - loads slowly

    if as_json and not only_plan:
        message = "--json needs --plan"
        raise click.UsageError(message)
    with open_remote(url, api_key) as remote:
        plan = Plan(
            remote,
            _load_yaml(file),
            os.environ,
            prune=prune,
            key=api_key,
            track_progress=partial(_with_progress_bar, "reading"),
        )
        if as_json:
            changes = [{"sign": step.sign, "summary": step.summary, "path": step.path} for step in plan.steps]
            print_json({"changes": changes})
            sys.exit(2 if changes else 0)
        for step in plan.steps:
            click.echo(f"{step.sign} {step.summary}")
        if not plan.steps:
            click.echo("nothing to do")
            return
        if only_plan:
            sys.exit(2)
        if not yes:
            _confirm_apply(len(plan.steps))
        try:
            for step in _with_progress_bar("applying", plan.steps):
                step.apply()
        finally:
            # Prints new keys and links even if a later step failed, because they cannot be shown again.
            for name, resource, text in plan.texts:
                click.echo(f"{name} of {resource} (it is shown this once): {text}")
        click.echo(f"{len(plan.steps)} done")


def _confirm_apply(count: int) -> None:
    try:
        agreed = click.confirm("do this?" if count == 1 else f"do these {count}?")
    except click.Abort:
        # Standard input is not interactive, or the user pressed Ctrl-C.
        click.echo(err=True)
        message = "nothing was done: it was not confirmed; hint: --yes"
        raise SettingsError(message) from None
    if not agreed:
        message = "nothing was done"
        raise SettingsError(message)


def _with_progress_bar(label: str, steps: list[Item]) -> Iterator[Item]:
    if len(steps) < MIN_PROGRESS_STEPS or not sys.stderr.isatty():
        yield from steps
        return
    with click.progressbar(steps, label=label, file=sys.stderr) as track_progress:
        yield from track_progress


def _yaml_codec() -> Any:  # noqa: ANN401 - its types are not published
    from ruamel.yaml import YAML  # noqa: PLC0415 - loads slowly

    # The type is `Any`, because ruamel.yaml does not declare all of its attributes.
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    return yaml


def _dump_yaml(content: object) -> str:
    written = StringIO()
    _yaml_codec().dump(content, written)
    return written.getvalue()


def _load_yaml(file: Any) -> dict[str, Any]:  # noqa: ANN401 - click says no more
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - loads slowly

    try:
        content = _parse_yaml(file.read())
    except YAMLError as error:
        raise SettingsError(f"{file.name} is not YAML: {_describe_yaml_error(error)}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file.name} is not YAML: {error}") from None
    if not isinstance(content, dict):
        message = f"{file.name} must hold a mapping with version, organisation and workspaces"
        raise SettingsError(message)
    return cast("dict[str, Any]", content)


def _parse_yaml(text: str) -> object:
    """Parses YAML. JSON is YAML too, so it is parsed by the JSON parser, which is a hundred times as fast."""
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            # Not JSON: YAML in the flow style also begins with `{`.
            pass
    return _yaml_codec().load(text)


def _describe_yaml_error(error: Any) -> str:  # noqa: ANN401 - the error classes have different fields
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"{problem} in line {mark.line + 1}" if mark and problem else str(error).splitlines()[0]


COMMANDS = (export, apply)
