"""Error messages of the management API: all problems of a request, in words, with paths and hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.type_validation import find_problems
from tests.unit.asgi import send_request
from tests.unit.resources.management_api import ManagementClient, run_scenario

if TYPE_CHECKING:
    from penstock.settings.secret import Secret

ONE_STORE = True


def test_all_problems_of_a_body_are_reported_at_once(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        body = {"email": "ann", "role": "king", "workspces": [], "workspaces": [{"id": 7, "role": "x"}]}
        status, response, _ = await api("POST", "admin/users/invites", body)
        assert status == 400
        assert {item["path"]: item["message"] for item in response["data"]["errors"]} == {
            "email": "'ann' is not allowed: expected an e-mail address such as ann@example.com",
            "role": "'king' is not allowed: expected admin or member",
            "workspces": "is an unknown field; did you mean 'workspaces'? allowed: email, role, first_name, last_name, "
            "workspaces, workspace_api_key_details",
            "workspaces[0].id": "7 is not allowed: expected a string",
            "workspaces[0].role": "'x' is not allowed: expected admin, manager or member",
        }
        assert response["data"]["message"].startswith("email 'ann' is not allowed: expected")
        assert "; also role 'king'" in response["data"]["message"]

    run_scenario(bootstrapped_url, scenario)


def test_messages_say_what_is_allowed_without_patterns(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        for path, body, words in (
            (
                "workspaces",
                {"name": "x", "slug": "a b"},
                "slug 'a b' is not allowed: expected 1 to 255 letters, digits",
            ),
            (
                "integrations",
                {"name": "i", "ai_provider_id": "opneai", "key": "sk-012345"},
                "ai_provider_id 'opneai' is not known; did you mean 'openai'? allowed: 302ai",
            ),
            ("workspaces", {}, "name is needed: a string of 1 to 255 characters"),
            ("workspaces", [], "a list is not allowed: expected an object"),
            (
                "api-keys/workspace/service",
                {"name": "k", "scopes": []},
                "scopes has 0 items: expected at least 1",
            ),
            (
                "api-keys/team/service",
                {"name": "k", "scopes": ["x"]},
                "kind 'team' is not allowed: expected organisation or workspace",
            ),
            (
                "api-keys/organisation/service",
                {"name": "k", "scopes": ["configs.lst", "x"]},
                "did you mean 'configs.list'?",
            ),
            (
                "auth/invites",
                {"token": "t", "password": "short"},
                "password this string is not allowed: expected a string of",
            ),
        ):
            status, response, _ = await api("POST", path, body)
            message = response["data"]["message"]
            assert (status, words in message) == (400, True), (path, message)
            assert not [word for word in ("regex", "^", "`str`") if word in message]
        status, response, _ = await api(
            "POST", "api-keys/organisation/service", {"name": "k", "scopes": ["configs.lst", "x"]}
        )
        assert [item["path"] for item in response["data"]["errors"]] == ["scopes[0]", "scopes[1]"]
        status, response, _ = await api("GET", "configs?page_size=0&sort=size")
        assert [item["path"] for item in response["data"]["errors"]] == ["page_size", "sort"]

    run_scenario(bootstrapped_url, scenario)


def test_malformed_json_is_reported_in_plain_words(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        fields = {"content-type": "application/json", "x-gateway-api-key": api.key}
        response = await send_request(api.app, "POST", "/v1/workspaces", b'{"name":"Team A",}', fields, "")
        assert response.json()["data"]["message"] == "the body is not valid JSON: trailing comma in object (byte 17)"

    run_scenario(bootstrapped_url, scenario)


def test_wrong_method_lists_the_allowed_ones_and_the_right_path(bootstrapped_url: Secret):
    async def scenario(api: ManagementClient) -> None:
        status, response, head = await api("POST", "api-keys", {})
        assert (status, head["allow"]) == (405, "GET, OPTIONS")
        assert response["data"]["message"].endswith("hint: POST /v1/api-keys/{kind}/{sub_kind}")

    run_scenario(bootstrapped_url, scenario)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int | float | None, "x", "'x' is not allowed: expected a number or null"),
        (list[int], [1, "a"], "'a' is not allowed: expected an integer"),
        (bool, 1, "1 is not allowed: expected true or false"),
        (dict[str, int], [], "a list is not allowed: expected an object"),
    ],
)
def test_describes_types(kind: object, value: object, message: str):
    assert [problem.message for problem in find_problems(kind, value)] == [message]
