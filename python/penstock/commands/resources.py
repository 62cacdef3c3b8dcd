"""CLI commands for the objects of a running gateway: workspaces, users, integrations, providers, keys, configs, audit log."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
import msgspec

from penstock.commands.connection import open_remote, quote_path_segment, with_connection_options
from penstock.commands.terminal_output import JSON_OPTION, print_json, print_table
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def prints_field(name: str, prefix: str = "") -> Callable[[Callable[..., dict[str, Any]]], Callable[..., None]]:
    """Makes a command print one field of the object that it returns. With `--json`, it prints the whole object.
    Warnings in the object go to standard error.
    """

    def decorate(command: Callable[..., dict[str, Any]]) -> Callable[..., None]:
        @JSON_OPTION
        @wraps(command)
        def run(*args: Any, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - the parameters of the command
            result = command(*args, **options)
            if as_json:
                print_json(result)
            else:
                click.echo(f"{prefix}{result[name]}")
            for warning in result.get("warnings") or ():
                click.echo(f"warning: {warning['path']} {warning['message']}", err=True)

        return run

    return decorate


WORKSPACE_OPTION = click.option("--workspace", help="Only of this workspace: id or slug.")
KEY_COLUMNS = ("id", "key", "type", "status", "name")
CONFIG_COLUMNS = ("slug", "status", "last_updated_at", "name")
WORKSPACE_COLUMNS = ("slug", "status", "created_at", "name", "id")
USER_COLUMNS = ("email", "role", "first_name", "last_name", "id")
INTEGRATION_COLUMNS = ("slug", "ai_provider_id", "status", "workspace_id", "masked_key", "name")
PROVIDER_COLUMNS = ("slug", "ai_provider_name", "status", "workspace_id", "expires_at", "name")
AUDIT_COLUMNS = ("timestamp", "user_type", "user_id", "action", "resource_type", "resource_id", "response_status_code")
# A credential longer than this is a mistake, such as the wrong file.
MAX_CREDENTIAL_CHARS = 16_384
DEFAULT_AUDIT_ROWS, MAX_AUDIT_ROWS = 50, 100_000


def _list_path(path: str, filters: Mapping[str, str | None]) -> str:
    filled = {name: value for name, value in filters.items() if value}
    return f"{path}?{urlencode(filled)}" if filled else path


def _print_rows(rows: Iterable[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(list(rows))
    else:
        print_table(columns, [[_format_cell(row.get(name)) for name in columns] for row in rows])


def _format_cell(value: object) -> str:
    return "" if value is None else str(value)


def _list_rows(connection: tuple[str, str], path: str, columns: tuple[str, ...], *, as_json: bool) -> None:
    with open_remote(*connection) as remote:
        _print_rows(remote.iter_rows(path), columns, as_json=as_json)


def _delete(connection: tuple[str, str], path: str, name: str, *, as_json: bool) -> None:
    """Deletes an object. Prints nothing, except JSON with `--json`."""
    with open_remote(*connection) as remote:
        remote.request("DELETE", f"{path}/{quote_path_segment(name)}")
    if as_json:
        print_json({"deleted": name})


def _without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value}


@click.group()
def workspaces() -> None:
    """List, create and delete workspaces."""


@workspaces.command("list", epilog="Example: penstock workspaces list --json")
@with_connection_options
@JSON_OPTION
def list_workspaces(url: str, api_key: str, *, as_json: bool) -> None:
    """List workspaces."""
    _list_rows((url, api_key), "/v1/workspaces", WORKSPACE_COLUMNS, as_json=as_json)


@workspaces.command("create", epilog='Example: penstock workspaces create "Team A"')
@with_connection_options
@click.argument("name")
@click.option("--slug", help="Slug of the workspace. [default: generated]")
@click.option("--description", help="What the workspace is for.")
@prints_field("slug")
def create_workspace(url: str, api_key: str, name: str, slug: str | None, description: str | None) -> dict[str, Any]:
    """Create a workspace and print its slug."""
    body = _without_empty({"name": name, "slug": slug, "description": description})
    with open_remote(url, api_key) as remote:
        return remote.request("POST", "/v1/workspaces", body)


@workspaces.command("delete", epilog="Example: penstock workspaces delete ws-team-a-1f2e3d")
@with_connection_options
@click.argument("workspace")
@JSON_OPTION
def delete_workspace(url: str, api_key: str, workspace: str, *, as_json: bool) -> None:
    """Archive a workspace that has no providers, configs and keys left."""
    _delete((url, api_key), "/v1/workspaces", workspace, as_json=as_json)


@click.group()
def users() -> None:
    """List, invite, remove and sign in users."""


@users.command("list", epilog="Example: penstock users list --role admin")
@with_connection_options
@click.option("--role", help="Only users with this role: owner, admin or member.")
@JSON_OPTION
def list_users(url: str, api_key: str, role: str | None, *, as_json: bool) -> None:
    """List users."""
    _list_rows((url, api_key), _list_path("/v1/admin/users", {"role": role}), USER_COLUMNS, as_json=as_json)


@users.command(
    "invite", epilog="Example: penstock users invite ann@example.com --workspace ws-team-a-1f2e3d --role member"
)
@with_connection_options
@click.argument("email")
@click.option("--role", default="member", show_default=True, help="Role in the organisation: admin or member.")
@click.option("--workspace", "workspaces", multiple=True, help="Workspace to join: id or slug; may be repeated.")
@click.option("--workspace-role", default="member", show_default=True, help="Role there: admin, manager or member.")
@prints_field("invite_link")
def invite_user(
    url: str, api_key: str, email: str, role: str, workspaces: tuple[str, ...], workspace_role: str
) -> dict[str, Any]:
    """Invite a person and print the link that sets the password. The link works once, for a week."""
    joined = [{"id": workspace, "role": workspace_role} for workspace in workspaces]
    with open_remote(url, api_key) as remote:
        body = {"email": email, "role": role, "workspaces": joined}
        return remote.request("POST", "/v1/admin/users/invites", body)


@users.command("remove", epilog="Example: penstock users remove 0199aaaa-0000-7000-8000-000000000001")
@with_connection_options
@click.argument("user_id")
@JSON_OPTION
def remove_user(url: str, api_key: str, user_id: str, *, as_json: bool) -> None:
    """Remove a user from the organisation; the user's keys and sessions end."""
    _delete((url, api_key), "/v1/admin/users", user_id, as_json=as_json)


