"""The requests in the documentation of logs, analytics and OpenTelemetry, sent to the management API."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.unit.resources.logged import LocalLogs, open_workspace, run_logged

if TYPE_CHECKING:
    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

SCOPES = ["logs.list", "logs.view", "logs.write", "logs.export", "completions.write", "analytics.view"]
PAGES = ("docs/logs.md", "docs/analytics.md", "docs/opentelemetry.md")
ROOT = Path(__file__).parents[3]


def read_requests(page: str) -> list[tuple[str, str, Any]]:
    """Returns method, path and body of every `curl` command of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    actual: list[tuple[str, str, Any]] = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        # A shell inserts the present time.
        block = block.replace("$(date +%s)", str(int(time.time())))  # noqa: PLW2901
        for command in re.split(r"^(?=curl )", block, flags=re.MULTILINE):
            if command.startswith("curl "):
                words = shlex.split(command)
                body = msgspec.json.decode(words[words.index("-d") + 1]) if "-d" in words else None
                method = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
                actual.append((method, words[1].removeprefix("$URL/v1/"), body))
    return actual


def test_requests_of_the_pages_work(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=SCOPES)
        fields = {"$LOG_ID": logs.record(**home), "$TRACE_ID": logs.record(**home)}
        requests = [request for page in PAGES for request in read_requests(page)]
        assert len(requests) >= 14
        for method, path, body in requests:
            for name, value in fields.items():
                path = path.replace(name, value)  # noqa: PLW2901 - the ids of this run
            sender = api if path.startswith("admin/") else client
            status, response, _ = await sender(method, path, body)
            # The export is not complete yet, so its download returns 409.
            assert status == (409 if path.endswith("/download") else 200), (method, path, response)
            if path == "logs/exports":
                fields["$EXPORT_ID"] = response["id"]

    run_logged(bootstrapped_url, tmp_path, scenario)
