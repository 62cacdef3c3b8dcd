"""Virtual keys, teams, users and budgets of LiteLLM's database. A team becomes a workspace; keys stay valid unchanged,
because both gateways store the SHA-256 digest of a key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from penstock.imports.litellm_limits import read_budget, read_rates, read_spend
from penstock.imports.litellm_user_policies import add_user_policies
from penstock.imports.state import KEY_SCOPES, short_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.imports.findings import Node
    from penstock.imports.litellm_routing import ModelRouting
    from penstock.imports.state import StateBuilder

JsonObject = dict[str, Any]

TOKEN_TABLE, TEAM_TABLE, USER_TABLE = "LiteLLM_VerificationToken", "LiteLLM_TeamTable", "LiteLLM_UserTable"
BUDGET_TABLE, ORGANISATION_TABLE = "LiteLLM_BudgetTable", "LiteLLM_OrganizationTable"
MEMBERSHIP_TABLE, END_USER_TABLE = "LiteLLM_TeamMembership", "LiteLLM_EndUserTable"
# Tables that are not imported. The message of each describes what the user can do instead.
MANUAL_TABLES = {
    ORGANISATION_TABLE: "set limits of the workspaces; there is one organisation",
    "LiteLLM_ProjectTable": "set limits of the keys of the project",
    "LiteLLM_PromptTable": "create the prompts, see prompts.md",
    "LiteLLM_GuardrailsTable": "create the guardrails, see guardrails.md",
    "LiteLLM_MCPServerTable": "MCP servers are not imported",
}
SHA256_HEX = re.compile(r"[0-9a-f]{64}\Z")
HAS_ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)\Z")
EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}\Z")
# Team that LiteLLM assigns to the keys of its own user interface.
DASHBOARD_TEAM = "litellm-dashboard"
ALL_MODELS, TEAM_MODELS, NO_MODELS = "all-proxy-models", "all-team-models", "no-default-models"
MAX_METADATA_CHARS, MAX_METADATA_PAIRS, MAX_METADATA_KEY = 512, 60, 128
MAX_NAME_CHARS = 255
MAIN_CONFIG = "litellm"
INFORMATION_COLUMNS = frozenset(
    [
        "key_name",
        "created_at",
        "created_by",
        "budget_reset_at",
        "updated_at",
        "updated_by",
        "last_refreshed_at",
        "soft_budget_cooldown",
        "rotation_count",
        "last_rotation_at",
        "key_rotation_at",
        "last_active",
        "user_alias",
        "sso_user_id",
        "litellm_changed_by",
    ]
)
MANUAL_COLUMNS = {
    "max_parallel_requests": "there is no limit of concurrent requests; use a rate limits policy",
    "model_max_budget": "create usage limits policies with conditions on model",
    "budget_limits": "create usage limits policies with conditions on model",
    "permissions": "keys have scopes, see scopes.md",
    "allowed_routes": "keys have scopes, see scopes.md",
    "allowed_cache_controls": "set cache in the config",
    "aliases": "add the names to the conditions of a config",
    "config": "add a config, and set it as default of the key",
    "router_settings": "add a config, and set it as default of the key",
    "policies": "name guardrails in the config",
    "object_permission_id": "permissions for MCP servers and vector stores are not imported",
    "organization_id": "there is one organisation; set limits of the workspaces",
    "project_id": "set limits of the keys of the project",
    "agent_id": "agents are not imported",
    "access_group_ids": "add a config with the models of the group, and set it as default of the key",
    "model_spend": "usage is counted from the import on",
    "auto_rotate": "set rotation_policy of the key",
    "rotation_interval": "set rotation_policy of the key",
    "model_id": "add the aliases of the team to the conditions of its configs",
    "members_with_roles": "invitations are imported; add roles of members to the workspace",
    "team_member_permissions": "roles decide what members may do",
    "default_team_member_models": "add a config with these models, and set it as default of the keys",
    "allow_team_guardrail_config": "roles decide what members may do",
    "admins": "add members to the workspace",
    "members": "add members to the workspace",
    "password": "passwords are not imported; users set one with the invitation",
    "budget_fallbacks": "use a fallback in the config",
    "allowed_models": "add a config with these models, and set it as default of the keys",
}


class KeyImporter:
    """Adds workspaces, keys, invitations and policies to the state."""

    def __init__(self, state: StateBuilder, routing: ModelRouting) -> None:
        """Stores the state document that the methods extend, and the models to which configs route."""
        self._state, self._routing = state, routing
        self._workspaces: dict[str | None, JsonObject] = {}
        self._team_models: dict[str, Node | None] = {}
        self._blocked_teams: set[str] = set()
        self._emails: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}

    def add_workspace(self, slug: str, name: str, **fields: object) -> None:
        """Adds the workspace of keys without a team, with the config of all models."""
        present = {field: value for field, value in fields.items() if value}
        self._workspaces[None] = self._state.add_workspace(slug, name, **present)
        self._config_slug(self._workspaces[None], None)

    def import_tables(self, root: Node) -> None:
        """Reads the rows of all tables."""
        for table, message in MANUAL_TABLES.items():
            if rows := root.child(table):
                rows.report_manual(message)
        budgets = {str(row.value.get("budget_id")): row for row in _rows(root, BUDGET_TABLE)}
        used: set[str] = set()
        self._teams(root)
        self._users(root, budgets, used)
        self._members(root, budgets, used)
        self._end_users(root, budgets, used)
        for row in _rows(root, TOKEN_TABLE):
            self._import_key(row, budgets, used)
        for identifier, row in budgets.items():
            self._read_rest(row)
            if budget_node := row.child("budget_id"):
                budget_node.report_exact("keys and users refer to it")
            if identifier not in used:
                row.report_manual("no imported key or user has this budget; set usage_limits where it is needed")

    def _teams(self, root: Node) -> None:
        for row in _rows(root, TEAM_TABLE):
            identifier, alias = row.child("team_id"), row.child("team_alias")
            team = identifier.text() if identifier else None
            if identifier is None or team is None:
                row.report_unsupported("a team needs team_id")
                continue
            if _is_true(row.child("blocked")):
                row.report_exact("the team is blocked, so it and its keys are left out")
                self._blocked_teams.add(team)
                continue
            identifier.report_exact("keys of the team are in its workspace")
            name = (alias.text() if alias else None) or team
            if any(workspace["name"] == name for workspace in self._workspaces.values()):
                name = f"{name} {team[:8]}"
            slug = self._state.unused_workspace_slug(f"{self._workspaces[None]['slug']}-{name}")
            fields = {field: value for field, value in self._limits(row, row).items() if value}
            self._workspaces[team] = self._state.add_workspace(slug, name[:MAX_NAME_CHARS], **fields)
            if alias:
                alias.report_exact("name of the workspace")
            _read_unused_metadata(row)
            self._team_models[team] = row.child("models")
            self._config_slug(self._workspaces[team], self._allowed_models(row.child("models"), None))
            self._read_rest(row)

    def _users(self, root: Node, budgets: dict[str, Node], used: set[str]) -> None:
        default = self._workspaces[None]
        for row in _rows(root, USER_TABLE):
            identifier, email, role = (row.child(name) for name in ("user_id", "user_email", "user_role"))
            user = identifier.text() if identifier else None
            address = email.text() if email else None
            if identifier is None or user is None:
                row.report_unsupported("a user needs user_id")
                continue
            identifier.report_exact("metadata._user of the keys of the user")
            if email and address and EMAIL.match(address):
                self._emails[user] = address
                self._state.add_invitation(address, [default["slug"]])
                email.report_approximate("an invitation; passwords are not imported")
            elif email:
                email.report_manual("is no e-mail address; invite the user")
            if role:
                role.report_approximate("invited as a member; change the role where it is needed")
            if teams := row.child("teams"):
                teams.report_manual("add the user to the workspaces of the teams")
            if models := row.child("models"):
                models.report_manual("add a config with these models, and set it as default of the keys")
            limits_row = self._budget_of(row, budgets, used)
            add_user_policies(default, row, limits_row, self._emails.get(user, user), "user")
            _read_unused_metadata(row)
            self._read_rest(row)

    def _members(self, root: Node, budgets: dict[str, Node], used: set[str]) -> None:
        """Adds policies for members of teams that have a budget there."""
        for row in _rows(root, MEMBERSHIP_TABLE):
            user_node, team_node = row.child("user_id"), row.child("team_id")
            user, team = (node.text() if node else None for node in (user_node, team_node))
            if user_node is None or team_node is None or user is None or team not in self._workspaces:
                row.report_manual(
                    "names no imported team; create a policy with group_by metadata._user where it is needed"
                )
                continue
            team_node.report_exact("the workspace of the team")
            user_node.report_exact("metadata._user")
            limits_row = self._budget_of(row, budgets, used)
            add_user_policies(self._workspaces[team], row, limits_row, self._emails.get(user, user), "member")
            if total := row.child("total_spend"):
                total.report_approximate("information only")
            self._read_rest(row)

    def _end_users(self, root: Node, budgets: dict[str, Node], used: set[str]) -> None:
        """Adds policies for end users, whom clients name in `user` of a request."""
        for row in _rows(root, END_USER_TABLE):
            identifier = row.child("user_id")
            user = identifier.text() if identifier else None
            if identifier is None or user is None:
                row.report_unsupported("an end user needs user_id")
                continue
            if (blocked := row.child("blocked")) and _is_true(blocked):
                row.report_manual("the end user is blocked; reject the name before the gateway, or with a guardrail")
                continue
            identifier.report_exact("metadata._user, which is `user` of a request")
            limits_row = self._budget_of(row, budgets, used)
            add_user_policies(self._workspaces[None], row, limits_row, user, "end user")
            if alias := row.child("alias"):
                alias.report_approximate("information only")
            for name in ("allowed_model_region", "default_model"):
                if field := row.child(name):
                    field.report_manual("add a condition on metadata._user to the config")
            self._read_rest(row)

    def _import_key(self, row: Node, budgets: dict[str, Node], used: set[str]) -> None:
        token, team_node = row.child("token"), row.child("team_id")
        digest = token.text() if token else None
        team = team_node.text() if team_node else None
        reason = self._find_reason_to_omit(row, team)
        if reason:
            row.report_exact(reason)
            return
        if token is None or digest is None or not SHA256_HEX.match(digest):
            row.report_manual("token is no SHA-256 digest in hexadecimal; create a key")
            return
        if team not in self._workspaces:
            row.report_manual("the key belongs to a team that is not in the database; create a key")
            return
        token.report_exact("the digest by which the key is found, so the key stays valid")
        workspace = self._workspaces[team]
        if team_node:
            team_node.report_exact("the workspace of the team")
        limits_row = self._budget_of(row, budgets, used)
        key: JsonObject = {
            "name": self._key_name(row, digest, workspace["slug"]),
            "key_sha256": digest,
            "scopes": list(KEY_SCOPES),
            "defaults": self._defaults(row, workspace, team),
        }
        key |= {name: value for name, value in self._limits(row, limits_row).items() if value}
        if (expires := row.child("expires")) and (end := expires.text()):
            key["expires_at"] = end if HAS_ZONE.search(end) else f"{end}Z"
            expires.report_exact("expires_at")
        workspace["api_keys"].append(key)
        self._read_rest(row)

    @staticmethod
    def _limits(row: Node, limits_row: Node) -> JsonObject:
        """Returns the limits of a key or team. `limits_row` is the row with the limits: that of the key or team, or
        that of a budget.
        """
        usage = read_budget(limits_row)
        if limits_row is not row:
            read_budget(row)
        return {
            "usage_limits": usage,
            "rate_limits": read_rates(limits_row),
            "initial_usage": read_spend(row, usage),
        }

    def _find_reason_to_omit(self, row: Node, team: str | None) -> str:
        if _is_true(row.child("blocked")):
            return "the key is blocked, so it is left out"
        if team in self._blocked_teams:
            return "the team of the key is blocked, so it is left out"
        return "a key of a session of LiteLLM's interface, so it is left out" if team == DASHBOARD_TEAM else ""

    def _budget_of(self, row: Node, budgets: dict[str, Node], used: set[str]) -> Node:
        """Returns the row with the limits of a key: the key's own row if it has limits, else its budget."""
        budget_node = row.child("budget_id")
        budget = budgets.get(budget_node.text() or "") if budget_node else None
        if budget_node is None:
            return row
        if budget is None:
            budget_node.report_manual("the budget is not in the database; set usage_limits where it is needed")
            return row
        used.add(budget_node.value)
        budget_node.report_exact("usage limits and rate limits")
        has_own = any(row.child(name) for name in ("max_budget", "tpm_limit", "rpm_limit"))
        if has_own:
            budget_node.report_approximate("the limits of the row itself apply")
        return row if has_own else budget

    def _key_name(self, row: Node, digest: str, workspace: str) -> str:
        alias = row.child("key_alias")
        text = (alias.text() if alias else None) or f"LiteLLM key {digest[:8]}"
        if alias:
            alias.report_exact("name of the key")
        used = self._names.setdefault(workspace, set())
        name = text[:MAX_NAME_CHARS]
        if name in used:
            name = f"{text[: MAX_NAME_CHARS - 9]} {digest[:8]}"
        used.add(name)
        return name

    def _defaults(self, row: Node, workspace: JsonObject, team: str | None) -> JsonObject:
        models = row.child("models")
        names = self._allowed_models(models, self._team_models.get(team or ""))
        defaults: JsonObject = {"config_id": self._config_slug(workspace, names), "allow_config_override": False}
        metadata = dict(self._read_metadata(row))
        if (user := row.child("user_id")) and (text := user.text()):
            metadata["_user"] = self._emails.get(text, text)[:MAX_METADATA_CHARS]
            user.report_exact("metadata._user of every request")
        return {**defaults, **({"metadata": metadata} if metadata else {})}

    def _read_metadata(self, row: Node) -> Iterator[tuple[str, str]]:
        metadata = row.child("metadata")
        if metadata is None or not metadata.is_mapping:
            return
        for index, field in enumerate(metadata.fields()):
            is_text = isinstance(field.value, str) and len(field.value) <= MAX_METADATA_CHARS
            if is_text and len(field.name) <= MAX_METADATA_KEY and index < MAX_METADATA_PAIRS:
                field.report_exact("metadata of every request")
                yield field.name, cast("str", field.value)
            else:
                field.report_manual("set defaults.metadata of the key, or a policy")

    def _allowed_models(self, models: Node | None, team_models: Node | None) -> frozenset[str] | None:
        """Returns the model names that `models` allows; `None` means all."""
        if models is None or models.value == []:
            if models:
                models.report_exact("all models")
            return self._allowed_models(team_models, None) if team_models else None
        known = {*self._routing.groups, *self._routing.aliases}
        names: set[str] = set()
        for model in models.items():
            name = model.text() or ""
            grouped = {
                row.model_name for rows in self._routing.groups.values() for row in rows if name in row.access_groups
            }
            if name == ALL_MODELS:
                model.report_exact("all models")
                return None
            if name == TEAM_MODELS:
                model.report_exact("the models of the team")
                inherited = self._allowed_models(team_models, None) if team_models else None
                if inherited is None:
                    return None
                names |= inherited
            elif name in known or grouped or name == NO_MODELS or self._routing.find_pattern(name):
                model.report_exact("a config with the models of the key")
                names |= grouped | ({name} - {NO_MODELS} if not grouped or name in known else set())
            else:
                model.report_manual("names no imported model; add it to the config of the key")
        return frozenset(names)

    def _config_slug(self, workspace: JsonObject, names: frozenset[str] | None) -> str:
        """Returns the slug of the config for these models in a workspace, and adds the config if it is missing."""
        slug = MAIN_CONFIG if names is None else f"{MAIN_CONFIG}-{short_digest(sorted(names))}"
        if all(item["slug"] != slug for item in workspace["configs"]):
            title = "LiteLLM models" if names is None else f"LiteLLM models: {', '.join(sorted(names)) or 'none'}"
            config = self._routing.build_config(names)
            workspace["configs"].append({"slug": slug, "name": title[:MAX_NAME_CHARS], "config": config})
        return slug

    def _read_rest(self, row: Node) -> None:
        _read_information(row)
        for name, message in MANUAL_COLUMNS.items():
            if field := row.child(name):
                if field.value in ([], {}, False, "", 0):
                    field.report_exact("not set")
                else:
                    field.report_manual(message)
        if (metadata := row.child("metadata")) and metadata.value == {}:
            metadata.report_exact("not set")
        for name in ("budget_id", "team_id"):
            if (field := row.child(name)) and field.value == "":
                field.report_exact("not set")


def _read_information(row: Node) -> None:
    for name in INFORMATION_COLUMNS:
        if field := row.child(name):
            field.report_approximate("information only")
    if blocked := row.child("blocked"):
        blocked.report_exact("not blocked")


def _read_unused_metadata(row: Node) -> None:
    if (metadata := row.child("metadata")) and metadata.value != {}:
        metadata.report_manual("set defaults.metadata of the keys")


def _rows(root: Node, table: str) -> Iterator[Node]:
    rows = root.child(table)
    for row in rows.items() if rows else ():
        if row.is_mapping:
            yield row
        else:
            row.report_unsupported("must be a mapping")


def _is_true(node: Node | None) -> bool:
    return node is not None and node.value is True