@click.group()
def integrations() -> None:
    """List, create and delete integrations: credentials of providers."""


@integrations.command("list", epilog="Example: penstock integrations list")
@with_connection_options
@WORKSPACE_OPTION
@JSON_OPTION
def list_integrations(url: str, api_key: str, workspace: str | None, *, as_json: bool) -> None:
    """List integrations, with their credentials masked."""
    path = _list_path("/v1/integrations", {"workspace_id": workspace})
    _list_rows((url, api_key), path, INTEGRATION_COLUMNS, as_json=as_json)


@integrations.command(
    "create", epilog="Example: penstock integrations create OpenAI --provider openai --key-file - < openai.key"
)
@with_connection_options
@click.argument("name")
@click.option("--provider", required=True, help="Provider, such as openai; `docs/providers.md` lists all.")
@click.option("--key-file", type=click.File("r"), help="File with the provider's API key; `-` for standard input.")
@click.option("--slug", help="Slug of the integration and of its first provider. [default: generated]")
@click.option("--custom-host", help="Base URL of another host of the provider.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="Option of the provider; may be repeated."
)
@click.option("--workspace", help="Workspace that owns it: id or slug; without it the organisation does.")
@prints_field("slug")
def create_integration(url: str, api_key: str, name: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - its options
    """Store the credential of a provider and print the slug of the integration.

    Requests use it as `@slug` once a workspace has it.
    """
    configurations = dict(_parse_option(option) for option in options["options"])
    if options["custom_host"]:
        configurations["custom_host"] = options["custom_host"]
    body = _without_empty(
        {
            "name": name,
            "ai_provider_id": options["provider"],
            "slug": options["slug"],
            "default_provider_slug": options["slug"],
            "configurations": configurations,
            "workspace_id": options["workspace"],
            "key": _read_credential(options["key_file"]),
        }
    )
    with open_remote(url, api_key) as remote:
        return remote.request("POST", "/v1/integrations", body)


def _parse_option(option: str) -> tuple[str, str]:
    name, mark, value = option.partition("=")
    if not name or not mark:
        raise click.UsageError(f"--option {option!r} is not allowed: expected NAME=VALUE")
    return name, value


def _read_credential(file: Any) -> str:  # noqa: ANN401 - click says no more
    if file is None:
        return ""
    text = file.read(MAX_CREDENTIAL_CHARS + 1)
    if len(text) > MAX_CREDENTIAL_CHARS:
        message = f"{file.name} has more than {MAX_CREDENTIAL_CHARS} characters; expected an API key"
        raise SettingsError(message)
    return str(text).strip()


@integrations.command("delete", epilog="Example: penstock integrations delete openai-1f2e3d")
@with_connection_options
@click.argument("slug")
@JSON_OPTION
def delete_integration(url: str, api_key: str, slug: str, *, as_json: bool) -> None:
    """Delete an integration that no provider uses any more."""
    _delete((url, api_key), "/v1/integrations", slug, as_json=as_json)


@click.group()
def providers() -> None:
    """List, create and delete providers of workspaces."""


@providers.command("list", epilog="Example: penstock providers list --workspace ws-team-a-1f2e3d")
@with_connection_options
@WORKSPACE_OPTION
@JSON_OPTION
def list_providers(url: str, api_key: str, workspace: str | None, *, as_json: bool) -> None:
    """List providers; requests name them as `@slug`."""
    path = _list_path("/v1/providers", {"workspace_id": workspace})
    _list_rows((url, api_key), path, PROVIDER_COLUMNS, as_json=as_json)


@providers.command("create", epilog="Example: penstock providers create my-openai --integration openai-1f2e3d")
@with_connection_options
@click.argument("slug")
@click.option("--integration", required=True, help="Integration whose credential it uses: id or slug.")
@click.option("--name", help="Display name. [default: the slug]")
@click.option("--workspace", help="Workspace of the provider: id or slug.")
@prints_field("slug", prefix="@")
def create_provider(
    url: str, api_key: str, slug: str, integration: str, name: str | None, workspace: str | None
) -> dict[str, Any]:
    """Create a provider of a workspace and print how requests name it."""
    body = {"name": name or slug, "slug": slug, "integration_id": integration, "workspace_id": workspace}
    with open_remote(url, api_key) as remote:
        return remote.request("POST", "/v1/providers", _without_empty(body))


@providers.command("delete", epilog="Example: penstock providers delete my-openai --workspace ws-team-a-1f2e3d")
@with_connection_options
@click.argument("slug")
@click.option("--workspace", help="Workspace of the provider: id or slug.")
@JSON_OPTION
def delete_provider(url: str, api_key: str, slug: str, workspace: str | None, *, as_json: bool) -> None:
    """Delete a provider of a workspace."""
    with open_remote(url, api_key) as remote:
        path = f"/v1/providers/{quote_path_segment(slug)}"
        remote.request("DELETE", _list_path(path, {"workspace_id": workspace}))
    if as_json:
        print_json({"deleted": slug})


@click.command("audit", epilog="Example: penstock audit --action delete --resource api_keys --limit 20")
@with_connection_options
@click.option("--action", help="Only this action, such as create, update or delete.")
@click.option("--resource", help="Only this type of resource, such as workspaces.")
@WORKSPACE_OPTION
@click.option(
    "--limit", type=click.IntRange(1, MAX_AUDIT_ROWS), default=DEFAULT_AUDIT_ROWS, show_default=True, help="Most rows."
)
@JSON_OPTION
def audit(url: str, api_key: str, **options: Any) -> None:  # noqa: ANN401 - its options
    """List the newest entries of the audit log: who changed what."""
    filters = {"action": options["action"], "resource_type": options["resource"], "workspace_id": options["workspace"]}
    with open_remote(url, api_key) as remote:
        rows = remote.iter_newest(_list_path("/v1/audit-logs", filters), options["limit"], "records")
        _print_rows(rows, AUDIT_COLUMNS, as_json=options["as_json"])


@click.group()
def keys() -> None:
    """List, create, rotate and delete keys."""


@keys.command("list", epilog="Example: penstock keys list --workspace ws-team-a-1f2e3d")
@with_connection_options
@WORKSPACE_OPTION
@JSON_OPTION
def list_keys(url: str, api_key: str, workspace: str | None, *, as_json: bool) -> None:
    """List keys."""
    _list_rows((url, api_key), _list_path("/v1/api-keys", {"workspace_id": workspace}), KEY_COLUMNS, as_json=as_json)


@keys.command(
    "create", epilog='Example: penstock keys create "my app" --workspace ws-team-a-1f2e3d --scope completions.write'
)
@with_connection_options
@click.argument("name")
@click.option("--workspace", help="Workspace of the key: id or slug; without it the key belongs to the organisation.")
@click.option("--user", help="Id of the user who owns the key.")
@click.option("--scope", "scopes", multiple=True, required=True, help="Scope of the key; may be repeated.")
@prints_field("key")
def create_key(
    url: str, api_key: str, name: str, workspace: str | None, user: str | None, scopes: tuple[str, ...]
) -> dict[str, Any]:
    """Create a key and print it; it is not shown again."""
    kind = f"{'workspace' if workspace else 'organisation'}/{'user' if user else 'service'}"
    body = {"name": name, "scopes": list(scopes), "workspace_id": workspace, "user_id": user}
    with open_remote(url, api_key) as remote:
        return remote.request("POST", f"/v1/api-keys/{kind}", _without_empty(body))


@keys.command("rotate", epilog="Example: penstock keys rotate 0199aaaa-0000-7000-8000-000000000001")
@with_connection_options
@click.argument("key_id")
@prints_field("key")
def rotate_key(url: str, api_key: str, key_id: str) -> dict[str, Any]:
    """Rotate a key and print the new one; the old one stays valid until the transition ends."""
    with open_remote(url, api_key) as remote:
        rotated = remote.request("POST", f"/v1/api-keys/{quote_path_segment(key_id)}/rotate", {})
        click.echo(f"the old key is valid until {rotated['key_transition_expires_at']}", err=True)
        return rotated


@keys.command("delete", epilog="Example: penstock keys delete 0199aaaa-0000-7000-8000-000000000001")
@with_connection_options
@click.argument("key_id")
@JSON_OPTION
def delete_key(url: str, api_key: str, key_id: str, *, as_json: bool) -> None:
    """Delete a key."""
    with open_remote(url, api_key) as remote:
        remote.request("DELETE", f"/v1/api-keys/{quote_path_segment(key_id)}")
    if as_json:
        print_json({"deleted": key_id})


@click.group()
def config() -> None:
    """List, show, save and delete routing configs."""


@config.command("list", epilog="Example: penstock config list --json")
@with_connection_options
@WORKSPACE_OPTION
@JSON_OPTION
def list_configs(url: str, api_key: str, workspace: str | None, *, as_json: bool) -> None:
    """List configs."""
    _list_rows((url, api_key), _list_path("/v1/configs", {"workspace_id": workspace}), CONFIG_COLUMNS, as_json=as_json)


@config.command("show", epilog="Example: penstock config show pc-main-1f2e3d")
@with_connection_options
@click.argument("slug")
def show_config(url: str, api_key: str, slug: str) -> None:
    """Print a config as JSON."""
    with open_remote(url, api_key) as remote:
        config: str = remote.request("GET", f"/v1/configs/{quote_path_segment(slug)}")["config"]
        click.echo(msgspec.json.format(config, indent=2))


@config.command("save", epilog="Example: penstock config save config.json --name main --workspace ws-team-a-1f2e3d")
@with_connection_options
@click.argument("file", type=click.File("rb"))
@click.option("--slug", help="Config to update with a new version.")
@click.option("--name", help="Name of a new config.")
@click.option("--workspace", help="Workspace of a new config: id or slug.")
@prints_field("slug")
def save_config(
    url: str,
    api_key: str,
    file: Any,  # noqa: ANN401 - click says no more
    slug: str | None,
    name: str | None,
    workspace: str | None,
) -> dict[str, Any]:
    """Save a config from a JSON file (`-` for standard input) and print its slug."""
    if bool(slug) == bool(name):
        raise click.UsageError("give either --slug or --name")
    try:
        content = msgspec.json.decode(file.read())
    except msgspec.DecodeError as error:
        message = f"{file.name} is not JSON: {error}"
        raise SettingsError(message) from None
    with open_remote(url, api_key) as remote:
        if slug:
            saved = remote.request("PUT", f"/v1/configs/{quote_path_segment(slug)}", {"config": content})
            return {"slug": slug, **saved}
        body = {"name": name, "config": content, **({"workspace_id": workspace} if workspace else {})}
        return remote.request("POST", "/v1/configs", body)


@config.command("delete", epilog="Example: penstock config delete pc-main-1f2e3d")
@with_connection_options
@click.argument("slug")
@JSON_OPTION
def delete_config(url: str, api_key: str, slug: str, *, as_json: bool) -> None:
    """Delete a config that no key uses as its default any more."""
    _delete((url, api_key), "/v1/configs", slug, as_json=as_json)


COMMANDS = (workspaces, users, integrations, providers, keys, config, audit)
