"""Commands of the documentation, run in order against one gateway with a store and the mock provider. The responses
that the pages show must match.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.doc_examples import (
    PLACEHOLDER,
    Example,
    ExpectedResponse,
    find_differences,
    page_examples,
    pages_with,
    parse_response,
    value_at,
)
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock
    from tests.integration.management_client import Client

ONE_STORE = True
TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
SHOWN_URL = "http://127.0.0.1:8787"
# Pages that describe other examples with variables of their own; their tests are elsewhere.
OTHER_PAGES = {
    f"docs/{name}.md"
    for name in (
        "analytics", "guardrails", "guardrail-results", "logs", "migrate-from-litellm", "monitoring", "opentelemetry", "policies", "prompts", "prompt-comparison", "prompt-sharing",
    )
}  # fmt: skip
RUNNABLE_COMMANDS = ("curl ", "penstock keys create ")
KEY_HEADERS = ("x-gateway-api-key:", "authorization:", "x-api-key:")
EXPORT_PATTERN = re.compile(rf"^export (\w+)={PLACEHOLDER}  # (.*)$", re.MULTILINE)
# Providers that the pages use without creating them.
SAVED_PROVIDERS = {"my-openai": "openai", "my-anthropic": "anthropic"}
# Environment of the examples: credentials that a reader has.
CREDENTIAL_NAMES = (
    "OPENAI", "ANTHROPIC", "AZURE_OPENAI", "GEMINI", "MISTRAL", "GROQ", "OPENROUTER", "VLLM", "SERVER",
)  # fmt: skip
AWS_KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret-of-an-example"}
SERVICE_ACCOUNT = {"type": "service_account", "project_id": "my-project", "client_email": "a@b.iam.example.com"}


def command_lines(example: Example) -> list[str]:
    """Returns the commands of a block; continued lines are joined."""
    text = re.sub(r"^export .*\n", "", example.text, flags=re.MULTILINE)
    return [part for part in re.split(r"\n(?=\w)", text.strip()) if part]


def is_runnable(example: Example) -> bool:
    """Returns true if a block consists of requests and exports, and of nothing that a test cannot run."""
    return example.language == "sh" and all(line.startswith(RUNNABLE_COMMANDS) for line in command_lines(example))


PAGES = [page for page in pages_with("sh") if page not in OTHER_PAGES]
RUN_PAGES = [page for page in PAGES if any(map(is_runnable, page_examples(page, "sh")))]


class PageRun:
    """Runs the blocks of a page in a workspace of its own. Variables that a block exports hold for the next ones."""

    def __init__(self, page: str, admin: Client, mock_url: str, folder: Path) -> None:
        self.page, self.folder, self.mock_url = page, folder, mock_url
        self.url = admin.gateway.base_url
        self.workspace = admin.create("/v1/admin/workspaces", {"name": page})["slug"]
        text = "".join(example.text for example in page_examples(page, "sh"))
        for slug, provider in SAVED_PROVIDERS.items():
            if f"@{slug}" in text and f'"default_provider_slug": "{slug}"' not in text:
                body: dict[str, Any] = {"name": slug, "ai_provider_id": provider, "default_provider_slug": slug}
                configurations = {"custom_host": f"{mock_url}/v1"}
                body |= {"workspace_id": self.workspace, "key": "sk-stored", "configurations": configurations}
                admin.create("/v1/integrations", body)
        key = admin.with_new_key(workspace_id=self.workspace, scopes=["completions.write", "guardrails.invoke"]).key
        headers = {**MOCK_HEADERS, "x-gateway-api-key": key}
        wait_for(
            "the key", lambda: send_raw_request(self.url, CHAT_PATH, chat_body(), headers).status == 200 or None, 5
        )
        self.env = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PENSTOCK_URL": self.url,
            "CURL_HOME": str(folder),
            "PENSTOCK_ADMIN_KEY": admin.key,
            "PENSTOCK_API_KEY": key,
            "WORKSPACE": self.workspace,
            "GOOGLE_SERVICE_ACCOUNT_JSON": json.dumps(SERVICE_ACCOUNT),
            **AWS_KEYS,
            **{f"{name}_API_KEY": f"sk-of-{name.lower()}" for name in CREDENTIAL_NAMES},
        }
        self.body: Any = None

    def run(self, example: Example, expected: ExpectedResponse | None) -> list[str]:
        """Runs one block and returns what differs from the response that the page shows."""
        for name, path in EXPORT_PATTERN.findall(example.text):
            # What a page cannot show in a response, such as the admin key, is in the environment already.
            if " " not in path:
                self.env[name] = value_at(self.body, path)
        commands = command_lines(example)
        if not commands:
            return []
        assert len(commands) == 1, f"{self.page}: one request in a block, so that its response can be shown"
        if not commands[0].startswith("curl "):
            self.run_shell(commands[0])
            return []
        status, headers, output = self.send(commands[0])
        if expected is None:
            return [] if status < 400 else [f"status {status}: {output}"]
        differing = [] if status == expected.status else [f"status {status} and not {expected.status}: {output}"]
        differing += [
            f"{name} is {headers.get(name)!r} and not {value!r}"
            for name, value in expected.headers.items()
            if not headers.get(name, "").startswith(value)
        ]
        if expected.body is not None:
            differing += find_differences(expected.body, self.body)
        return differing

    def send(self, command: str) -> tuple[int, dict[str, str], str]:
        """Runs curl and returns the status, the headers and the output of the response."""
        # The response of an example without a key is that of a gateway without a store.
        key = "" if any(name in command for name in KEY_HEADERS) else self.env["PENSTOCK_API_KEY"]
        lines = ['dump-header = "head.txt"', "max-time = 30", *([f'header = "x-gateway-api-key: {key}"'] * bool(key))]
        (self.folder / ".curlrc").write_text("\n".join(lines))
        command = command.replace(SHOWN_URL, self.url)
        if '"configurations"' not in command:
            host = json.dumps({"custom_host": f"{self.mock_url}/v1"})
            command = re.sub(r'("ai_provider_id": "(?:openai|anthropic)")', rf'\1, "configurations": {host}', command)
        output = self.run_shell(command)
        status_line, *head = (self.folder / "head.txt").read_text().strip().splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        body = output.replace("\r\n", "\n").partition("\n\n")[2] if " -i" in command else output
        self.body = json.loads(body) if headers.get("content-type", "").startswith("application/json") else None
        return int(status_line.split()[1]), headers, output

    def run_shell(self, command: str) -> str:
        """Runs a command as a reader does; returns its output."""
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            check=False,
            capture_output=True,
            text=True,
            timeout=40,
            stdin=subprocess.DEVNULL,
            env=self.env,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def test_pages_with_commands_are_known():
    topics = ("quickstart", "keys", "fallbacks", "load-balancing", "retries", "hedging", "providers/azure-openai")
    assert not {f"docs/{topic}.md" for topic in topics} - set(RUN_PAGES)
    assert not [page for page in OTHER_PAGES if page not in pages_with("sh")]


@pytest.mark.parametrize("page", RUN_PAGES)
def test_commands_of_the_page_return_what_it_shows(page: str, admin: Client, provider: Mock, tmp_path: Path):
    run = PageRun(page, admin, provider.url, tmp_path)
    examples = page_examples(page)
    followers: list[Example | None] = [*examples[1:], None]
    differing: list[str] = []
    for example, follower in zip(examples, followers, strict=True):
        if is_runnable(example):
            expected = parse_response(follower.text) if follower and follower.language == "http" else None
            differing += [f"example {example.number}: {difference}" for difference in run.run(example, expected)]
    assert not differing, "\n".join(differing)
    # Each `http` block must follow a runnable command, because otherwise nothing would check it.
    response = [example for example in examples if example.language == "http"]
    before = [examples[example.number - 1] for example in response]
    assert all(map(is_runnable, before))
