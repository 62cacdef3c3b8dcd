"""Every route of prompts, partials, collections and labels over real sockets: the fields and statuses of the API
specification, what is read back, and the older paths of clients.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock
    from tests.integration.conftest import StoreFactory


def field_names(text: str) -> set[str]:
    return set(text.split())


SHARE_FIELDS = field_names(
    "access_level share_organisation_id shared_at shared_by_user_id shared_from_version_id allow_all_workspaces "
    "prompt_owning_workspace_id forked_from_prompt_id forked_from_prompt_version_id"
)
PROMPT_FIELDS = SHARE_FIELDS | field_names(
    "id slug name collection_id string parameters prompt_version prompt_version_id prompt_version_status "
    "prompt_version_description prompt_version_label_id prompt_version_label_name prompt_version_labels virtual_key "
    "model functions tools tool_choice template_metadata is_raw_template status created_at last_updated_at object "
    "variable_components"
)
PROMPT_ROW_FIELDS = field_names("id slug name collection_id model status created_at last_updated_at object")
VERSION_FIELDS = field_names(
    "id prompt_id prompt_template prompt_version prompt_description label_id created_at status object"
)
PARTIAL_ROW_FIELDS = field_names("id slug name collection_id created_at last_updated_at status object")
PARTIAL_FIELDS = PARTIAL_ROW_FIELDS | field_names(
    "string version version_description prompt_partial_version_id prompt_partial_version_status"
)
PARTIAL_VERSION_FIELDS = field_names(
    "prompt_partial_id prompt_partial_version_id slug version string description created_at prompt_version_status "
    "object"
)
COLLECTION_FIELDS = field_names(
    "id name workspace_id slug parent_collection_id is_default status created_at last_updated_at"
)
CONTENT_FIELDS = field_names(
    "child_collections_count prompts_count child_collections_last_updated_at prompts_last_updated_at"
)
LABEL_FIELDS = field_names(
    "id name description color_code organisation_id workspace_id is_universal status created_at last_updated_at"
)
COMPONENT_FIELDS = {"variables", "sections", "partials", "sectionVariables", "variablePartials"}

MESSAGES = json.dumps([{"role": "user", "content": "Greet {{name}} {{>tone}}"}])
TEMPLATE: dict[str, Any] = {
    "string": MESSAGES,
    "parameters": {"max_tokens": 9},
    "virtual_key": "mine",
    "model": "mock",
    "functions": [{"name": "f"}],
    "tools": [{"type": "function", "function": {"name": "g"}}],
    "tool_choice": {"type": "function", "function": {"name": "g"}},
    "version_description": "first",
    "template_metadata": {"editor": "x"},
}
SCOPES = ["completions.write"] + [
    f"prompts.{verb}" for verb in ("create", "read", "update", "delete", "list", "publish", "render")
]
UNKNOWN_ID = str(uuid.UUID(int=7))


@pytest.fixture(scope="module")
def admin(provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("prompt-routes")
    with run_gateway(folder, {"mock": {"host": provider.url}}, env=new_store(folder)) as gateway:
        yield Client(gateway)


@pytest.fixture(scope="module")
def team(admin: Client) -> Client:
    """Returns a client with a key of a workspace that has a saved provider and a partial."""
    client = new_team(admin, "routes")
    client.create("/v1/prompts/partials", {"name": "Tone", "slug": "tone", "string": "kindly"})
    return client


@pytest.fixture(scope="module")
def other_client(admin: Client, team: Client) -> Client:
    """Returns a client with a key of the same workspace that may do nothing with prompts."""
    workspace = team.read("/v1/labels?page_size=1")["data"][0]["workspace_id"]
    return admin.with_new_key(workspace_id=workspace, scopes=["logs.list"])


def new_team(admin: Client, name: str) -> Client:
    workspace = admin.create("/v1/admin/workspaces", {"name": name})["id"]
    integration = admin.create("/v1/integrations", {"name": name, "ai_provider_id": "mock"})["slug"]
    enabled = {"workspaces": [{"id": workspace, "enabled": True}]}
    expect_ok(admin.put(f"/v1/integrations/{integration}/workspaces", enabled))
    saved = {"name": "mine", "slug": "mine", "integration_id": integration, "workspace_id": workspace}
    admin.create("/v1/providers", saved)
    return admin.with_new_key(workspace_id=workspace, scopes=SCOPES)


def new_prompt(team: Client, **fields: object) -> dict[str, Any]:
    return team.create("/v1/prompts", {"name": "Greeting of guests", **TEMPLATE, **fields})


def missing_fields(actual: dict[str, Any], fields: set[str]) -> set[str]:
    return fields - actual.keys()


def wait_until_rendered(team: Client, slug: str) -> None:
    path = f"/v1/prompts/{slug}/render"
    wait_for(slug, lambda: team.post(path, {"variables": {"name": "Ann"}}).status == 200 or None, 10)


def test_prompt_has_the_fields_of_the_specification(team: Client):
    created = new_prompt(team)
    assert missing_fields(created, {"id", "slug", "version_id", "object"}) == set()
    assert created["slug"].startswith("pp-greeting-o-")
    for path in (f"/v1/prompts/{created['slug']}", f"/v2/prompts/{created['id']}"):
        read = team.read(path)
        assert missing_fields(read, PROMPT_FIELDS) == set()
        assert missing_fields(read["variable_components"], COMPONENT_FIELDS) == set()
    same = {name: value for name, value in TEMPLATE.items() if name != "version_description"}
    assert {name: read[name] for name in same} == same
    assert (read["prompt_version"], read["prompt_version_id"], read["prompt_version_description"]) == (
        1,
        created["version_id"],
        "first",
    )
    assert (read["is_raw_template"], read["prompt_version_status"], read["access_level"]) == (
        False,
        "active",
        "workspace",
    )
    listed = team.read("/v1/prompts?search=Greeting&current_page=0&page_size=1")
    assert missing_fields(listed["data"][0], PROMPT_ROW_FIELDS) == set()
    shared = team.read("/v1/prompts?search=Greeting&show_prompt_share=true")["data"][0]
    assert missing_fields(shared, PROMPT_ROW_FIELDS | SHARE_FIELDS) == set()


def test_update_makes_versions_as_the_specification_says(team: Client):
    slug = new_prompt(team)["slug"]
    path = f"/v1/prompts/{slug}"
    assert expect_ok(team.put(path, {"name": "Other"})) == {}
    expect_error(team.put(path, {"string": "x"}), 400, "AB01", "parameters", "virtual_key", "model")
    changed = {"string": "Hi {{name}}", "parameters": {}, "virtual_key": "mine", "model": "mock"}
    created = expect_ok(team.put(path, {**changed, "is_raw_template": 0, "prompt_metadata": {"a": 1}}))
    assert missing_fields(created, {"id", "slug", "prompt_version_id"}) == set()
    second = team.read(f"{path}?version=2")
    assert (second["template_metadata"], second["tools"], second["functions"]) == ({"a": 1}, [], [])
    expect_ok(team.put(path, {"patch": True, "model": "mock-2", "version_description": "newer"}))
    third = team.read(path)
    assert (third["prompt_version"], third["string"], third["model"]) == (3, "Hi {{name}}", "mock-2")
    assert (third["template_metadata"], third["prompt_version_description"]) == ({"a": 1}, "newer")
    assert team.read(f"{path}?version=1")["name"] == "Other"
    versions = team.read(f"{path}/versions")
    assert [row["prompt_version"] for row in versions["data"]] == [3, 2, 1]
    assert all(missing_fields(row, VERSION_FIELDS) == set() for row in versions["data"])
    second_version = team.read(f"{path}/versions/{versions['data'][1]['id']}")
    assert (second_version["prompt_version"], missing_fields(second_version, PROMPT_FIELDS)) == (2, set())
    assert expect_ok(team.put(f"{path}/makeDefault", {"version": 2})) == {}
    assert team.read(f"{path}?version=default")["prompt_version"] == 2
    expect_error(team.put(f"{path}/makeDefault", {"version": "two"}), 400, "AB01", "version")
    expect_error(team.put(f"{path}/makeDefault", {"version": 9}), 404, "AB02", "version", "9")
    expect_error(team.get(f"{path}?version=9"), 404, "AB08", "9")
    assert expect_ok(team.delete(path)) == {}
    expect_error(team.get(path), 404, "AB08", slug)


def test_label_moves_between_versions_and_is_reserved(team: Client):
    slug = new_prompt(team)["slug"]
    path = f"/v1/prompts/{slug}"
    expect_ok(team.put(path, {"patch": True, "model": "mock-2"}))
    newest, oldest = team.read(f"{path}/versions")["data"]
    label = team.create("/v1/labels", {"name": "canary", "description": "few", "color_code": "#fc0"})["id"]
    read = team.read(f"/v1/labels/{label}")
    assert missing_fields(read, LABEL_FIELDS) == set()
    listed = team.read("/v1/labels?search=canary&current_page=0&page_size=5")
    assert (listed["total"], missing_fields(listed["data"][0], LABEL_FIELDS)) == (1, set())
    for version in (newest, oldest):
        assert expect_ok(team.put(f"{path}/versions/{version['id']}", {"label_id": label})) == {}
        labelled = team.read(f"{path}?version=canary")
        assert labelled["prompt_version_id"] == version["id"]
        assert (labelled["prompt_version_label_id"], labelled["prompt_version_label_name"]) == (label, "canary")
        assert [row["label_id"] for row in team.read(f"{path}/versions")["data"]].count(label) == 1
    expect_error(team.delete(f"/v1/labels/{label}"), 409, "AB07", slug)
    expect_ok(team.put(f"{path}/versions/{oldest['id']}", {"label_id": None}))
    assert expect_ok(team.put(f"/v1/labels/{label}", {"name": "beta"})) == {}
    assert expect_ok(team.delete(f"/v1/labels/{label}")) == {}
    expect_error(team.get(f"/v1/labels/{label}"), 404, "AB08", label)
    for name in ("latest", "default", "12", "two words", ""):
        expect_error(team.post("/v1/labels", {"name": name}), 400, "AB01", "name")
    universal = [row for row in team.read("/v1/labels")["data"] if row["is_universal"]]
    assert {row["name"] for row in universal} == {"production", "staging", "development"}


def test_partial_has_the_fields_of_the_specification(team: Client):
    fields = {"name": "Rules of the house", "string": "Be brief.", "version_description": "first"}
    created = team.create("/v1/prompts/partials", fields)
    assert missing_fields(created, {"id", "slug", "version_id"}) == set()
    path = f"/v1/prompts/partials/{created['slug']}"
    read = team.read(path)
    assert missing_fields(read, PARTIAL_FIELDS) == set()
    assert (read["string"], read["version"], read["version_description"]) == ("Be brief.", 1, "first")
    listed = team.read(f"/v1/prompts/partials?collection_id={read['collection_id']}")["data"]
    assert all(missing_fields(row, PARTIAL_ROW_FIELDS) == set() for row in listed)
    for body, version in (({"name": "Rules"}, 1), ({"string": "Be exact.", "description": "more"}, 2)):
        changed = expect_ok(team.put(path, body))
        assert changed["prompt_partial_version_id"] == team.read(path)["prompt_partial_version_id"]
        assert team.read(path)["version"] == version
    versions = team.read(f"{path}/versions")["data"]
    assert all(missing_fields(row, PARTIAL_VERSION_FIELDS) == set() for row in versions)
    assert [(row["string"], row["description"]) for row in versions] == [("Be exact.", "more"), ("Be brief.", "first")]
    assert expect_ok(team.put(f"{path}/makeDefault", {"version": 2})) == {}
    assert expect_ok(team.put(path, {"status": "archived"})).keys() == {"prompt_partial_version_id"}
    assert team.read(path)["status"] == "archived"
    assert expect_ok(team.delete(path)) == {}
    expect_error(team.get(path), 404, "AB08", created["slug"])
    expect_error(
        team.post("/v1/prompts", {"name": "p", **TEMPLATE, "string": "{{>" + created["slug"] + "}}"}), 400, "AB01"
    )


def test_collection_has_the_fields_of_the_specification(team: Client):
    outer = team.create("/v1/collections", {"name": "Support"})
    assert missing_fields(outer, {"id", "slug"}) == set()
    assert outer["slug"].startswith("co-support-")
    inner = team.create("/v1/collections", {"name": "Inner", "parent_collection_id": outer["slug"]})
    slug = new_prompt(team, collection_id=outer["slug"])["slug"]
    expect_error(team.delete(f"/v1/collections/{outer['id']}"), 409, "AB07", "1 prompts", "1 collections")
    row = next(row for row in team.read("/v1/collections?search=support")["data"] if row["id"] == outer["id"])
    assert missing_fields(row, COLLECTION_FIELDS | {"collection_details"}) == set()
    details = row["collection_details"]
    assert missing_fields(details, CONTENT_FIELDS) == set()
    assert (details["child_collections_count"], details["prompts_count"]) == (1, 1)
    read = team.read(f"/v1/collections/{outer['slug']}")
    assert missing_fields(read, COLLECTION_FIELDS | {"child_collections"}) == set()
    (child,) = read["child_collections"]
    assert child["id"] == inner["id"]
    assert missing_fields(child, {"id", "name", "last_updated_at", "collection_details"}) == set()
    assert expect_ok(team.put(f"/v1/collections/{outer['id']}", {"name": "Help"})) == {}
    assert [row["slug"] for row in team.read(f"/v1/prompts?collection_id={outer['id']}")["data"]] == [slug]
    assert expect_ok(team.put(f"/v1/prompts/{slug}", {"collection_id": inner["id"]})) == {}
    expect_ok(team.delete(f"/v1/prompts/{slug}"))
    for key in (inner["id"], outer["slug"]):
        assert expect_ok(team.delete(f"/v1/collections/{key}")) == {}
        expect_error(team.get(f"/v1/collections/{key}"), 404, "AB08", key)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_prompt_is_shared_forked_and_unshared(admin: Client, team: Client, version: str):
    slug = new_prompt(team)["slug"]
    other = new_team(admin, f"guests-{version}")
    path = f"/{version}/prompts/{slug}"
    expect_error(other.get(path), 404, "AB08", slug)
    for method in ("POST", "PUT"):
        shared = expect_ok(team.send(method, f"{path}/share"))
        assert (shared["access_level"], shared["allow_all_workspaces"]) == ("organisation", True)
        assert missing_fields(shared, SHARE_FIELDS) == set()
    rows = other.read(f"/{version}/prompts?type=shared&show_prompt_share=true")["data"]
    assert slug in [row["slug"] for row in rows]
    assert other.read(path)["id"] == shared["id"]
    expect_error(other.put(path, {"name": "mine now"}), 404, "AB08")
    for method in ("POST", "PUT"):
        fork = expect_ok(other.send(method, f"{path}/fork", {"name": "Copy"}))
        copy = other.read(f"/v1/prompts/{fork['id']}")
        assert (copy["forked_from_prompt_id"], copy["string"]) == (shared["id"], MESSAGES)
        assert copy["forked_from_prompt_version_id"] == shared["shared_from_version_id"]
    for method in ("POST", "PUT", "DELETE"):
        expect_ok(team.post(f"{path}/share", None))
        assert expect_ok(team.send(method, f"{path}/unshare")) == {}
        expect_error(other.get(path), 404, "AB08", slug)
    expect_ok(team.post(f"{path}/share", None))
    assert expect_ok(team.delete(f"{path}/share")) == {}
    assert other.read(f"/v1/prompts/{fork['id']}")["string"] == MESSAGES


def test_data_plane_answers_on_every_path(team: Client):
    slug = new_prompt(team)["slug"]
    wait_until_rendered(team, slug)
    variables = {"variables": {"name": "Ann"}}
    rendered = expect_ok(team.post(f"/v1/prompts/{slug}/render", {**variables, "hyperparameters": {"top_p": 0.5}}))
    assert rendered["success"] is True
    expected = [{"role": "user", "content": "Greet Ann kindly"}]
    assert (rendered["data"]["messages"], rendered["data"]["top_p"]) == (expected, 0.5)
    for path, body in (
        (f"/v1/prompts/{slug}/completions", variables),
        (f"/v1/prompts/{slug}@latest/completions", {**variables, "temperature": 0.1}),
        (f"/v1/prompts/{slug}/generate", variables),
        ("/v1/prompt/complete", {**variables, "promptId": slug}),
    ):
        assert expect_ok(team.post(path, body))["choices"][0]["message"]["content"], path


def management_routes() -> list[tuple[str, str, Any]]:
    content = {"name": "x", "string": "x"}
    return [
        ("GET", "/v1/prompts", None),
        ("POST", "/v1/prompts", {**TEMPLATE, "name": "x"}),
        *((method, "/v1/prompts/{key}", {"name": "x"}) for method in ("GET", "PUT", "DELETE")),
        ("GET", "/v1/prompts/{key}/versions", None),
        *((method, "/v1/prompts/{key}/versions/" + UNKNOWN_ID, {"label_id": None}) for method in ("GET", "PUT")),
        ("PUT", "/v1/prompts/{key}/makeDefault", {"version": 1}),
        *((method, "/v2/prompts/{key}/share", None) for method in ("POST", "PUT", "DELETE")),
        *((method, "/v2/prompts/{key}/unshare", None) for method in ("POST", "PUT", "DELETE")),
        *((method, "/v2/prompts/{key}/fork", None) for method in ("POST", "PUT")),
        ("GET", "/v1/prompts/partials", None),
        ("POST", "/v1/prompts/partials", content),
        *((method, "/v1/prompts/partials/{key}", {"name": "x"}) for method in ("GET", "PUT", "DELETE")),
        ("GET", "/v1/prompts/partials/{key}/versions", None),
        ("PUT", "/v1/prompts/partials/{key}/makeDefault", {"version": 1}),
        *((method, f"/v1/{kind}", {"name": "x"}) for kind in ("collections", "labels") for method in ("GET", "POST")),
        *(
            (method, f"/v1/{kind}/{{key}}", {"name": "x"})
            for kind in ("collections", "labels")
            for method in ("GET", "PUT", "DELETE")
        ),
    ]


@pytest.mark.parametrize(("method", "path", "body"), management_routes())
def test_route_reports_unknown_callers_objects_and_fields(
    other_client: Client, team: Client, method: str, path: str, body: Any
):
    sent = None if method in {"GET", "DELETE"} else body
    request_path = path.replace("{key}", UNKNOWN_ID)
    expect_error(Client(team.gateway, "no-such-key").send(method, request_path, sent), 401, "AB05")
    expect_error(other_client.send(method, request_path, sent), 403, "AB03")
    if "{key}" in path:
        expect_error(team.send(method, request_path, sent), 404, "AB08")
    if sent is not None and "{key}" not in path:
        expect_error(team.send(method, request_path, {**body, "nane": 1, "name": 7}), 400, "AB01", "nane", "name")
