"""Paths of the management API. The name of a module in `penstock.resources` determines its path under /v1. Imports no
module of that package, because edge processes need the paths too.
"""

from __future__ import annotations

import os

RESOURCES_FOLDER = os.path.join(os.path.dirname(__file__), "resources")

# Path prefixes of modules whose paths are not /v1 followed by their name. A module with an empty tuple is not reachable
# from the network.
CUSTOM_PREFIXES: dict[str, tuple[str, ...]] = {
    "schema": ("/schema",),
    "console": ("/console",),
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
    "log_exports": ("/v1/logs/exports",),
    "rerating": ("/v1/admin/logs/rerate",),
    "api_keys": ("/v1/api-keys", "/v2/api-keys", "/v1/v2/api-keys"),
    **{
        f"policies.{name}": tuple(
            f"{version}/policies/{name.replace('_', '-')}" for version in ("/v1", "/v2", "/v1/v2")
        )
        for name in ("rate_limits", "usage_limits")
    },
    **{
        name: tuple(f"{version}/prompts{below}" for version in ("/v1", "/v2", "/v1/v2"))
        for name, below in (("prompts", ""), ("prompt_partials", "/partials"))
    },
}
# Modules that work without the store. All others are loaded only if a store is configured.
STORELESS_MODULES = ("console", "health", "internal", "metrics", "model_configs", "pricing", "schema", "version")
# Modules whose paths under /v1 also exist at providers. The engine selects the requests that are for the management
# API.
PROVIDER_SHARED_MODULES = ("batches", "files", "models")
# Modules with routes that SDKs of providers call, so that errors have the format of their API.
SDK_MODULES = ("batches", "files", "models")


def module_names() -> list[str]:
    """Returns the dotted names of all resource modules, without importing any."""
    names: list[str] = []
    for folder, folders, files in os.walk(RESOURCES_FOLDER):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        inside = os.path.relpath(folder, RESOURCES_FOLDER).replace(os.sep, ".")
        prefix = "" if inside == "." else f"{inside}."
        names += [prefix + name[:-3] for name in sorted(files) if name.endswith(".py") and not name.startswith("_")]
    return names


def path_prefixes(name: str) -> tuple[str, ...]:
    """Returns the path prefixes that a module serves."""
    return CUSTOM_PREFIXES.get(name, (f"/v1/{name.replace('.', '/').replace('_', '-')}",))


def forwarded_prefixes() -> list[str]:
    """Returns the path prefixes that the edge forwards to the control process."""
    every = ((name, prefix) for name in module_names() for prefix in path_prefixes(name))
    return [prefix for name, prefix in every if name not in PROVIDER_SHARED_MODULES or not prefix.startswith("/v1/")]


def uses_client_errors(path: str) -> bool:
    """Returns true if clients of a path expect errors in the format of their own API."""
    return any(is_path_of(name, path) for name in SDK_MODULES)


def is_path_of(name: str, path: str) -> bool:
    """Returns true if a module serves a path."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in path_prefixes(name))
