"""What roles may see and change, as the flags by which clients know it; the scopes of each role decide."""

from __future__ import annotations

from penstock.caller import of_member, of_person

VIEWS = {
    "Logs": "logs.view",
    "LogMetadata": "logs.list",
    "AllData": "logs.view",
    "ApiKeys": "workspace_user_api_keys.list",
    "Configs": "configs.list",
    "Prompts": "prompts.list",
    "Analytics": "analytics.view",
    "Guardrails": "guardrails.list",
    "VirtualKeys": "virtual_keys.list",
}
WRITES = {
    "ApiKeys": "workspace_user_api_keys.create",
    "Configs": "configs.create",
    "Prompts": "prompts.create",
    "Guardrails": "guardrails.create",
    "VirtualKeys": "virtual_keys.create",
}
MANAGERS_WRITES = {
    **WRITES,
    "WsUsers": "workspace_users.create",
    "WsIntegrations": "workspace_integrations.create",
    "McpServers": "mcp_servers.create",
    "WsMcpIntegrations": "workspace_mcp_integrations.create",
}


def flags() -> dict[str, bool]:
    """Say what members and managers of a workspace may, and admins of the organisation."""
    members, managers, admins = of_member("member"), of_member("manager"), of_person("admin")
    return {
        **{f"membersView{what}": scope in members for what, scope in VIEWS.items()},
        **{f"managersView{what}": scope in managers for what, scope in VIEWS.items()},
        **{f"membersWrite{what}": scope in members for what, scope in WRITES.items()},
        **{f"managersWrite{what}": scope in managers for what, scope in MANAGERS_WRITES.items()},
        "managersUpdateWs": "workspaces.update" in managers,
        **{f"organisationAdminsView{what}": VIEWS[what] in admins for what in ("Logs", "LogMetadata")},
    }
