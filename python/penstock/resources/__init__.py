"""The management API: a module's name is its path under /v1, and the file being there is all it takes."""

from __future__ import annotations

import os

# The few that live outside /v1. What has no path here is never forwarded from the network.
CUSTOM_PREFIXES: dict[str, tuple[str, ...]] = {
    "schema": ("/schema",),
    "health": ("/v1/health", "/health", "/v1/admin/health", "/admin/health"),
    "metrics": ("/metrics", "/dataservice/metrics"),
    "internal": (),
    "organisation": ("/v1/admin/organisation", "/v2/admin/organisation", "/v1/v2/admin/organisation"),
    "users": ("/v1/admin/users",),
    "user_invites": ("/v1/admin/users/invites",),
    "workspaces": ("/v1/admin/workspaces", "/v1/workspaces", "/v2/workspaces", "/v1/v2/workspaces"),
    "integrations": ("/v1/integrations", "/v2/integrations", "/v1/v2/integrations"),
    "model_configs": ("/v1/model-configs", "/model-configs"),
    "pricing": ("/v1/pricing", "/pricing"),
    "batches": ("/v1/batches", "/v2/batches"),
    "api_keys": ("/v1/api-keys", "/v2/api-keys", "/v1/v2/api-keys"),
}
# All others stand on the store, and are not loaded where there is none.
STORELESS_MODULES = ("health", "internal", "metrics", "model_configs", "pricing", "schema", "version")
# Paths under /v1 that providers have too: the engine itself knows which requests are meant for us.
PROVIDER_SHARED_MODULES = ("batches", "files", "models")
# Of these, those that are asked by OpenAI's SDKs.
OPENAI_MODULES = ("batches", "files")


def module_names() -> list[str]:
    """List the modules, dotted, without importing any."""
    found: list[str] = []
    top = os.path.dirname(__file__)
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        inside = os.path.relpath(folder, top).replace(os.sep, ".")
        prefix = "" if inside == "." else f"{inside}."
        found += [prefix + name[:-3] for name in sorted(files) if name.endswith(".py") and not name.startswith("_")]
    return found


def path_prefixes(name: str) -> tuple[str, ...]:
    """Give the paths that a module answers below."""
    return CUSTOM_PREFIXES.get(name, (f"/v1/{name.replace('.', '/').replace('_', '-')}",))


def forwarded_prefixes() -> list[str]:
    """List the path prefixes that the edge forwards to the control process."""
    every = ((name, prefix) for name in module_names() for prefix in path_prefixes(name))
    return [prefix for name, prefix in every if name not in PROVIDER_SHARED_MODULES or not prefix.startswith("/v1/")]


def uses_openai_errors(path: str) -> bool:
    """Whether who asks for a path reads errors as OpenAI's SDKs do."""
    every = [prefix for name in OPENAI_MODULES for prefix in path_prefixes(name)]
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in every)
