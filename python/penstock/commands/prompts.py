"""CLI commands that keep prompts as files beside the code: pull, diff and push."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from penstock.commands.connection import open_remote, quote_path_segment, with_connection_options
from penstock.declarative.prompt_files import SUFFIX, dump_document, read_folder, to_api_fields, to_document
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.declarative.document import JsonObject
    from penstock.remote import ManagementClient

DIFFERENT = 2
_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_WORKSPACE_HELP = "Workspace of the prompts: id or slug; not needed with a key of a workspace."


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_connection_options(_FOLDER(click.option("--workspace", help=_WORKSPACE_HELP)(command)))


def _find_changes(files: dict[str, JsonObject], stored: dict[str, JsonObject]) -> Iterator[tuple[str, list[str]]]:
    """Yields the slug of each prompt that a push would change, with the lines of the difference."""
    for slug, document in files.items():
        before = dump_document(stored[slug]) if slug in stored else ""
        after = dump_document(document)
        if before != after:
            yield slug, _diff(slug, before, after)


@click.group()
def prompts() -> None:
    """Keep prompts as files: pull, diff and push."""


@prompts.command("pull", epilog="Example: penstock prompts pull prompts/ --workspace ws-team-a-1f2e3d")
@_with_options
def pull(url: str, api_key: str, folder: Path, workspace: str | None) -> None:
    """Write the newest version of each active prompt to FOLDER, one YAML file per slug.

    Files of other prompts stay as they are.
    """
    with open_remote(url, api_key) as remote:
        stored = _read_stored(remote, workspace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [slug for slug, document in stored.items() if _write_file(folder / f"{slug}{SUFFIX}", document)]
    except OSError as error:
        message = f"cannot write to {str(folder)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    for slug in written:
        click.echo(f"{slug}{SUFFIX}")
    click.echo(f"{len(written)} written, {len(stored) - len(written)} unchanged", err=True)


@prompts.command("diff", epilog="Example: penstock prompts diff prompts/ --workspace ws-team-a-1f2e3d")
@_with_options
def diff(url: str, api_key: str, folder: Path, workspace: str | None) -> None:
    """Show what a push would change; exit status 2 if there is anything."""
    files = read_folder(folder)
    with open_remote(url, api_key) as remote:
        stored = _read_stored(remote, workspace)
    is_different = False
    for _, lines in _find_changes(files, stored):
        is_different = True
        for line in lines:
            click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]))
    if is_different:
        sys.exit(DIFFERENT)
    click.echo("no differences", err=True)


@prompts.command("push", epilog='Example: penstock prompts push prompts/ --message "shorter greeting" --publish')
@_with_options
@click.option("--message", help="Description of the new versions.")
@click.option("--publish", is_flag=True, help="Make the new versions the ones that requests use.")
def push(url: str, api_key: str, folder: Path, workspace: str | None, message: str | None, *, publish: bool) -> None:
    """Save each changed file as a new version, and create prompts that do not exist.

    Prompts without a file stay as they are. All files are checked before the first one is sent.
    """
    files = read_folder(folder)
    with open_remote(url, api_key) as remote:
        stored = _read_stored(remote, workspace)
        changed = [slug for slug, _ in _find_changes(files, stored)]
        for slug in changed:
            is_new = slug not in stored
            _save(remote, slug, files[slug], workspace, message, is_new=is_new, publish=publish)
            click.echo(f"{'+' if is_new else '~'} {slug}")
    click.echo(f"{len(changed)} saved, {len(files) - len(changed)} unchanged", err=True)


def _save(  # noqa: PLR0913 - what a saved version consists of
    remote: ManagementClient,
    slug: str,
    document: JsonObject,
    workspace: str | None,
    message: str | None,
    *,
    is_new: bool,
    publish: bool,
) -> None:
    described = {"version_description": message} if message else {}
    fields = {**to_api_fields(document), **described}
    if is_new:
        body = {name: value for name, value in fields.items() if value is not None}
        remote.request(
            "POST", "/v1/prompts", {**body, "slug": slug, **({"workspace_id": workspace} if workspace else {})}
        )
        return
    path, query = f"/v1/prompts/{quote_path_segment(slug)}", _workspace_query(workspace)
    remote.request("PUT", path + query, {"patch": True, **fields})
    if publish:
        latest = remote.request("GET", path + query)["prompt_version"]
        remote.request("PUT", f"{path}/makeDefault{query}", {"version": latest})


def _read_stored(remote: ManagementClient, workspace: str | None) -> dict[str, JsonObject]:
    query = _workspace_query(workspace)
    rows = [row for row in remote.iter_rows(f"/v1/prompts{query}") if row["status"] == "active"]
    found = {row["slug"]: remote.request("GET", f"/v1/prompts/{row['id']}{query}") for row in rows}
    return {slug: to_document(found[slug]) for slug in sorted(found)}


def _workspace_query(workspace: str | None) -> str:
    return f"?{urlencode({'workspace_id': workspace})}" if workspace else ""


def _write_file(path: Path, document: JsonObject) -> bool:
    """Writes a file if its content changes; returns true if it did."""
    text = dump_document(document)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def _diff(slug: str, before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"stored/{slug}{SUFFIX}", f"file/{slug}{SUFFIX}", lineterm=""
    )
    return list(lines)


COMMANDS = (prompts,)
