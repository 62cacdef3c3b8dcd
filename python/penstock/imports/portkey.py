"""Importer of Portkey. Reads configs, virtual keys, integrations, providers and prompts from JSON files, or from
responses of Portkey's API.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from penstock import engine
from penstock.errors import PenstockError
from penstock.ids import PROVIDER_ALIASES, SLUG_PATTERN, slugify
from penstock.imports.findings import EMPTY_MESSAGE, Ledger, Node
from penstock.imports.output import ImportedState
from penstock.imports.portkey_configs import CLEAR_TEXT_MESSAGE, read_config
from penstock.imports.portkey_limits import read_rate_limits, read_usage_limits
from penstock.imports.state import StateBuilder, unused_slug
from penstock.integrations.provider_options import check_partial_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.imports.source import Source

JsonObject = dict[str, Any]

WORKSPACE_SLUG, WORKSPACE_NAME = "portkey", "Portkey"
MAX_NAME_CHARS, MAX_NOTE_CHARS = 255, 2000
INFORMATION = frozenset(
    [
        "object",
        "id",
        "created_at",
        "last_updated_at",
        "updated_at",
        "organisation_id",
        "workspace_id",
        "workspace_name",
        "owner_id",
        "updated_by",
        "created_by",
        "version_id",
        "masked_key",
        "masked_api_key",
        "reset_usage",
        "last_reset_at",
        "status",
        "total",
        "success",
        "has_more",
        "collection_id",
        "prompt_version",
        "prompt_version_id",
        "prompt_version_status",
        "prompt_version_description",
        "default_version",
        "latest_version",
        "variable_components",
        "template_metadata",
        "prompt_metadata",
        "tags",
        "type",
        "last_published_at",
    ]
)
MANUAL_LISTS = {
    "api_keys": "Portkey does not show its keys; create keys, and give them to the clients",
    "guardrails": "create the guardrails, see guardrails.md",
    "prompt_partials": "create the partials, see prompts.md",
    "partials": "create the partials, see prompts.md",
    "labels": "create the labels, see prompts.md",
    "collections": "create the collections, see prompts.md",
    "users": "invite the users",
    "members": "invite the users",
    "policies": "create the policies, see policies.md",
    "usage_limits_policies": "create the policies, see policies.md",
    "rate_limits_policies": "create the policies, see policies.md",
    "secret_references": "create the secret references",
    "mcp_servers": "MCP servers are not imported",
}
VIRTUAL_KEY_NAMES = ("virtual_key", "virtualKey")
# Lists of objects in the order in which they are read. Providers follow integrations, because they refer to them.
LISTS = ("integrations", "providers", "virtual_keys", "configs", "prompts")
KIND_OF_OBJECT = {
    "virtual-key": "virtual_keys",
    "integration": "integrations",
    "provider": "providers",
    "config": "configs",
    "prompt": "prompts",
    "api-key": "api_keys",
    "guardrail": "guardrails",
}
AZURE_FIELDS = ("apiVersion", "resourceName", "deploymentName", "deploymentConfig")
SLUG = re.compile(SLUG_PATTERN)


def import_portkey(sources: Sequence[Source]) -> ImportedState:
    """Returns the state document and the findings. If a file is a config itself, the config is named after the file."""
    ledger = Ledger(sources)
    importer = _Importer()
    for root, source in zip(ledger.roots(), sources, strict=True):
        importer.read_root(root, PurePath(source.name).stem)
    importer.report_missing_providers()
    return ImportedState(importer.state.build(has_providers=True), ledger.findings())


class _Importer:
    """Fills the state from all sources. Integrations belong to the organisation, everything else to a workspace."""

    def __init__(self) -> None:
        self.state = StateBuilder()
        self._workspace = self.state.add_workspace(WORKSPACE_SLUG, WORKSPACE_NAME)
        self._integrations: dict[str, str] = {}
        # Values that name a virtual key or a provider, with their workspaces.
        self._references: list[tuple[Node, JsonObject]] = []
        self._providers = {item["slug"] for item in engine.catalogue()}
        self._readers: dict[str, Callable[[Node], None]] = {
            "integrations": self._read_integration,
            "providers": self._read_provider,
            "virtual_keys": self._read_virtual_key,
            "configs": self._read_config_row,
            "prompts": self._read_prompt,
        }

    def read_root(self, root: Node, stem: str) -> None:
        """Reads a file: a list of objects, an export with several lists, or one config."""
        if root.is_list or (root.is_mapping and root.value.get("object") == "list"):
            self._read_list(root, None)
            return
        if not root.is_mapping or not root.value:
            root.report_unsupported(
                "must be a mapping or a list" if root.value or not root.is_mapping else EMPTY_MESSAGE
            )
            return
        names = root.value.keys()
        if workspaces := root.child("workspaces"):
            for workspace in workspaces.items():
                self._read_workspace(workspace)
        if names & {*LISTS, *MANUAL_LISTS, "workspaces"}:
            self._read_lists(root)
        elif "config" in names and names & {"name", "slug"}:
            self._read_config_row(root)
        elif config := read_config(root):
            self._add_config(stem, stem, config)
            self._references += [(leaf, self._workspace) for leaf in _iter_provider_names(root)]

    def report_missing_providers(self) -> None:
        """Reports names of virtual keys and providers that no source contains."""
        for node, workspace in self._references:
            known = {row["slug"] for row in (*workspace["virtual_keys"], *workspace["providers"])}
            if str(node.value).removeprefix("@") not in known:
                node.report_manual("no imported virtual key or provider has this slug; create it")

    def _read_workspace(self, node: Node) -> None:
        outer = self._workspace
        name, slug = (_text(node, field) for field in ("name", "slug"))
        if name is None:
            node.report_unsupported("a workspace needs a name")
            return
        self._workspace = self.state.add_workspace(self.state.unused_workspace_slug(slug or name), name)
        self._read_lists(node)
        self._workspace = outer

    def _read_lists(self, root: Node) -> None:
        for name in LISTS:
            if listed := root.child(name):
                self._read_list(listed, name)
        for field in root.fields():
            if field.name in MANUAL_LISTS:
                field.report_manual(MANUAL_LISTS[field.name])
            elif field.name in INFORMATION and not (field.is_list or field.is_mapping):
                field.report_approximate("information only")

    def _read_list(self, listed: Node, kind: str | None) -> None:
        """Reads the objects of a list, or of a response with a list in `data`."""
        if listed.is_mapping:
            for field in listed.fields():
                if field.name == "data":
                    self._read_list(field, kind)
                elif field.name in INFORMATION:
                    field.report_approximate("information only")
            return
        for item in listed.items():
            object_kind = kind or _kind_of(item)
            if object_kind in MANUAL_LISTS:
                item.report_manual(MANUAL_LISTS[object_kind])
            elif object_kind is None or not item.is_mapping:
                item.report_unsupported("is no virtual key, integration, provider, config or prompt")
            else:
                self._readers[object_kind](item)
                for field in item.fields():
                    if field.name in INFORMATION:
                        field.report_approximate("information only")

    def _slug(self, node: Node, name: str, used: list[JsonObject]) -> str:
        """Returns the slug of an object. If it is not allowed, or already used, returns another one."""
        parameters = [row["slug"] for row in used]
        field = node.child("slug")
        text = field.text() if field else None
        if field and text and SLUG.match(text) and text not in parameters:
            field.report_exact()
            return text
        if field:
            field.report_approximate("another slug, because this one is not allowed or occurs twice")
        return unused_slug(slugify(name), parameters)

    def _provider_name(self, node: Node) -> str | None:
        for name in ("provider", "ai_provider_name", "ai_provider_id", "ai_provider"):
            if field := node.child(name):
                text = field.text() or ""
                provider = PROVIDER_ALIASES.get(text, text)
                if provider in self._providers:
                    field.report_exact()
                    return provider
                field.report_unsupported("is no provider here, see providers.md")
                node.report_unsupported("its provider does not exist here, so it is left out")
                return None
        node.report_unsupported("needs the name of its provider")
        return None

    def _key(self, node: Node, slug: str) -> str:
        """Returns the credential. If it is missing or masked, returns a reference to an environment variable."""
        field = node.child("key") or node.child("api_key")
        text = field.text() if field else None
        if field and text and "*" not in text:
            field.report_exact(CLEAR_TEXT_MESSAGE)
            return text
        variable = f"PORTKEY_{slug.upper().replace('-', '_')}_KEY"
        message = f"the credential is not in the file; set the environment variable {variable}"
        if field:
            field.report_manual(message)
        else:
            own = node.child("slug")
            # If the slug was replaced, its node already has a message about that, so the name gets this message.
            described = own if own and own.value == slug else node.child("name") or own or node
            described.report_manual(message)
        return f"${{{variable}}}"

    def _options(self, node: Node, provider: str) -> JsonObject:
        options: JsonObject = {}
        for name in ("model_config", "configurations"):
            for field in part.fields() if (part := node.child(name)) else ():
                options[field.name] = field.value
                self._check_option(field, field.name, provider, options)
        for name in AZURE_FIELDS:
            if field := node.child(name):
                options[name] = field.value
                self._check_option(field, name, provider, options)
        return options

    def _check_option(self, field: Node, name: str, provider: str, options: JsonObject) -> None:
        """Keeps an option that the provider has, and drops any other."""
        try:
            check_partial_options("configurations", provider, {name: field.value}, AZURE_FIELDS)
        except PenstockError:
            del options[name]
            field.report_unsupported(f"is no valid option of {provider}, see providers.md")
        else:
            field.report_exact("an option; copied in clear if it is a secret")

    def _limits(self, node: Node, row: JsonObject) -> None:
        if (field := node.child("usage_limits")) and (limits := read_usage_limits(field)):
            row["usage_limits"] = limits
        if (field := node.child("rate_limits")) and (rates := read_rate_limits(field)):
            row["rate_limits"] = rates
        if (field := node.child("expires_at")) and (end := field.text()):
            field.report_exact()
            row["expires_at"] = end
        for name in ("note", "description"):
            if (field := node.child(name)) and (text := field.text() if field.value != "" else None):
                field.report_exact()
                row["note" if "provider" in row or "integration_id" in row else name] = text[:MAX_NOTE_CHARS]
            elif field:
                field.report_exact("empty")
        if field := node.child("secret_mappings"):
            if field.value == []:
                field.report_exact()
            else:
                field.report_manual("create the secret references, and set secret_mappings")

    def _read_virtual_key(self, node: Node) -> None:
        name = _name(node)
        provider = self._provider_name(node)
        if provider is None:
            return
        used = [*self._workspace["virtual_keys"], *self._workspace["providers"]]
        slug = self._slug(node, name, used)
        row: JsonObject = {"slug": slug, "name": name, "provider": provider, "key": self._key(node, slug)}
        if options := self._options(node, provider):
            row["model_config"] = options
        self._limits(node, row)
        self._workspace["virtual_keys"].append(row)

    def _read_integration(self, node: Node) -> None:
        name = _name(node)
        provider = self._provider_name(node)
        if provider is None:
            return
        slug = self._slug(node, name, self.state.integration_rows())
        row: JsonObject = {"slug": slug, "name": name, "ai_provider_id": provider, "key": self._key(node, slug)}
        if options := self._options(node, provider):
            row["configurations"] = options
        self._limits(node, row)
        self.state.add_integration_row({field: row[field] for field in row if "limits" not in field})
        for identifier in ("id", "slug"):
            if field := node.child(identifier):
                self._integrations[str(field.value)] = slug
        for field in ("models", "workspaces", "global_workspace_access", "global_workspace_access_settings"):
            if item := node.child(field):
                item.report_manual("set the models and the workspaces of the integration")

    def _read_provider(self, node: Node) -> None:
        name = _name(node)
        field = node.child("integration_id") or node.child("integration_slug")
        integration = self._integrations.get(str(field.value)) if field else None
        if integration is None:
            node.report_manual("its integration is not in the files; create the provider")
            return
        if field:
            field.report_exact()
        slug = self._slug(node, name, self._workspace["providers"])
        row: JsonObject = {"slug": slug, "name": name, "integration_id": integration}
        self._limits(node, row)
        self._workspace["providers"].append(row)

    def _read_config_row(self, node: Node) -> None:
        content = node.child("config")
        if content is None:
            node.report_unsupported("needs the field config")
            return
        config = read_config(content)
        if config is None:
            return
        name = _name(node)
        slug = self._slug(node, name, self._workspace["configs"])
        row = self._add_config(slug, name, config)
        self._references += [(leaf, self._workspace) for leaf in _iter_provider_names(content)]
        for field in node.fields():
            if field.name == "is_default":
                field.report_exact()
                is_first = not any(item.get("is_default") for item in self._workspace["configs"])
                if field.value == 1 and is_first:
                    row["is_default"] = 1
            elif field.name == "status" and field.value == "archived":
                row["status"] = "archived"
            elif field.name in INFORMATION:
                field.report_approximate("information only")

    def _add_config(self, slug: str, name: str, config: JsonObject) -> JsonObject:
        used = [row["slug"] for row in self._workspace["configs"]]
        matched = slug if SLUG.match(slug) and slug not in used else unused_slug(slugify(slug), used)
        row: JsonObject = {"slug": matched, "name": name[:MAX_NAME_CHARS], "config": config}
        self._workspace["configs"].append(row)
        return row

    def _read_prompt(self, node: Node) -> None:
        name = _name(node)
        template, provider = _text(node, "string"), _text(node, "virtual_key")
        if template is None or provider is None:
            node.report_manual("a prompt needs string and virtual_key; create it, see prompts.md")
            return
        row: JsonObject = {"slug": self._slug(node, name, self._workspace["prompts"]), "name": name}
        row |= {"string": template, "virtual_key": provider.removeprefix("@"), "parameters": {}}
        if reference := node.child("virtual_key"):
            self._references.append((reference, self._workspace))
        for field_name, kind in PROMPT_FIELDS.items():
            if field := node.child(field_name):
                if isinstance(field.value, kind):
                    field.report_exact()
                    row[field_name] = field.value
                else:
                    field.report_unsupported("has another type than a prompt here")
        self._workspace["prompts"].append(row)


def _iter_provider_names(node: Node) -> Iterator[Node]:
    """Yields the values of a config that name a virtual key or a saved provider."""
    if node.is_mapping:
        for field in node.fields():
            is_name = isinstance(field.value, str) and field.value
            if is_name and (field.name in VIRTUAL_KEY_NAMES or (field.name == "provider" and field.value[0] == "@")):
                yield field
            else:
                yield from _iter_provider_names(field)
    elif node.is_list:
        for item in node.items():
            yield from _iter_provider_names(item)


PROMPT_FIELDS: dict[str, Any] = {
    "parameters": dict,
    "model": str,
    "functions": list,
    "tools": list,
    "tool_choice": (dict, str),
    "is_raw_template": (bool, int),
}


def _kind_of(node: Node) -> str | None:
    """Returns the list to which an object belongs, from its type or its fields."""
    if not node.is_mapping:
        return None
    names = node.value.keys()
    if (kind := KIND_OF_OBJECT.get(str(node.value.get("object")))) or not names:
        return kind
    for field, kind in (("config", "configs"), ("string", "prompts"), ("integration_id", "providers")):
        if field in names:
            return kind
    if "ai_provider_id" in names:
        return "integrations"
    return "virtual_keys" if names & {"provider", "ai_provider_name"} else None


def _name(node: Node) -> str:
    """Returns the name of an object, or else its slug."""
    return (_text(node, "name") or _text(node, "slug") or "imported")[:MAX_NAME_CHARS]


def _text(node: Node, name: str) -> str | None:
    field = node.child(name)
    text = field.text() if field else None
    if field and text:
        field.report_exact()
    return text
