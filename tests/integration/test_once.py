"""Every route that makes something can be asked to do it once, and every one that changes something only while it is as it was read."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.app import openapi_json
from tests.integration.batching import TABLES, workspace  # noqa: F401 - the fixture `admin` reads the tables here
from tests.integration.managed import Client, good, refused, state
from tests.integration.wire import ask
from tests.integration.written import Scene, set_scene
from tests.processes import wait

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.wire import Answer

DESCRIPTION: dict[str, Any] = json.loads(openapi_json())
OVER = {"completed", "failed", "cancelled", "expired"}
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "mock", "messages": []}}\r\n'
    b"--b--\r\n"
)


PERSON = {"first_name": "A", "last_name": "B", "password": "a password that is long"}


def described(header: str, *verbs: str) -> set[tuple[str, str]]:
    """The routes that are said to take a header; those with several paths once."""
    return {
        (verb, one(path))
        for path, found in DESCRIPTION["paths"].items()
        for verb in verbs
        if any(parameter["name"] == header for parameter in found.get(verb, {}).get("parameters", []))
    }


def one(path: str) -> str:
    """The path that stands for all of its names."""
    return re.sub("^/v1/admin/workspaces", "/v1/workspaces", re.sub("^(/v1)?/v2/", "/v1/", path))


class Make(NamedTuple):
    """What is sent where, and where there is one more then."""

    body: Any
    path: str = ""
    counted: str = ""


class Change(NamedTuple):
    """Two changes of something, or two things to say when it goes."""

    first: Any
    second: Any
    path: str = ""


class Place(NamedTuple):
    """A scene with what stands in a workspace of its own: the key that calls, a file and a batch."""

    scene: Scene
    caller: Client
    names: dict[str, str]


@pytest.fixture(scope="module")
def place(admin: Client) -> Place:
    scene = set_scene(admin)
    caller = workspace(admin, "once")
    file, spare = (good(upload(caller, FORM))["id"] for _ in range(2))
    slow = good(upload(caller, FORM.replace(b'"mock"', b'"mock?first_ms=20000"')))["id"]
    done, going = (caller.made("/v1/batches", batch_of(name))["id"] for name in (file, slow))
    wait("the end of the batch", lambda: caller.shown(f"/v1/batches/{done}")["status"] in OVER or None)
    made = {
        "file": file,
        "spare": spare,
        "batch": done,
        "going": going,
        "token": link(admin, "once-guest@example.test"),
        "other": admin.made("/v1/workspaces", {"name": "once more"})["id"],
        "person": invited(admin),
    }
    names = {name: value for name, value in scene._asdict().items() if isinstance(value, str)}
    return Place(scene, caller, names | made)


def filled(value: Any, names: dict[str, str]) -> Any:
    """Put names in the place of what they are called here."""
    if isinstance(value, dict):
        return {key: filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], value)
    return value


def upload(caller: Client, form: bytes, path: str = "/v1/files") -> Answer:
    """Send a form; it says itself where its parts end."""
    kind = f"multipart/form-data; boundary={form[2:3].decode()}"
    headers = {"content-type": kind, "x-gateway-provider": "gateway", "x-gateway-api-key": caller.key}
    return ask(caller.gateway.base_url, path, form, {**headers, **caller.headers})


def batch_of(file: str) -> dict[str, Any]:
    endpoint = {"endpoint": "/v1/chat/completions", "completion_window": "immediate"}
    return {"input_file_id": file, "gateway_options": {"x-gateway-provider": "@m-once"}, **endpoint}


def link(admin: Client, email: str) -> str:
    """What opens an invitation."""
    body = {"email": email, "role": "member", "workspaces": []}
    return admin.made("/v1/admin/users/invites", body)["invite_link"].rpartition("=")[2]


def invited(admin: Client) -> str:
    """A person who came by invitation."""
    token = link(admin, "once-person@example.test")
    good(Client(admin.gateway, "").post("/v1/auth/invites", {"token": token, **PERSON}))
    (row,) = admin.shown("/v1/admin/users?email=once-person@example.test")["data"]
    return row["id"]


HERE = {"workspace_id": "{place}"}
KEY = {"name": "n", "scopes": ["completions.write"], **HERE}
SIGN_IN = {
    "aws_auth_type": "accessKey",
    "aws_access_key_id": "AKIA0123456789ABCDEF",
    "aws_secret_access_key": "s",
    "aws_region": "eu-west-1",
}
INVITES, WORKSPACES = "/v1/admin/users/invites", "/v1/workspaces"
MAKES: dict[str, Make] = {
    INVITES: Make({"email": "once@example.test", "role": "member", "workspaces": []}, counted=INVITES),
    f"{INVITES}/{{invite_id}}/resend": Make({}, f"{INVITES}/{{invite}}/resend"),
    "/v1/auth/invites": Make({"token": "{token}", **PERSON}, counted="/v1/admin/users"),
    WORKSPACES: Make({"name": "n"}, counted=WORKSPACES),
    "/v1/workspaces/{workspace}/users": Make(
        {"users": [{"id": "{user}", "role": "member"}]}, "/v1/workspaces/{other}/users", "/v1/workspaces/{other}/users"
    ),
    "/v1/api-keys/{kind}/{sub_kind}": Make(KEY, "/v1/api-keys/workspace/service", "/v1/api-keys"),
    "/v1/api-keys/{key_id}/rotate": Make({}, "/v1/api-keys/{key}/rotate"),
    "/v1/configs": Make({"name": "n", "config": {"provider": "mock"}, **HERE}, counted="/v1/configs"),
    "/v1/integrations": Make({"name": "n", "ai_provider_id": "mock", "key": "k"}, counted="/v1/integrations"),
    "/v1/providers": Make({"name": "n", "integration_id": "{integration}", **HERE}, counted="/v1/providers"),
    "/v1/virtual-keys": Make({"name": "n", "provider": "mock", "key": "k", **HERE}, counted="/v1/virtual-keys"),
    "/v1/secret-references": Make(
        {"name": "n", "manager_type": "aws_sm", "secret_path": "p", "auth_config": SIGN_IN},
        counted="/v1/secret-references",
    ),
    "/v1/batches": Make(batch_of("{file}"), counted="/v1/batches?limit=100"),
    "/v1/batches/{batch_id}/cancel": Make({}, "/v1/batches/{going}/cancel"),
    # Batches of other tests may write what they answered meanwhile.
    "/v1/files": Make(FORM, counted="/v1/files?purpose=batch&limit=100"),
}


def test_each_route_that_makes_something_is_looked_at():
    assert {path for _, path in described("idempotency-key", "post")} == set(MAKES)


def who(place: Place, path: str) -> Client:
    """Who asks: files and batches are of a workspace."""
    return place.caller if path.startswith(("/v1/files", "/v1/batches")) else place.scene.admin


def count(client: Client, path: str) -> int:
    shown = client.shown(path)
    return shown.get("total", len(shown["data"]))


@pytest.mark.parametrize("path", list(MAKES))
def test_what_is_asked_twice_under_one_key_is_done_once_and_answered_alike(place: Place, path: str):
    make, client = MAKES[path], who(place, path)
    once = Client(client.gateway, client.key, {"idempotency-key": f"once {path}"})
    where, body, counted = (filled(item, place.names) for item in (make.path or path, make.body, make.counted))
    before = count(client, counted) if counted else 0
    again_body = body.replace(b"--b", b"--c") if isinstance(body, bytes) else body
    first, again = (sent(once, where, one) for one in (body, again_body))
    assert good(first) == good(again)
    assert (first.get("idempotency-replayed"), again.get("idempotency-replayed")) == (None, "true")
    if counted:
        assert count(client, counted) == before + 1
    refused(sent(once, where + "?another", body), 409, "AB07", "another request")


def sent(client: Client, path: str, body: Any) -> Answer:
    return upload(client, body, path) if isinstance(body, bytes) else client.post(path, body)


def test_of_a_file_that_was_sent_again_nothing_stays(place: Place):
    once = Client(place.caller.gateway, place.caller.key, {"idempotency-key": "a file"})
    made = [good(upload(once, FORM))["id"] for _ in range(3)]
    refused(upload(once, FORM.replace(b"a.jsonl", b"b.jsonl")), 409, "AB07", "another request")
    refused(upload(once, FORM.replace(b"mock", b"moct")), 409, "AB07", "another request")
    assert len(set(made)) == 1
    listed = {row["id"].removeprefix("gw_file_") for row in place.caller.shown("/v1/files?limit=100")["data"]}
    wait("what was kept", lambda: {path.name for path in folder(place).iterdir()} <= listed or None)


def folder(place: Place) -> Path:
    """Where the gateway keeps what is in files."""
    return next(path for path in place.caller.gateway.folder.rglob("files") if path.is_dir())


NAMED, LOST = {"name": "named"}, {"name": "lost"}
CUSTOM = {"enabled": True, "is_custom": True}
MODELS = ({"models": [{"slug": "one", **CUSTOM}]}, {"models": [{"slug": "two", **CUSTOM}]})
CHANGES: dict[str, Change] = {
    "/v1/admin/organisation/defaults": Change({"input_guardrails": ["a"]}, {"input_guardrails": ["b"]}),
    "/v1/admin/organisation/settings": Change({"block_inline_config": True}, {"block_inline_config": False}),
    "/v1/admin/users/{user_id}": Change({"role": "admin"}, {"role": "member"}, "/v1/admin/users/{person}"),
    "/v1/workspaces/{workspace}": Change(NAMED, LOST, "/v1/workspaces/{place}"),
    "/v1/workspaces/{workspace}/users/{user_id}": Change(
        {"role": "admin"}, {"role": "member"}, "/v1/workspaces/{place}/users/{user}"
    ),
    "/v1/api-keys/{key_id}": Change(NAMED, LOST, "/v1/api-keys/{key}"),
    "/v1/configs/{key}": Change(NAMED, LOST, "/v1/configs/{config}"),
    "/v1/integrations/{key}": Change(NAMED, LOST, "/v1/integrations/{integration}"),
    "/v1/integrations/{key}/models": Change(*MODELS, "/v1/integrations/{integration}/models"),
    "/v1/integrations/{key}/integration-models": Change(*MODELS, "/v1/integrations/{integration}/integration-models"),
    "/v1/integrations/{key}/workspaces": Change(
        {"workspaces": [{"id": "{place}", "enabled": False}]},
        {"workspaces": [{"id": "{place}", "enabled": True}]},
        "/v1/integrations/{integration}/workspaces",
    ),
    "/v1/providers/{key}": Change(NAMED, LOST, "/v1/providers/{provider}?workspace_id={place}"),
    "/v1/virtual-keys/{key}": Change({**NAMED, "key": "another"}, LOST, "/v1/virtual-keys/{virtual_key}"),
    "/v1/secret-references/{key}": Change(NAMED, LOST, "/v1/secret-references/{reference}"),
    "/v1/batches/{batch_id}": Change(
        {"internal_output_file_id": "{file}"}, {"internal_output_file_id": "{spare}"}, "/v1/batches/{batch}"
    ),
}


def test_each_route_that_changes_something_is_looked_at():
    assert {path for _, path in described("if-match", "put")} == set(CHANGES)
    assert {path for _, path in described("if-match", "delete")} == set(DELETES)


def tag(client: Client, path: str) -> str:
    """The state that something is in."""
    answer = client.get(path)
    good(answer)
    found = answer.get("etag")
    assert found, path
    return found


def careful(client: Client, state: str) -> Client:
    return Client(client.gateway, client.key, {"if-match": state})


def is_stale(answer: Answer) -> None:
    refused(answer, 412, "AB01", "read it again")
    assert answer.json()["data"]["errors"][0]["path"] == "If-Match"


@pytest.mark.parametrize("path", list(CHANGES))
def test_what_counts_on_what_was_read_is_changed_only_while_it_is_so(place: Place, path: str):
    client, change = who(place, path), filled(CHANGES[path]._asdict(), place.names)
    where = change["path"] or path
    before = tag(client, where)
    done = careful(client, before).put(where, change["first"])
    good(done)
    after = tag(client, where)
    assert (after != before, state(done.get("etag"))) == (True, state(after))
    is_stale(careful(client, before).put(where, change["second"]))
    assert tag(client, where) == after
    good(careful(client, after).put(where, change["second"]))


# In this order: what others stand on goes after them. What is sent along, and where it is read if that is elsewhere.
MODEL = "/v1/integrations/{integration}"
DELETES: dict[str, Change] = {
    "/v1/integrations/{key}/models": Change({"models": ["one"]}, None, f"{MODEL}/models"),
    "/v1/integrations/{key}/integration-models": Change({"models": ["two"]}, None, f"{MODEL}/integration-models"),
    "/v1/files/{file_id}": Change(None, None, "/v1/files/{spare}"),
    "/v1/api-keys/{key_id}": Change(None, None, "/v1/api-keys/{key}"),
    "/v1/providers/{key}": Change(None, None, "/v1/providers/{provider}?workspace_id={place}"),
    "/v1/virtual-keys/{key}": Change(None, None, "/v1/virtual-keys/{virtual_key}"),
    "/v1/configs/{key}": Change(None, None, "/v1/configs/{config}"),
    "/v1/workspaces/{workspace}/users/{user_id}": Change(None, None, "/v1/workspaces/{place}/users/{user}"),
    "/v1/admin/users/invites/{invite_id}": Change(None, None, f"{INVITES}/{{invite}}"),
    "/v1/admin/users/{user_id}": Change(None, None, "/v1/admin/users/{person}"),
    "/v1/integrations/{key}": Change(None, None, MODEL),
    "/v1/secret-references/{key}": Change(None, None, "/v1/secret-references/{reference}"),
    "/v1/workspaces/{workspace}": Change({"name": "lost", "force_delete": True}, None, "/v1/workspaces/{place}"),
}


@pytest.mark.parametrize("path", list(DELETES))
def test_what_counts_on_what_was_read_is_deleted_only_while_it_is_so(place: Place, path: str):
    client, gone = who(place, path), filled(DELETES[path]._asdict(), place.names)
    where, said = gone["path"], gone["first"]
    before = tag(client, where)
    is_stale(careful(client, '"stale"').delete(where, said))
    assert tag(client, where) == before
    good(careful(client, before).delete(where, said))


def test_what_depends_on_no_state_says_so(admin: Client):
    session = admin.post("/v1/auth/sessions", {"api_key": admin.key})
    fields = {"cookie": (session.get("set-cookie") or "").split(";")[0], "x-csrf-token": good(session)["csrf_token"]}
    headers = {**fields, "if-match": '"a"'}
    refused(ask(admin.gateway.base_url, "/v1/auth/sessions", headers=headers, method="DELETE"), 412, "AB01", "If-Match")
    refused(Client(admin.gateway, admin.key, {"if-match": '"a"'}).post("/v1/workspaces", {"name": "n"}), 412, "AB01")
