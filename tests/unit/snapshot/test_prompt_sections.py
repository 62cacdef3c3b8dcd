"""Prompts and partials in the snapshot: which versions are published, and which sections are read again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.ids import new_id
from penstock.prompts.templates import MAX_DEPTH
from penstock.snapshot.prompt_sections import PartialTable, PromptTable
from penstock.store.snapshot_sections import prompt_section
from tests.unit.prompts.test_templates import nest
from tests.unit.resources.management_api import ManagementClient, run_scenario
from tests.unit.resources.prompted import (
    TEMPLATE,
    add_version,
    create_partial,
    create_prompt,
    find_label,
    put_label,
)
from tests.unit.snapshot.test_limit_sections import last_change

if TYPE_CHECKING:
    from penstock.settings.secret import Secret
    from penstock.snapshot.sectioned_table import CheckedTable

CONTENT = {name: value for name, value in TEMPLATE.items() if name != "template_metadata"}
ODD_TEXT = "\"quoted\" \\ back\\slash, 'single', ümläut, 🙂, \n\t\u2028 {{name}} {{>tone}}"


async def read_rows(api: ManagementClient, table: CheckedTable, *sections: str) -> dict[str, Any]:
    """Returns the published rows by slug, of all sections or of some, before the engine checks them."""
    conditions = [table._digits.in_(sections)] if sections else []
    async with api.database.read_connection() as connection:
        result = await table._query_rows(connection, conditions)
    rows: dict[str, Any] = {}
    for digits, (text, count, end) in result.items():
        section = msgspec.json.decode(b"[%s]" % text)
        assert (len(section), end) == (count, None)
        assert {row["id"][-2:] for row in section} == {digits}
        rows |= {row["slug"]: row for row in section}
    return rows


def test_prompt_is_published_with_the_versions_that_have_a_name(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        prompt = await create_prompt(api, workspace, slug="greeting", name='Say "hi" \\ 🙂', **TEMPLATE)
        ids = [prompt["version_id"], *[await add_version(api, "greeting", f"{number}") for number in (2, 3, 4, 5)]]
        await put_label(api, "greeting", ids[1], await find_label(api, workspace, "production"))
        await put_label(api, "greeting", ids[4], await find_label(api, workspace, "staging"))
        await api.request_ok("PUT", "prompts/greeting/makeDefault", {"version": 3})
        rows = await read_rows(api, PromptTable())
        assert rows == {
            "greeting": {
                "id": prompt["id"],
                "slug": "greeting",
                "name": 'Say "hi" \\ 🙂',
                "workspace": workspace,
                "default": 3,
                "latest": 5,
                "labels": {"production": 2, "staging": 5},
                "shared_with": None,
                "versions": [
                    {"number": number, "id": ids[number - 1], "content": {**CONTENT, "string": str(number)}}
                    for number in (2, 3, 5)
                ],
            }
        }
        await api.request_ok("PUT", "prompts/greeting/makeDefault", {"version": 1})
        rows = await read_rows(api, PromptTable())
        assert rows["greeting"]["versions"][0] == {"number": 1, "id": ids[0], "content": CONTENT}

    run_scenario(bootstrapped_url, scenario)


def test_small_prompt_and_odd_text_are_published_as_stored(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_partial(api, workspace, "tone", ODD_TEXT.replace("{{>tone}}", ""))
        await create_prompt(api, workspace, slug="odd", string=ODD_TEXT, parameters={"a": [1, 2.5, None, ODD_TEXT]})
        (version,) = (await read_rows(api, PromptTable()))["odd"]["versions"]
        assert version["content"] == {
            "string": ODD_TEXT,
            "is_raw_template": False,
            "parameters": {"a": [1, 2.5, None, ODD_TEXT]},
            "virtual_key": "my-openai",
            "model": "gpt-4o",
            "functions": None,
            "tools": None,
            "tool_choice": None,
        }
        (version,) = (await read_rows(api, PartialTable()))["tone"]["versions"]
        assert version["string"] == ODD_TEXT.replace("{{>tone}}", "")

    run_scenario(bootstrapped_url, scenario)


def test_deepest_fields_are_published(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        await create_prompt(api, workspace, slug="deep", parameters={"a": nest(MAX_DEPTH - 1)}, tool_choice={"b": 1})
        (version,) = (await read_rows(api, PromptTable()))["deep"]["versions"]
        assert version["content"]["parameters"] == {"a": nest(MAX_DEPTH - 1)}
        body = {"patch": True, "tools": [{"a": nest(MAX_DEPTH - 1)}]}
        await api.expect_error(400, "tools nests too deep", "PUT", "prompts/deep", body)

    run_scenario(bootstrapped_url, scenario)


def test_partial_is_published_with_its_default_and_newest_version(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        partial = await create_partial(api, workspace, "tone", "one")
        ids = [partial["version_id"]]
        for text in ("two", "three"):
            after = await api.request_ok("PUT", "prompts/partials/tone", {"string": text})
            ids.append(after["prompt_partial_version_id"])
        assert await read_rows(api, PartialTable()) == {
            "tone": {
                "id": partial["id"],
                "slug": "tone",
                "workspace": workspace,
                "default": 1,
                "latest": 3,
                "versions": [
                    {"number": 1, "id": ids[0], "string": "one"},
                    {"number": 3, "id": ids[2], "string": "three"},
                ],
            }
        }

    run_scenario(bootstrapped_url, scenario)


def test_only_active_prompts_of_active_workspaces_are_published(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        first_workspace, gone = [await api.create_workspace(name) for name in ("here", "gone")]
        for name in ("active", "archived"):
            await create_prompt(api, first_workspace["id"], slug=name)
            await create_partial(api, first_workspace["id"], name)
            for path in ("prompts", "prompts/partials"):
                await api.request_ok("PUT", f"{path}/{name}", {"status": name})
        await create_prompt(api, gone["id"], slug="gone")
        await create_partial(api, gone["id"], "gone")
        assert set(await read_rows(api, PromptTable())) == {"active", "gone"}
        await api.request_ok("DELETE", f"workspaces/{gone['id']}", {"name": "gone", "force_delete": True})
        for table in (PromptTable(), PartialTable()):
            assert set(await read_rows(api, table)) == {"active"}

    run_scenario(bootstrapped_url, scenario)


def test_full_read_has_the_rows_of_every_section(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        prompt = {f"p{number}": (await create_prompt(api, workspace, slug=f"p{number}"))["id"] for number in range(24)}
        rows = await read_rows(api, PromptTable())
        assert {slug: row["id"] for slug, row in rows.items()} == prompt
        for digits in {own_id[-2:] for own_id in prompt.values()}:
            part = await read_rows(api, PromptTable(), digits)
            assert part == {slug: row for slug, row in rows.items() if row["id"].endswith(digits)}

    run_scenario(bootstrapped_url, scenario)


def test_sharing_is_published(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        owner, item, two = [(await api.create_workspace(name))["id"] for name in ("owner", "one", "two")]
        await create_prompt(api, owner, slug="p")
        for body, shared_with in (({"workspaces": [two, item]}, sorted([item, two])), ({}, "*")):
            await api.request_ok("POST", "prompts/p/share", body)
            assert (await read_rows(api, PromptTable()))["p"]["shared_with"] == shared_with

    run_scenario(bootstrapped_url, scenario)


def test_change_names_only_the_section_of_its_prompt(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = (await api.create_workspace())["id"]
        prompt, partial = await create_prompt(api, workspace), await create_partial(api, workspace, "tone")
        label = (await api.request_ok("POST", "labels", {"name": "beta", "workspace_id": workspace}))["id"]
        section, path = prompt_section(prompt["id"]), f"prompts/{prompt['id']}"
        version = f"{path}/versions/{prompt['version_id']}"
        changes: list[tuple[str, str, Any, str]] = [
            ("PUT", path, {"string": "new", "patch": True}, section),
            ("PUT", f"{path}/makeDefault", {"version": 2}, section),
            ("PUT", version, {"label_id": label}, section),
            ("PUT", f"labels/{label}", {"name": "gamma"}, section),
            ("PUT", version, {"label_id": None}, section),
            ("POST", f"{path}/share", {}, section),
            ("DELETE", f"{path}/share", None, section),
            ("PUT", "prompts/partials/tone", {"string": "new"}, f"prompt_partials/{partial['id'][-2:]}"),
            ("DELETE", path, None, section),
        ]
        for method, target, body, expected in changes:
            await api.request_ok(method, target, body)
            assert await last_change(api) == {expected}, (method, target)
        before = await count_changes(api)
        await api.request_ok("PUT", f"labels/{label}", {"description": "on no prompt"})
        await api.request_ok("POST", "collections", {"name": "c", "workspace_id": workspace})
        assert await count_changes(api) == before

    run_scenario(bootstrapped_url, scenario)


async def count_changes(api: ManagementClient) -> int:
    async with api.database.read_connection() as connection:
        return (await connection.exec_driver_sql("SELECT number FROM changes")).scalar() or 0


def test_engine_reads_other_versions_one_by_one(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        workspace = await api.create_workspace()
        prompt = await create_prompt(api, workspace["id"], **TEMPLATE)
        second = await add_version(api, prompt["id"], "two")
        path = f"/internal/prompts/{prompt['id']}"
        response = await api.fetch(f"{path}/1")
        assert (response.status, response.json()) == (
            200,
            {"number": 1, "id": prompt["version_id"], "content": CONTENT},
        )
        assert json.loads((await api.fetch(f"{path}/2")).body)["id"] == second
        for unknown in (f"{path}/3", f"{path}/0", f"{path}/-1", f"{path}/{10**12}", f"/internal/prompts/{new_id()}/1"):
            assert (await api.fetch(unknown)).status == 404, unknown
        await api.request_ok("PUT", f"prompts/{prompt['id']}", {"status": "archived"})
        assert (await api.fetch(f"{path}/1")).status == 404

    run_scenario(bootstrapped_url, scenario)
