"""Fake providers that read batch files from storage: Bedrock (with moto's S3), Vertex AI, Fireworks and Cohere. A test
decides when jobs end and with which state.
"""

from __future__ import annotations

import io
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import fastavro
import httpx2
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.integration.batch_provider import RecordingServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KEY_ID, SECRET, REGION = "AKIDEXAMPLE", "aws-canary-0123456789", "eu-west-1"
JOB_ARN = f"arn:aws:bedrock:{REGION}:123456789012:model-invocation-job/job1"
TOKEN = "sk-provider"
FIREWORKS_PATH = "/v1/accounts/acme"
COHERE, DATASETS, EMBED_JOBS = "/v2/batches", "/v1/datasets", "/v1/embed-jobs"
BEDROCK, VERTEX = "/model-invocation-job", "/v1/projects/p-1/locations/europe-west4/batchPredictionJobs"
# moto does not verify the signature; it only reads the account from the key id.
S3_OWNER_HEADERS = {
    "authorization": f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20260101/{REGION}/s3/aws4_request, Signature=0"
}
# Path of a bucket in Cloud Storage, which S3 stands in for because its calls are the same.
GCS_PREFIX = "/gcs-files"
# Request headers that are forwarded to S3.
FORWARDED_HEADERS = ("content-type", "range", "x-amz-server-side-encryption")
# Response headers of S3 that belong to one connection, so the client does not get them.
CONNECTION_HEADERS = ("connection", "transfer-encoding", "content-length", "date", "server")
# Schemas of Cohere's output, which is Avro files.
TEXT_SCHEMA = {
    "type": "record",
    "name": "text",
    "fields": [{"name": "type", "type": "string"}, {"name": "text", "type": "string"}],
}


