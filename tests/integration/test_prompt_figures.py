"""Many prompts in the snapshot: time until one can be used, memory, and time until a moved label is used everywhere.

`PENSTOCK_FIGURES_PROMPTS` sets another number of prompts.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uuid_utils
from sqlalchemy import insert, select

from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.prompt_tables import collections, labels, prompt_labels, prompts
from penstock.store.tables import versions
from tests.integration import memory
from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client, expect_ok
from tests.integration.raw_http import send_raw_request
from tests.integration.serving import edge_pids, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock

pytestmark = [pytest.mark.slow(30), pytest.mark.figures]

PROMPTS = int(os.environ.get("PENSTOCK_FIGURES_PROMPTS", "100000"))
VERSIONS, WORKERS, BATCH = 3, 2, 5000
TIME_FACTOR = float(os.environ.get("PENSTOCK_FIGURES_FACTOR", "1"))
MAX_LABEL_SECONDS = 1.0 * TIME_FACTOR
# Same limit as for API keys: `MAX_EDGE_BYTES` in `test_large_snapshot.py`.
MAX_EDGE_BYTES = 300_000_000
LONGEST_SECONDS, START_SECONDS = 15, 120
# Number of consecutive requests, spread over the workers, that must render the same version.
AGREEING_REQUESTS = 20


def version_content(number: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": f"You are assistant {number} of {{{{company}}}}. Answer in {{{{language}}}}."},
        {"role": "user", "content": "{{question}} Think about it step by step, and name the sources that you used."},
    ]
    content = {"string": json.dumps(messages), "is_raw_template": False, "parameters": {"max_tokens": 512}}
    content |= {"virtual_key": "mine", "model": "gpt-4o", "functions": None, "tools": None, "tool_choice": None}
    return {"content": content, "template_metadata": None, "description": f"version {number}"}


async def insert_prompts(url: str) -> None:
    """Inserts prompts into the default workspace, each with three versions and a label on the second one."""
    database = Database(Store(), Secret(url))
    async with database.write_transaction() as connection:
        home = (await connection.execute(select(collections).where(collections.c.is_default))).first()
        assert home is not None
        where = (labels.c.workspace_id == home.workspace_id, labels.c.name == "production")
        label = (await connection.execute(select(labels.c.id).where(*where))).scalar_one()
        moment = int(time.time() * 1000)
        here = {"organisation_id": home.organisation_id, "workspace_id": home.workspace_id}
        times = {"created_at": moment, "last_updated_at": moment}
        for start in range(0, PROMPTS, BATCH):
            rows, stored, placed = [], [], []
            for number in range(start, min(start + BATCH, PROMPTS)):
                own = str(uuid_utils.uuid7())
                rows.append({"id": own, "slug": f"prompt-{number}", "name": f"prompt {number}", "status": "active",
                    "collection_id": home.id, "model": "gpt-4o", "default_version": 1, "latest_version": VERSIONS,
                    **here, **times})  # fmt: skip
                stored += [
                    {"id": str(uuid_utils.uuid7()), "workspace_id": home.workspace_id, "created_at": moment,
                     "organisation_id": home.organisation_id, "resource": "prompts", "resource_id": own,
                     "number": version, "content": version_content(version)}
                    for version in range(1, VERSIONS + 1)
                ]  # fmt: skip
                placed.append({"id": str(uuid_utils.uuid7()), "prompt_id": own, "label_id": label, "number": 2,
                    **here, **times})  # fmt: skip
            await connection.execute(insert(prompts), rows)
            await connection.execute(insert(versions), stored)
            await connection.execute(insert(prompt_labels), placed)
    await database.close()


@pytest.fixture(scope="module")
def prompts_client(provider: Mock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Returns a client with a key of the workspace that has the prompts."""
    folder: Path = tmp_path_factory.mktemp("many-prompts")
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": f"sqlite:///{folder}/penstock.db"}
    run_init(folder, env)
    asyncio.run(insert_prompts(env["PENSTOCK_STORE_URL"]))
    tables = {"mock": {"host": provider.url}, "server": {"workers": WORKERS}}
    with run_gateway(folder, tables, env=env) as gateway:
        admin = Client(gateway)
        workspace = admin.read("/v1/prompts/prompt-0")["workspace_id"]
        scopes = ["prompts.render", "prompts.read", "prompts.update", "prompts.create"]
        yield admin.with_new_key(workspace_id=workspace, scopes=scopes)


def rendered_system(client: Client, reference: str) -> str | None:
    """Returns the first message of a rendered prompt; `None` if the prompt is not known yet."""
    headers = {"x-gateway-api-key": client.key, "content-type": "application/json"}
    answer = send_raw_request(client.gateway.base_url, f"/v1/prompts/{reference}/render", b"{}", headers)
    return answer.json()["data"]["messages"][0]["content"] if answer.status == 200 else None


def test_all_prompts_are_used_within_the_memory_of_keys(prompts_client: Client):
    for reference, version in ((f"prompt-{PROMPTS - 1}", 1), (f"prompt-{PROMPTS // 2}@production", 2)):
        text = wait_for(reference, partial(rendered_system, prompts_client, reference), START_SECONDS)
        assert text == f"You are assistant {version} of . Answer in ."
    sizes = [memory.pss(pid) for pid in edge_pids(prompts_client.gateway, WORKERS)]
    print(f"{PROMPTS} prompts with {VERSIONS} versions: {[round(size / 1e6) for size in sizes]} MB by worker")
    assert max(sizes) <= MAX_EDGE_BYTES, sizes


def test_moved_label_is_used_by_every_worker_within_a_second(prompts_client: Client):
    slug = f"prompt-{PROMPTS - 1}"
    wait_for(slug, lambda: rendered_system(prompts_client, f"{slug}@production"), START_SECONDS)
    ids = {row["prompt_version"]: row["id"] for row in prompts_client.read(f"/v1/prompts/{slug}/versions")["data"]}
    durations: list[float] = []
    for version in (1, 3, 2, 1, 3):
        expected = f"You are assistant {version} of . Answer in ."
        began = time.monotonic()
        expect_ok(prompts_client.put(f"/v1/prompts/{slug}/versions/{ids[version]}", {"label_id": "production"}))
        # The label counts as used from the first of `AGREEING_REQUESTS` requests in a row with the new version.
        since, agreeing = began, 0
        while agreeing < AGREEING_REQUESTS:
            assert time.monotonic() - began < LONGEST_SECONDS, "the label is not used"
            sent = time.monotonic()
            if rendered_system(prompts_client, f"{slug}@production") == expected:
                since, agreeing = (sent if agreeing == 0 else since), agreeing + 1
            else:
                agreeing = 0
        durations.append(since - began)
    print("seconds until a moved label was used:", [round(seconds, 2) for seconds in durations])
    assert statistics.median(durations) <= MAX_LABEL_SECONDS, durations
