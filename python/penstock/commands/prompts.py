"""CLI commands that keep prompts and partials as files in a code repository: pull, diff and push."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import click

from penstock.commands.connection import open_remote, quote_path_segment, with_connection_options
from penstock.declarative.prompt_files import (
    LABELS,
    PARTIALS_FOLDER,
    SUFFIX,
    TEXT,
    PromptFolder,
    align_labels,
    dump_document,
    read_folder,
    to_api_fields,
    to_document,
    to_partial_document,
)
from penstock.errors import Problem, RejectedError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.declarative.document import JsonObject
    from penstock.remote import ManagementClient

DIFFERENT = 2
_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_WORKSPACE_HELP = "Workspace of the prompts: id or slug; not needed with a key of a workspace."


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_connection_options(_FOLDER(click.option("--workspace", help=_WORKSPACE_HELP)(command)))


class Change(NamedTuple):
    """A file that differs from the gateway."""

    slug: str
    is_partial: bool
    is_new: bool
    document: JsonObject
    # True if anything except the labels differs.
    has_content: bool
    # True if the file lists the labels that the version should have.
    has_labels: bool
    lines: list[str]

    @property
    def name(self) -> str:
        """Name of the file without its ending, as the commands show it."""
        return f"{PARTIALS_FOLDER}/{self.slug}" if self.is_partial else self.slug


def _find_changes(files: PromptFolder, stored: PromptFolder) -> Iterator[Change]:
    """Yields the files that differ from the gateway, in the order in which a push saves them: partials first."""
    for slug, document in files.partials.items():
        yield from _compare(slug, document, stored.partials.get(slug), is_partial=True)
    for slug, document in files.prompts.items():
        yield from _compare(slug, document, stored.prompts.get(slug), is_partial=False)


def _compare(slug: str, document: JsonObject, stored: JsonObject | None, *, is_partial: bool) -> Iterator[Change]:
    requested, current = align_labels(document, stored or {})
    before, after = dump_document(current) if stored else "", dump_document(requested)
    if before != after:
        has_content = {**requested, LABELS: None} != {**current, LABELS: None}
        change = Change(slug, is_partial, stored is None, requested, has_content, LABELS in document, [])
        yield change._replace(lines=_diff(change.name, before, after))


@click.group()
def prompts() -> None:
    """Keep prompts as files: pull, diff and push."""


@prompts.command("pull", epilog="Example: penstock prompts pull prompts/ --workspace ws-team-a-1f2e3d")
@_with_options
def pull(url: str, api_key: str, folder: Path, workspace: str | None) -> None:
    """Write the newest version of each active prompt and partial to FOLDER, one YAML file per slug.

    Partials are in the folder `partials` there. Other files stay as they are.
    """
    with open_remote(url, api_key) as remote:
        stored = _read_stored(remote, workspace)
    documents = {f"{PARTIALS_FOLDER}/{slug}": document for slug, document in stored.partials.items()} | stored.prompts
    try:
        (folder / PARTIALS_FOLDER if stored.partials else folder).mkdir(parents=True, exist_ok=True)
        written = [name for name, document in documents.items() if _write_file(folder / f"{name}{SUFFIX}", document)]
    except OSError as error:
        message = f"cannot write to {str(folder)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    for name in written:
        click.echo(f"{name}{SUFFIX}")
    click.echo(f"{len(written)} written, {len(documents) - len(written)} unchanged", err=True)


@prompts.command("diff", epilog="Example: penstock prompts diff prompts/ --workspace ws-team-a-1f2e3d")
@_with_options
def diff(url: str, api_key: str, folder: Path, workspace: str | None) -> None:
    """Show what a push would change; exit status 2 if there is anything."""
    files = read_folder(folder)
    with open_remote(url, api_key) as remote:
        stored = _read_stored(remote, workspace)
    is_different = False
    for change in _find_changes(files, stored):
        is_different = True
        for line in change.lines:
            click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]))
    _raise_unusable(list(files.unusable), "the other files were compared; these cannot be used:")
    if is_different:
        sys.exit(DIFFERENT)
    click.echo("no differences", err=True)


@prompts.command("push", epilog='Example: penstock prompts push prompts/ --message "shorter greeting" --publish')
@_with_options
@click.option("--message", help="Description of the new versions.")
@click.option("--publish", is_flag=True, help="Make the new versions the ones that requests use.")
def push(url: str, api_key: str, folder: Path, workspace: str | None, message: str | None, *, publish: bool) -> None:
    """Save each changed file as a new version, and create prompts and partials that do not exist.

    Those without a file stay as they are. All files are checked before the first one is sent. Files that the gateway
    rejects are listed at the end; the others are saved.
    """
    files = read_folder(folder)
    rejected = list(files.unusable)
    saved = 0
    with open_remote(url, api_key) as remote:
        _check_labels(remote, files, workspace)
        changes = list(_find_changes(files, _read_stored(remote, workspace)))
        for change in changes:
            save = _save_partial if change.is_partial else _save_prompt
            try:
                save(remote, change, workspace, message, publish=publish)
            except RejectedError as error:
                rejected.append(Problem(f"{change.name}{SUFFIX}", error.message))
                continue
            saved += 1
            click.echo(f"{'+' if change.is_new else '~'} {change.name}")
    unchanged = len(files.prompts) + len(files.partials) - len(changes)
    click.echo(f"{saved} saved, {unchanged} unchanged", err=True)
    _raise_unusable(rejected, f"{len(rejected)} rejected:")


def _raise_unusable(problems: list[Problem], message: str) -> None:
    """Raises `SettingsError` with the files that could not be used, if there are any."""
    if problems:
        raise SettingsError(message, problems)


def _check_labels(remote: ManagementClient, files: PromptFolder, workspace: str | None) -> None:
    """Raises `SettingsError` if files name labels that the workspace does not have."""
    named_items = {slug: document[LABELS] for slug, document in files.prompts.items() if document.get(LABELS)}
    if not named_items:
        return
    known = {row["name"] for row in remote.iter_rows(f"/v1/labels{_workspace_query(workspace)}")}
    problems = [
        Problem(
            f"{slug}{SUFFIX}: {LABELS}", f"{name!r} is no label of the workspace; allowed: {', '.join(sorted(known))}"
        )
        for slug, names in named_items.items()
        for name in names
        if name not in known
    ]
    if problems:
        message = "the files cannot be used:"
        raise SettingsError(message, problems)


def _save_prompt(
    remote: ManagementClient, change: Change, workspace: str | None, message: str | None, *, publish: bool
) -> None:
    slug, document, query = change.slug, change.document, _workspace_query(workspace)
    path = f"/v1/prompts/{quote_path_segment(slug)}"
    fields = {**to_api_fields(document), **({"version_description": message} if message else {})}
    if change.is_new:
        body = {name: value for name, value in fields.items() if value is not None}
        remote.request("POST", "/v1/prompts", {**body, "slug": slug, **_workspace_field(workspace)})
    elif change.has_content:
        remote.request("PUT", path + query, {"patch": True, **fields})
        if publish:
            latest = remote.request("GET", path + query)["latest_version"]
            remote.request("PUT", f"{path}/makeDefault{query}", {"version": latest})
    if change.has_labels:
        _put_labels(remote, path, query, document.get(LABELS) or [])


def _save_partial(
    remote: ManagementClient, change: Change, workspace: str | None, message: str | None, *, publish: bool
) -> None:
    slug, document, query = change.slug, change.document, _workspace_query(workspace)
    fields = {"name": document["name"], "string": document[TEXT]}
    if change.is_new:
        described = {"version_description": message} if message else {}
        body = {**fields, **described, "slug": slug, **_workspace_field(workspace)}
        remote.request("POST", "/v1/prompts/partials", body)
        return
    path = f"/v1/prompts/partials/{quote_path_segment(slug)}"
    remote.request("PUT", path + query, {**fields, **({"description": message} if message else {})})
    if publish:
        latest = remote.request("GET", path + query)["latest_version"]
        remote.request("PUT", f"{path}/makeDefault{query}", {"version": latest})


def _put_labels(remote: ManagementClient, path: str, query: str, requested: list[str]) -> None:
    """Sets the labels of the newest version of a prompt to exactly these."""
    version = remote.request("GET", path + query)
    present = {label["name"] for label in version["prompt_version_labels"]}
    version_path = f"{path}/versions/{version['prompt_version_id']}{query}"
    if present - set(requested):
        remote.request("PUT", version_path, {"label_id": None})
        present = set[str]()
    for name in sorted(set(requested) - present):
        remote.request("PUT", version_path, {"label_id": name})


def _read_stored(remote: ManagementClient, workspace: str | None) -> PromptFolder:
    query = _workspace_query(workspace)

    listed = {
        path: [row for row in remote.iter_rows(f"{path}{query}") if row["status"] == "active"]
        for path in ("/v1/prompts", "/v1/prompts/partials")
    }
    # Prompts of two workspaces may have the same slug, but a slug is the name of only one file.
    workspaces = sorted({str(row["workspace_id"]) for rows in listed.values() for row in rows})
    if workspace is None and len(workspaces) > 1:
        message = f"several workspaces have prompts; choose one: --workspace {', --workspace '.join(workspaces[:10])}"
        raise SettingsError(message)

    def read(path: str) -> dict[str, JsonObject]:
        response = {row["slug"]: remote.request("GET", f"{path}/{row['id']}{query}") for row in listed[path]}
        return dict(sorted(response.items()))

    prompts = {slug: to_document(row) for slug, row in read("/v1/prompts").items()}
    partials = {slug: to_partial_document(row) for slug, row in read("/v1/prompts/partials").items()}
    return PromptFolder(prompts, partials)


def _workspace_field(workspace: str | None) -> JsonObject:
    return {"workspace_id": workspace} if workspace else {}


def _workspace_query(workspace: str | None) -> str:
    return f"?{urlencode({'workspace_id': workspace})}" if workspace else ""


def _write_file(path: Path, document: JsonObject) -> bool:
    """Writes a file if its content changes; returns true if it did."""
    text = dump_document(document)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def _diff(name: str, before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"stored/{name}{SUFFIX}", f"file/{name}{SUFFIX}", lineterm=""
    )
    return list(lines)


COMMANDS = (prompts,)