def _record_schema(name: str, **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def _nullable_schema(kind: Any) -> list[Any]:
    return ["null", kind]


def _array_schema(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind}


TOKENS_SCHEMA = _record_schema("tokens", input_tokens="double", output_tokens=_nullable_schema("double"))
CHAT_OUTPUT_SCHEMA = _record_schema(
    "answer",
    custom_id="string",
    error="string",
    body=_nullable_schema(
        _record_schema(
            "body",
            id="string",
            finish_reason=_nullable_schema("string"),
            message=_nullable_schema(
                _record_schema(
                    "message",
                    role="string",
                    content=_nullable_schema(_array_schema(TEXT_SCHEMA)),
                    tool_plan=_nullable_schema("string"),
                )
            ),
            usage=_nullable_schema(_record_schema("usage", tokens=_nullable_schema(TOKENS_SCHEMA))),
            embeddings=_nullable_schema(
                _record_schema("embeddings", float=_nullable_schema(_array_schema(_array_schema("double"))))
            ),
            meta=_nullable_schema(_record_schema("meta", billed_units=_nullable_schema("tokens"))),
        )
    ),
)
VECTORS_SCHEMA = _record_schema(
    "vectors", float=_nullable_schema(_array_schema("float")), int8=_nullable_schema(_array_schema("int"))
)
EMBED_OUTPUT_SCHEMA = _record_schema(
    "embedded", text="string", custom_id=_nullable_schema("string"), embeddings=VECTORS_SCHEMA
)
CREATED_AT = "2026-01-02T03:04:05.678Z"


class FakeBucketProvider(RecordingServer):
    """Stores uploaded files and jobs; `finish_job` ends the job."""

    def __init__(self, s3: str) -> None:
        super().__init__(_RequestHandler)
        self.s3 = s3
        self.secret, self.token, self.signed = SECRET, TOKEN, "/signed/results?X-Goog-Signature=1"
        self.why = "it did not please"
        self.validation = ["queued", "validated"]
        self.has_parts = True
        self.objects: dict[str, bytes] = {}
        self.datasets: dict[str, dict[str, Any]] = {}
        self.jobs: list[dict[str, Any]] = []
        # Name and type of each dataset that was created.
        self.kinds: list[tuple[str, str]] = []
        self.state = "running"
        self.refused: list[str] = []

    def input_lines(self) -> list[dict[str, Any]]:
        """Returns the input lines of the job, read from the place that the job names."""
        job = self.jobs[0]
        if dataset := job.get("inputDatasetId") or job.get("input_dataset_id") or job.get("dataset_id"):
            form = self.objects[dataset.rpartition("/")[2]]
            return [json.loads(line) for line in form.split(b"\r\n\r\n")[-1].rpartition(b"\r\n--")[0].splitlines()]
        source = job.get("inputDataConfig") or job["inputConfig"]
        uri = source["s3InputDataConfig"]["s3Uri"] if "s3InputDataConfig" in source else source["gcsSource"]["uris"][0]
        return [json.loads(line) for line in self.read_object(uri).splitlines()]

    def read_object(self, uri: str) -> bytes:
        kind, _, name = uri.partition("://")
        return (
            self.objects[name]
            if kind == "gs" and name in self.objects
            else httpx2.get(f"{self.s3}/{name}", headers=S3_OWNER_HEADERS, verify=False).raise_for_status().content
        )

    def finish_job(self, state: str, results: list[dict[str, Any]] | None = None) -> None:
        """Ends the job; writes the results, if any, to the output that the job names."""
        content = b"".join(json.dumps(item).encode() + b"\n" for item in results or [])
        with self.lock:
            if results is not None and "outputDataConfig" in self.jobs[0]:
                job = self.jobs[0]
                name = job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].rpartition("/")[2]
                folder = job["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].removeprefix("s3://")
                httpx2.put(
                    f"{self.s3}/{folder}job1/{name}.out", content=content, headers=S3_OWNER_HEADERS, verify=False
                ).raise_for_status()
            elif "input_dataset_id" in self.jobs[0] or "dataset_id" in self.jobs[0]:
                schema = CHAT_OUTPUT_SCHEMA if "input_dataset_id" in self.jobs[0] else EMBED_OUTPUT_SCHEMA
                for number in (0, 1):
                    self.objects[f"{self.signed}&part={number}"] = _encode_avro(schema, (results or [])[number::2])
            elif "outputDatasetId" in self.jobs[0]:
                self.objects[self.signed] = content
            elif results is not None and "gcs-files" in self.vertex_output_folder():
                name = self.vertex_output_folder().removeprefix("gs://")
                httpx2.put(
                    f"{self.s3}/{name}/predictions.jsonl", content=content, headers=S3_OWNER_HEADERS, verify=False
                ).raise_for_status()
            elif results is not None:
                self.objects[f"{self.vertex_output_folder().removeprefix('gs://')}/predictions.jsonl"] = content
            self.state = state

    def vertex_output_folder(self) -> str:
        return f"{self.jobs[0]['outputConfig']['gcsDestination']['outputUriPrefix']}/prediction-model-{CREATED_AT}"


def _encode_avro(schema: dict[str, Any], rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    # A small interval, so that the file has several blocks.
    fastavro.writer(file, fastavro.parse_schema(schema), rows, codec="deflate", sync_interval=1000)
    return file.getvalue()


class _RequestHandler(BaseHTTPRequestHandler):
    provider: FakeBucketProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppresses the access log."""

    def do_GET(self) -> None:
        self._respond(b"")

    def do_HEAD(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        is_chunked = self.headers.get("transfer-encoding") == "chunked"
        self._respond(
            b"".join(self._read_chunks()) if is_chunked else self.rfile.read(int(self.headers.get("content-length", 0)))
        )

    def _read_chunks(self) -> Iterator[bytes]:
        while length := int(self.rfile.readline(), 16):
            yield self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _respond(self, body: bytes) -> None:
        with self.provider.lock:
            self.provider.received_requests.append((self.command, unquote(self.path)))
            fault = self._check_credential(body)
            if fault is None and self.path.startswith(("/s3-bucket", GCS_PREFIX)):
                self._forward_to_s3(body)
                return
            status, response = fault or self._route(body)
        content = response if isinstance(response, bytes) else json.dumps(response).encode()
        self._send(status, {"content-type": "application/json", "content-length": str(len(content))}, content)

    def _send(self, status: int, fields: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _forward_to_s3(self, body: bytes) -> None:
        """Forwards the request to S3 under the credential of the bucket's owner."""
        own = "x-goog-" if self.path.startswith(GCS_PREFIX) else "x-amz-"
        content = {
            name: self.headers[name] for name in self.headers if name.lower() in FORWARDED_HEADERS or "meta" in name
        }
        content = {name.replace(own, "x-amz-"): value for name, value in content.items()}
        response = httpx2.request(
            self.command,
            f"{self.provider.s3}{self.path}",
            content=body,
            headers={**content, **S3_OWNER_HEADERS},
            verify=False,
        )
        actual = {name: value for name, value in response.headers.items() if name not in CONNECTION_HEADERS}
        fields = {name.replace("x-amz-", own): value for name, value in actual.items()}
        length = response.headers.get("content-length") if self.command == "HEAD" else str(len(response.content))
        self._send(response.status_code, {**fields, "content-length": length or "0"}, response.content)

    def _check_credential(self, body: bytes) -> tuple[int, Any] | None:
        """Returns a 403 response if the credential or the signature is wrong, else `None`."""
        authorization = self.headers.get("authorization", "")
        if self.path.startswith("/signed/") and not authorization:
            return None
        if authorization == f"Bearer {self.provider.token}" and not self._is_aws():
            return None
        if (
            authorization.startswith("AWS4-HMAC-SHA256 ")
            and self._is_aws()
            and self._has_valid_signature(authorization, body)
        ):
            return None
        self.provider.refused.append(f"{self.command} {self.path} {authorization}")
        return 403, {"message": "who asks?"}

    def _is_aws(self) -> bool:
        return self.path.startswith((BEDROCK, "/s3-bucket"))

    def _has_valid_signature(self, content: str, body: bytes) -> bool:
        scope = re.search(rf"Credential={KEY_ID}/\d+/{REGION}/(\w+)/aws4_request", content)
        names = re.search("SignedHeaders=([^,]+),", content)
        expected = "bedrock" if self.path.startswith(BEDROCK) else "s3"
        if not scope or not names or scope[1] != expected:
            return False
        fields = {name: self.headers[name] for name in names[1].split(";")}
        request = AWSRequest(self.command, f"http://{self.headers['host']}{self.path}", fields, body)
        request.context["timestamp"] = self.headers["x-amz-date"]
        kind = S3SigV4Auth if expected == "s3" else SigV4Auth
        auth: Any = kind(Credentials(KEY_ID, self.provider.secret), expected, REGION)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        return content.endswith(f"Signature={auth.signature(text, request)}")

    def _route(self, body: bytes) -> tuple[int, Any]:
        path = unquote(self.path)
        if path.startswith("/gcs-bucket/"):
            return self._handle_object(path.removeprefix("/"), body)
        if path.startswith("/signed/"):
            return 200, self.provider.objects[path]
        if path.startswith(EMBED_JOBS):
            return self._handle_embed_job(path.removeprefix(EMBED_JOBS), body)
        if path.startswith((COHERE, DATASETS)):
            return self._handle_cohere(path, body)
        return self._handle_fireworks(path, body) if path.startswith(FIREWORKS_PATH) else self._handle_job(path, body)

    def _handle_cohere(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        if path.startswith(DATASETS):
            return self._handle_cohere_dataset(path.removeprefix(DATASETS), body)
        if path == COHERE:
            there.jobs.append(json.loads(body))
        elif path == f"{COHERE}/b-1:cancel":
            there.state = "BATCH_STATUS_CANCELED"
        return (
            (200, {"batch": self._cohere_batch()}) if path.partition(":")[0] in {COHERE, f"{COHERE}/b-1"} else (404, {})
        )

    def _handle_cohere_dataset(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        if actual := re.fullmatch(r"\?name=(gateway-[0-9a-f-]+)&type=(batch-(?:chat|embed)-v2-input)", path):
            there.objects["d-in"] = body
            there.kinds.append((actual[1], actual[2]))
            return 200, {"id": "d-in"}
        if self.command == "POST" or path.partition("?")[0] in {"", *(f"/{name}" for name in there.datasets)}:
            return self._handle_embed_dataset(path, body)
        if path == "/d-in":
            status = there.validation[0] if len(there.validation) == 1 else there.validation.pop(0)
            return 200, {"dataset": {"id": "d-in", "validation_status": status, "validation_error": there.why}}
        parts = [{"id": f"p-{n}", "name": "part", "url": f"{there.url}{there.signed}&part={n}"} for n in (0, 1)]
        actual = {"id": "d-out", "validation_status": "validated", "dataset_parts": parts}
        return (200, {"dataset": actual}) if path == "/d-out" else (404, {"message": f"nothing at {path}"})

    def _handle_embed_dataset(self, path: str, body: bytes) -> tuple[int, Any]:
        there, known = self.provider, self.provider.datasets
        if matched := re.fullmatch(r"\?name=([\w .]+)&type=(embed-input)&optional_fields=custom_id", path):
            name = f"texts-{len(known) + 1}"
            there.objects[name] = body
            known[name] = {"id": name, "name": matched[1], "dataset_type": matched[2], "created_at": CREATED_AT}
            return 200, {"id": name}
        if self.command == "POST":
            return 400, {"message": f"no dataset is made so: {path}"}
        if self.command == "DELETE":
            known.pop(path[1:])
            return 200, {}
        status = there.validation[0] if len(there.validation) == 1 else there.validation.pop(0)
        looked = {"validation_status": status, "validation_error": there.why if status == "failed" else None}
        if path == "?limit=200":
            return 200, {"datasets": [{**item, **looked} for item in known.values()]}
        parts = [{"id": "p", "size_bytes": len(there.objects[path[1:]]), "url": f"{there.url}{there.signed}"}]
        parts = parts if there.has_parts else []
        return 200, {"dataset": {**known[path[1:]], **looked, "dataset_parts": parts}}

    def _handle_embed_job(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        if self.command == "POST" and not path:
            created = json.loads(body)
            if created["dataset_id"] not in there.datasets or there.validation != ["validated"]:
                return 400, {"message": f"dataset {created['dataset_id']} is not validated"}
            there.jobs.append(created)
            return 200, {"job_id": "e-1", "meta": {"api_version": {"version": "1"}}}
        if path == "/e-1/cancel":
            there.state = "cancelled"
            return 200, b""
        created = there.jobs[0]
        state = "processing" if there.state == "running" else there.state
        job = {"job_id": "e-1", "status": state, "created_at": CREATED_AT, "input_dataset_id": created["dataset_id"]}
        job |= {
            "model": created["model"],
            "truncate": "END",
            "output_dataset_id": "d-out" if state == "complete" else None,
        }
        return (
            (200, {"embed_jobs": [job]}) if not path else (200, job) if path == "/e-1" else (404, {"message": "no job"})
        )

    def _cohere_batch(self) -> dict[str, Any]:
        there = self.provider
        output = "d-out" if there.state == "BATCH_STATUS_COMPLETED" else ""
        state = there.state if there.state.startswith("BATCH") else "BATCH_STATUS_IN_PROGRESS"
        return {"id": "b-1", "status": state, "output_dataset_id": output, "status_reason": there.why}

    def _handle_fireworks(self, path: str, body: bytes) -> tuple[int, Any]:
        there, path = self.provider, path.removeprefix(FIREWORKS_PATH)
        if path.startswith("/datasets") and ":" not in path:
            return self._handle_fireworks_dataset(path, body)
        if matched := re.fullmatch("/datasets/([a-z0-9-]+):upload", path):
            there.objects[matched[1]] = body
            return 200, {"id": matched[1]}
        if re.fullmatch("/datasets/[a-z0-9-]+:getDownloadEndpoint", path):
            files = {"x/error-data.jsonl": f"{there.signed}&errors=1", "x/BIJOutputSet.jsonl": there.signed}
            existing_urls = {
                name: f"{there.url}{location}" for name, location in files.items() if location in there.objects
            }
            return 200, {"filenameToSignedUrls": existing_urls}
        return self._handle_fireworks_job(path, body)

    def _handle_fireworks_job(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        if path == "/batchInferenceJobs?pageSize=200":
            return 200, {"batchInferenceJobs": [self._fireworks_job()]}
        if matched := re.fullmatch(r"/batchInferenceJobs(?:\?batchInferenceJobId=([a-z0-9-]+))?", path):
            there.jobs.append(json.loads(body))
            name = f"accounts/acme/batchInferenceJobs/{matched[1] or 'j-1'}"
            return 200, {**there.jobs[0], "name": name, "state": "JOB_STATE_PENDING"}
        if there.state == "deleted":
            return 404, {}
        if self.command == "DELETE":
            there.state = "deleted"
        return 200, self._fireworks_job()

    def _fireworks_job(self) -> dict[str, Any]:
        there = self.provider
        progress = {"successfullyProcessedRequests": 1, "failedRequests": 0}
        job = {"name": "accounts/acme/batchInferenceJobs/j-1", **there.jobs[0]}
        return {**job, "state": there.state, "jobProgress": progress, "status": {"message": there.why}}

    def _handle_fireworks_dataset(self, path: str, body: bytes) -> tuple[int, Any]:
        known = self.provider.datasets
        if path == "/datasets":
            request_body = json.loads(body)
            name = request_body["datasetId"]
            known[name] = {"name": f"accounts/acme/datasets/{name}", **request_body["dataset"]}
            return (200, {}) if "userUploaded" in request_body["dataset"] else (400, {})
        if path.startswith("/datasets?"):
            return 200, {"datasets": list(known.values())}
        name = path.rpartition("/")[2]
        actual = known.pop(name, None) if self.command == "DELETE" else known.get(name)
        state = "READY" if name in self.provider.objects else "UPLOADING"
        return (
            (200, {**actual, "state": state, "createTime": CREATED_AT}) if actual else (404, {"message": "no dataset"})
        )

    def _handle_object(self, name: str, body: bytes) -> tuple[int, Any]:
        if self.command == "PUT":
            self.provider.objects[name] = body
            return 200, b""
        actual = self.provider.objects.get(name)
        return (404, {}) if actual is None else (200, actual)

    def _handle_job(self, path: str, body: bytes) -> tuple[int, Any]:
        there = self.provider
        job = there.jobs[0] if there.jobs else {}
        if path.startswith(f"{BEDROCK}s?") or path == f"{VERTEX}?pageSize=100":
            item = {
                **job,
                "jobArn": JOB_ARN,
                "name": f"{VERTEX.removeprefix('/v1/')}/77",
                "status": there.state,
                "state": there.state,
            }
            return 200, {"invocationJobSummaries": [item], "batchPredictionJobs": [item]}
        if path in {BEDROCK, VERTEX}:
            there.jobs.append(json.loads(body))
            return 200, {"jobArn": JOB_ARN, "name": f"{VERTEX.removeprefix('/v1/')}/77", "state": "JOB_STATE_PENDING"}
        if path in {f"{BEDROCK}/{JOB_ARN}/stop", f"{BEDROCK}/job1/stop", f"{VERTEX}/77:cancel"}:
            there.state = "Stopped" if "stop" in path else "JOB_STATE_CANCELLED"
            return 200, {}
        if path in {f"{BEDROCK}/{JOB_ARN}", f"{BEDROCK}/job1"}:
            return 200, {**job, "jobArn": JOB_ARN, "status": there.state, "message": there.why, "successRecordCount": 1}
        if path == f"{VERTEX}/77":
            stats = {"successfulCount": "1", "failedCount": "0"}
            location = {"gcsOutputDirectory": there.vertex_output_folder()}
            error = {"error": {"code": 3, "message": there.why}} if there.state.endswith("FAILED") else {}
            name = {"name": f"{VERTEX.removeprefix('/v1/')}/77"}
            return 200, {**job, **name, "state": there.state, "completionStats": stats, "outputInfo": location, **error}
        return 404, {"message": f"nothing at {path}"}
