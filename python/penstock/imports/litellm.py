"""Importer of LiteLLM. Converts its configuration files, and optionally the rows of its database, to a state
document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.extras import describe_extra
from penstock.imports import litellm_messages as messages
from penstock.imports.findings import Ledger, Node
from penstock.imports.litellm_deployment import Deployment, read_deployment
from penstock.imports.litellm_keys import KeyImporter
from penstock.imports.litellm_routing import ModelRouting
from penstock.imports.litellm_settings import SettingsReader
from penstock.imports.output import ImportedState
from penstock.imports.state import StateBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.imports.source import Source

JsonObject = dict[str, Any]

WORKSPACE_SLUG, WORKSPACE_NAME = "litellm", "LiteLLM"
SETTINGS_SECTIONS = ("litellm_settings", "general_settings", "router_settings")
# Database tables with models and credentials. `litellm_keys` has the names of the other tables.
MODEL_TABLE, CREDENTIAL_TABLE = "LiteLLM_ProxyModelTable", "LiteLLM_CredentialsTable"


def import_litellm(sources: Sequence[Source]) -> ImportedState:
    """Returns the state document and the findings for configuration files, and for rows of a database.

    The source of a database maps the names of its tables to lists of rows.
    """
    ledger = Ledger(sources)
    files = [root for root in ledger.roots() if not root.is_table_row]
    database = [root for root in ledger.roots() if root.is_table_row]
    state = StateBuilder()
    credentials = {**_read_credentials(files, "credential_list"), **_read_credentials(database, CREDENTIAL_TABLE)}
    deployments: list[Deployment] = []
    for root in files:
        deployments += _read_models(root, "model_list", credentials, state)
    for root in database:
        deployments += _read_models(root, MODEL_TABLE, credentials, state)
    settings = _read_settings(files)
    _read_other_sections(files, {source.name for source in sources})
    routing = ModelRouting(deployments, settings.fallbacks(), settings.aliases, settings.root_options())
    if missing := settings.missing_models(routing.is_known):
        _report_missing_models(files, missing)
    _report_unused_fallbacks(files, lambda name: routing.is_known(name) or name in settings.aliases)
    importer = KeyImporter(state, routing)
    importer.add_workspace(WORKSPACE_SLUG, WORKSPACE_NAME, usage_limits=settings.usage_limits)
    for root in database:
        importer.import_tables(root)
    return ImportedState(state.build(), ledger.findings())


def _read_credentials(roots: Iterable[Node], table: str) -> dict[str, Node]:
    """Returns the credentials of a section or a table by their names."""
    sections: dict[str, Node] = {}
    for row in _iter_rows(roots, table):
        name = row.child("credential_name")
        text = name.text() if name else None
        if name is None or text is None:
            row.report_unsupported("a credential needs credential_name")
            continue
        name.report_exact("models refer to it")
        sections[text] = row
        for field in row.fields():
            if field.name in {
                "credential_info",
                "credential_id",
                "created_at",
                "created_by",
                "updated_at",
                "updated_by",
            }:
                field.report_approximate("information only")
    return sections


def _read_models(root: Node, table: str, credentials: dict[str, Node], state: StateBuilder) -> Iterator[Deployment]:
    for row in _iter_rows([root], table):
        blocked = row.child("blocked")
        if blocked and blocked.value is True:
            row.report_exact("the model is blocked, so it is left out")
            continue
        for name in ("blocked", "model_id", "created_at", "created_by", "updated_at", "updated_by"):
            if field := row.child(name):
                field.report_approximate("information only")
        if deployment := read_deployment(row, credentials, state):
            yield deployment


def _iter_rows(roots: Iterable[Node], table: str) -> Iterator[Node]:
    for root in roots:
        if listed := root.child(table):
            for row in listed.items():
                if row.is_encrypted:
                    row.report_manual(f"encrypted with SecretBox, which {describe_extra('import')}; then import again")
                elif row.is_mapping:
                    yield row
                else:
                    row.report_unsupported("must be a mapping")


def _read_settings(roots: Sequence[Node]) -> SettingsReader:
    settings = SettingsReader()
    for name in SETTINGS_SECTIONS:
        for root in roots:
            if section := root.child(name):
                settings.read_section(section)
    return settings


def _read_other_sections(roots: Iterable[Node], sources: set[str]) -> None:
    for root in roots:
        for section in root.fields() if root.is_mapping else ():
            if section.name == "include":
                for item in section.items():
                    text = item.text()
                    if text and any(name == text or name.endswith(f"/{text}") for name in sources):
                        item.report_exact("given as a source")
                    elif text:
                        item.report_manual("give this file as another source of the command")
            elif section.name in messages.TOP_LEVEL:
                section.report_manual(messages.TOP_LEVEL[section.name])
        if not root.is_mapping:
            root.report_unsupported("a configuration must be a mapping with model_list")


def _report_missing_models(roots: Iterable[Node], missing: Sequence[str]) -> None:
    """Marks the fallbacks and aliases that name one of the missing models."""
    for root in roots:
        for name in SETTINGS_SECTIONS:
            section = root.child(name)
            for field in section.fields() if section and section.is_mapping else ():
                if field.name.endswith("fallbacks") or field.name == "model_group_alias":
                    _mark_missing(field, missing)


def _report_unused_fallbacks(roots: Iterable[Node], is_known: Callable[[str], bool]) -> None:
    """Marks the fallbacks of models that do not exist. The name `*` stands for all models."""
    for root in roots:
        for name in SETTINGS_SECTIONS:
            section = root.child(name)
            for field in section.fields() if section and section.is_mapping else ():
                for entry in field.items() if field.name.endswith("fallbacks") and field.is_list else ():
                    for item in entry.fields() if entry.is_mapping else ():
                        if item.name != "*" and not is_known(item.name):
                            item.report_manual("is the fallback of no model of model_list, so it is left out")


def _mark_missing(node: Node, missing: Sequence[str]) -> None:
    if isinstance(node.value, str) and node.value in missing:
        node.report_manual("names no model of model_list, so it is left out")
    elif node.is_list:
        for item in node.items():
            _mark_missing(item, missing)
    elif node.is_mapping:
        for item in node.fields():
            _mark_missing(item, missing)
