"""Snippets of the documentation in Python and JavaScript, run with the SDKs that they import, and its Codex settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.doc_examples import Example, page_examples
from tests.e2e.python.packages import KEY, PACKAGES_DIR
from tests.gateway import Gateway, Mock

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("docs/quickstart.md", "docs/sdks.md", "docs/realtime.md")
SHOWN_URL = "http://127.0.0.1:8787"
E2E_DIR = Path(__file__).parent
CODEX_BINARY = E2E_DIR / "codex/node_modules/.bin/codex"
RESPONSE_WORDS = ("Hello from the pretend provider", "Hello from mock")
# Packages that are installed apart from the test environment.
THIRD_PARTY_IMPORTS = ("langchain", "litellm")
SNIPPET_SECONDS = 60


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Runs a gateway with the providers that the snippets name; each is the mock provider."""
    folder = tmp_path_factory.mktemp("snippets")
    mock = Mock(folder)
    providers = [
        {"slug": f"my-{name}", "provider": name, "api_key": "sk-stored", "custom_host": f"{mock.url}/v1"}
        for name in ("openai", "anthropic")
    ]
    tables = {
        "keys": [{"name": "k", "key": KEY}],
        "providers": providers,
        "upstream": {"trusted_custom_hosts": ["127.0.0.1"]},
    }
    running = Gateway(folder, tables, {})
    yield running
    running.stop()
    mock.stop()


def snippets(*languages: str) -> list[tuple[str, Example]]:
    """Returns the complete snippets: those that import something."""
    return [
        (page, example)
        for page in PAGES
        for example in page_examples(page, *languages)
        if "import " in example.text.split("\n\n")[0]
    ]


def run_snippet(running_gateway: Gateway, command: list[str], text: str, folder: Path, **more: str) -> str:
    done = subprocess.run(
        [*command, text.replace(SHOWN_URL, running_gateway.base_url)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SNIPPET_SECONDS,
        stdin=subprocess.DEVNULL,
        env={
            "PATH": os.environ["PATH"],
            "PENSTOCK_API_KEY": KEY,
            # Keeps the SDKs from contacting any other host.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGCHAIN_TRACING_V2": "false",
            **more,
        },
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "snippet"), snippets("python"), ids=lambda part: part if isinstance(part, str) else str(part.number)
)
def test_python_snippet_prints_the_response(running_gateway: Gateway, page: str, snippet: Example, tmp_path: Path):
    is_third_party = any(name in snippet.text for name in THIRD_PARTY_IMPORTS)
    options = ["-S", "-W", "ignore"] if is_third_party else []
    more = {"PYTHONPATH": str(PACKAGES_DIR)} if is_third_party else {}
    printed = run_snippet(running_gateway, [sys.executable, *options, "-c"], snippet.text, tmp_path, **more)
    assert any(words in printed for words in RESPONSE_WORDS), (page, printed)


@pytest.mark.parametrize(
    ("page", "snippet"), snippets("js"), ids=lambda part: part if isinstance(part, str) else str(part.number)
)
def test_javascript_snippet_prints_the_response(running_gateway: Gateway, page: str, snippet: Example):
    node = shutil.which("node") or "node"
    printed = run_snippet(running_gateway, [node, "--input-type=module", "--eval"], snippet.text, E2E_DIR / "node")
    assert any(words in printed for words in RESPONSE_WORDS), (page, printed)


def test_codex_works_with_the_settings_of_the_page(running_gateway: Gateway, tmp_path: Path):
    (settings,) = [
        page_example.text
        for page_example in page_examples("docs/tools.md", "toml")
        if "model_provider =" in page_example.text
    ]
    (tmp_path / "config.toml").write_text(settings.replace(SHOWN_URL, running_gateway.base_url))
    command: list[str] = [str(CODEX_BINARY), "exec", "--json", "--skip-git-repo-check"]
    printed = run_snippet(running_gateway, command, "Hi", tmp_path, HOME=str(tmp_path), CODEX_HOME=str(tmp_path))
    events = [json.loads(line) for line in printed.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    texts = [item["text"] for item in items if item["type"] == "agent_message"]
    assert any(words in text for words in RESPONSE_WORDS for text in texts), events
