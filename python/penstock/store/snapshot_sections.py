"""Snapshot sections: partitions of the data that the data plane loads from the store. Each change names its section, so
that only that section is queried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Table

# Names of special sections: all data, the data of small tables, and all sections of limits.
ALL_SECTIONS, SMALL_TABLES, LIMITS = "*", "rest", "limits"
# Member of the snapshot that contains the rows of a table. These tables may be large, so each has 256 sections of
# similar size, by the last two digits of the random row ids.
MEMBER_BY_TABLE = {
    "api_keys": "keys",
    "configs": "configs",
    "guardrails": "guardrails",
    "prompt_partials": "partials",
    "prompts": "prompts",
}
# Small tables that share one section. Nothing in the large tables depends on them.
SHARED_SECTION_TABLES = (
    "integration_models",
    "integration_workspaces",
    "integrations",
    "members",
    "organisations",
    "providers",
    "secret_references",
    "users",
)
# Tables with limits of one workspace and other published data.
WORKSPACE_LIMIT_TABLES = ("api_keys", "integration_workspaces", "providers")
# Tables with limits of one workspace and no other published data.
POLICY_TABLES = ("rate_limits_policies", "usage_limits_policies")
# Tables whose rows are published with their prompt. The names of labels are published there too; collections are not
# published.
PROMPT_DETAIL_TABLES = ("prompt_labels",)
DIGITS = 2


def changed_sections(table: Table, row: Mapping[str, Any]) -> set[str]:
    """Returns the names of the sections that a change of a row affects: its own, and the limits of its workspace."""
    workspace_id = row.get("workspace_id")
    if table.name in POLICY_TABLES:
        return {limits_section(row["workspace_id"])}
    if table.name in PROMPT_DETAIL_TABLES:
        return {prompt_section(row["prompt_id"])}
    own = {section_name(table, row["id"])}
    if table.name == "integrations":
        return own | {LIMITS}
    return own | {limits_section(workspace_id)} if table.name in WORKSPACE_LIMIT_TABLES and workspace_id else own


def all_sections(batches: int) -> list[frozenset[str]]:
    """Returns the names of all sections in batches of similar size."""
    digits = [f"{number:0{DIGITS}x}" for number in range(16**DIGITS)]
    groups = [digits[start::batches] for start in range(batches)]
    large = [frozenset(f"{table}/{end}" for table in MEMBER_BY_TABLE for end in group) for group in groups]
    return [frozenset({SMALL_TABLES, LIMITS}), *large]


def limits_section(workspace_id: str) -> str:
    """Returns the name of the section with the limits of a workspace."""
    return f"{LIMITS}/{workspace_id[-DIGITS:]}"


def prompt_section(prompt_id: str) -> str:
    """Returns the name of the section with a prompt and its labels."""
    return f"prompts/{prompt_id[-DIGITS:]}"


def section_member(name: str) -> str:
    """Returns the member of a section that has its rows: `prompt_partials/ab` gives `partials`."""
    table = name.partition("/")[0]
    return MEMBER_BY_TABLE.get(table, table)


def section_name(table: Table, row_id: str) -> str:
    """Returns the name of the section that contains a row."""
    if table.name in MEMBER_BY_TABLE:
        return f"{table.name}/{row_id[-DIGITS:]}"
    return SMALL_TABLES if table.name in SHARED_SECTION_TABLES else ALL_SECTIONS
