"""Fake provider with the fine-tuning APIs of OpenAI, Bedrock, Vertex AI and Fireworks. It stores jobs and their state
in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.integration.batch_provider import RecordingServer

TOKEN, KEY_ID, REGION = "sk-tuning", "AKIDTUNING", "eu-west-1"
OPENAI, BEDROCK = "/v1/fine_tuning/jobs", "/model-customization-jobs"
VERTEX_PATH = "/v1/projects/p-1/locations/europe-west4/tuningJobs"
FIREWORKS_PATH = "/v1/accounts/acme/supervisedFineTuningJobs"
MADE_AT, MADE = "2026-01-02T03:04:05Z", 1_767_323_045
CHECKPOINTS, EVENTS = 3, 3

Job = dict[str, Any]


class FakeFineTuningProvider(RecordingServer):
    """Stores every job by its id in the provider's API, newest last."""

    def __init__(self) -> None:
        super().__init__(_RequestHandler)
        self.jobs: dict[str, Job] = {}
        self.refused: list[str] = []


class _RequestHandler(BaseHTTPRequestHandler):
    provider: FakeFineTuningProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the access log."""

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}"))

    def _respond(self, body: Job) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), {key: values[0] for key, values in parse_qs(url.query).items()}
        with self.provider.lock:
            self.provider.received_requests.append((self.command, self.path))
            status, response = self._route(path, query, body)
        content = json.dumps(response).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _route(self, path: str, query: dict[str, str], body: Job) -> tuple[int, Any]:
        if not self._is_authorized(path):
            self.provider.refused.append(f"{self.command} {self.path}")
            return 403, {"message": "who asks?"}
        for location, dialect in API_HANDLERS.items():
            if matched := re.fullmatch(rf"{location}(?:/([^/:]+))?(?:[/:](\w+))?", path):
                return dialect(self.provider, self.command, (matched[1], matched[2]), body | query)
        return 404, {"message": f"nothing at {path}"}

    def _is_authorized(self, path: str) -> bool:
        authorization = self.headers.get("authorization", "")
        if path.startswith(BEDROCK):
            return bool(
                re.search(rf"^AWS4-HMAC-SHA256 Credential={KEY_ID}/\d+/{REGION}/bedrock/aws4_request", authorization)
            )
        return authorization == f"Bearer {TOKEN}"


ApiHandler = Callable[[FakeFineTuningProvider, str, tuple[str | None, str | None], Job], tuple[int, Any]]


def _page(items: list[Job], query: Job) -> Job:
    """Returns one page of a list in OpenAI's form."""
    if after := query.get("after"):
        items = items[next(at for at, item in enumerate(items) if item["id"] == after) + 1 :]
    limit = int(query.get("limit", 20))
    return {"object": "list", "data": items[:limit], "has_more": len(items) > limit}


def _handle_openai(
    scripted_provider: FakeFineTuningProvider, method: str, names: tuple[str | None, str | None], content: Job
) -> tuple[int, Any]:
    name, label = names
    if name is None:
        if method == "GET":
            return 200, _page(list(reversed(scripted_provider.jobs.values())), content)
        name = f"ftjob-{len(scripted_provider.jobs)}"
        defaults = {"object": "fine_tuning.job", "created_at": MADE, "status": "queued", "organization_id": "org"}
        defaults |= {"result_files": [], "seed": 0, "hyperparameters": {"n_epochs": "auto"}}
        scripted_provider.jobs[name] = defaults | content | {"id": name}
    if name not in scripted_provider.jobs:
        return 404, {"error": {"message": "No such job", "type": "invalid_request_error", "code": "not_found"}}
    if label == "cancel":
        scripted_provider.jobs[name]["status"] = "cancelled"
    if label == "events":
        events = [{"object": "fine_tuning.job.event", "id": f"ev-{at}"} for at in range(EVENTS)]
        return 200, _page([event | {"created_at": MADE, "level": "info", "message": name} for event in events], content)
    if label == "checkpoints":
        checkpoints = [{"object": "fine_tuning.job.checkpoint", "id": f"cp-{at}"} for at in range(CHECKPOINTS)]
        more = {"created_at": MADE, "fine_tuned_model_checkpoint": "m", "step_number": 1, "metrics": {}}
        return 200, _page([checkpoint | more | {"fine_tuning_job_id": name} for checkpoint in checkpoints], content)
    return 200, scripted_provider.jobs[name]


def _handle_bedrock(
    scripted_provider: FakeFineTuningProvider, method: str, names: tuple[str | None, str | None], content: Job
) -> tuple[int, Any]:
    name, label = names
    if name is None:
        if method == "GET":
            return 200, {"modelCustomizationJobSummaries": list(reversed(scripted_provider.jobs.values()))}
        body = {
            "jobArn": f"arn:aws:bedrock:{REGION}:1:model-customization-job/{content['jobName']}",
            "status": "InProgress",
        }
        model = {"baseModelArn": f"arn:aws:bedrock:{REGION}::foundation-model/{content['baseModelIdentifier']}"}
        scripted_provider.jobs[content["jobName"]] = content | body | model | {"creationTime": MADE_AT}
        return 201, {"jobArn": body["jobArn"]}
    if name not in scripted_provider.jobs:
        return 404, {"message": "The job could not be found"}
    if label == "stop":
        scripted_provider.jobs[name]["status"] = "Stopping"
        return 202, {}
    return 200, scripted_provider.jobs[name]


def _google_style_handler(location: str, key: str) -> ApiHandler:
    """Returns a handler for Vertex AI or Fireworks, whose job APIs have the same shape."""

    def handle(
        scripted_provider: FakeFineTuningProvider, method: str, names: tuple[str | None, str | None], content: Job
    ) -> tuple[int, Any]:
        name, label = names
        if name is None:
            if method == "GET":
                return 200, {key: list(reversed(scripted_provider.jobs.values()))}
            name = str(len(scripted_provider.jobs))
            resource = f"{location.removeprefix('/v1/')}/{name}"
            scripted_provider.jobs[name] = content | {
                "name": resource,
                "state": "JOB_STATE_RUNNING",
                "createTime": MADE_AT,
            }
            checkpoints = [
                {"checkpointId": str(at), "step": str(at), "endpoint": f"e-{at}"} for at in range(CHECKPOINTS)
            ]
            scripted_provider.jobs[name]["tunedModel"] = {"checkpoints": checkpoints}
        if name not in scripted_provider.jobs:
            return 404, {"error": {"code": 404, "message": "not found", "status": "NOT_FOUND"}}
        if label == "cancel":
            scripted_provider.jobs[name]["state"] = "JOB_STATE_CANCELLED"
            return 200, {}
        return 200, scripted_provider.jobs[name]

    return handle


API_HANDLERS: dict[str, ApiHandler] = {
    OPENAI: _handle_openai,
    BEDROCK: _handle_bedrock,
    VERTEX_PATH: _google_style_handler(VERTEX_PATH, "tuningJobs"),
    FIREWORKS_PATH: _google_style_handler(FIREWORKS_PATH, "supervisedFineTuningJobs"),
}
