"""Prompts of the tests: bodies with all fields, and how they are created."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.unit.resources.management_api import ManagementClient

MESSAGES = [{"role": "user", "content": "Hello {{name}}"}]
TEMPLATE: dict[str, Any] = {
    "string": json.dumps(MESSAGES),
    "parameters": {"max_tokens": 64, "messages": {"user": "x"}},
    "virtual_key": "my-openai",
    "model": "gpt-4o",
    "functions": [{"name": "f", "parameters": {"type": "object"}}],
    "tools": [{"type": "function", "function": {"name": "g"}}],
    "tool_choice": {"type": "function", "function": {"name": "g"}},
    "template_metadata": {"editor": "console"},
    "is_raw_template": True,
}
SMALL: dict[str, Any] = {"string": "Hello {{name}}", "parameters": {}, "virtual_key": "my-openai", "model": "gpt-4o"}
SCOPES = [f"prompts.{verb}" for verb in ("create", "read", "update", "delete", "list")]


async def create_prompt(api: ManagementClient, workspace_id: str, **fields: object) -> Any:
    """Creates a small prompt in a workspace; returns the response."""
    return await api.request_ok("POST", "prompts", {"name": "p", **SMALL, "workspace_id": workspace_id, **fields})


async def create_partial(api: ManagementClient, workspace_id: str, slug: str, text: str = "text") -> Any:
    """Creates a partial with a slug; returns the response."""
    body = {"name": slug, "slug": slug, "string": text, "workspace_id": workspace_id}
    return await api.request_ok("POST", "prompts/partials", body)


async def add_version(api: ManagementClient, prompt: str, text: str, **fields: object) -> str:
    """Adds a version to a prompt; returns its id."""
    body = {"string": text, "patch": True, **fields}
    return (await api.request_ok("PUT", f"prompts/{prompt}", body))["prompt_version_id"]


async def find_label(api: ManagementClient, workspace_id: str, name: str) -> str:
    """Returns the id of a label."""
    listed = await api.request_ok("GET", f"labels?workspace_id={workspace_id}&search={name}")
    return next(row["id"] for row in listed["data"] if row["name"] == name)


async def put_label(api: ManagementClient, prompt: str, version_id: str, label: str | None) -> None:
    """Puts a label on a version, or removes all labels from it."""
    assert await api.request_ok("PUT", f"prompts/{prompt}/versions/{version_id}", {"label_id": label}) == {}
