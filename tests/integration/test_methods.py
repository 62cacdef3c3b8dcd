"""Every documented route with every method: its operation name in the record, and the request that reaches the
provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.raw_http import JSON_HEADERS, MOCK_HEADERS, send_raw_request
from tests.integration.serving import count_settled_records

if TYPE_CHECKING:
    from tests.gateway import Gateway, Mock

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD")
FORM_HEADERS = {"content-type": "multipart/form-data; boundary=b"}
FORM_BODY = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nmock\r\n--b--\r\n'
JSON_BODY = b'{"model": "mock", "input": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}'
# Operation name that the specification gives each method; any other method of the path is passed through.
OPERATIONS: dict[str, dict[str, str]] = {
    "/chat/completions": {"POST": "chatComplete"},
    "/completions": {"POST": "complete"},
    "/embeddings": {"POST": "embed"},
    "/messages": {"POST": "messages"},
    "/messages/count_tokens": {"POST": "messagesCountTokens"},
    "/responses": {"POST": "createModelResponse"},
    "/responses/r-1": {"GET": "getModelResponse", "DELETE": "deleteModelResponse"},
    "/responses/r-1/input_items": {"GET": "listResponseInputItems"},
    "/images/generations": {"POST": "imageGenerate"},
    "/images/edits": {"POST": "imageEdit"},
    "/images/variations": {},
    "/audio/speech": {"POST": "createSpeech"},
    "/audio/transcriptions": {"POST": "createTranscription"},
    "/audio/translations": {"POST": "createTranslation"},
    "/files": {"GET": "listFiles", "POST": "uploadFile"},
    "/files/f-1": {"GET": "retrieveFile", "DELETE": "deleteFile"},
    "/files/f-1/content": {"GET": "retrieveFileContent"},
    "/batches": {"GET": "listBatches", "POST": "createBatch"},
    "/batches/b-1": {"GET": "retrieveBatch"},
    "/batches/b-1/cancel": {"POST": "cancelBatch"},
    "/fine_tuning/jobs": {"GET": "listFinetunes", "POST": "createFinetune"},
    "/fine_tuning/jobs/j-1": {"GET": "retrieveFinetune", "POST": "cancelFinetune"},
    "/fine_tuning/jobs/j-1/cancel": {"POST": "cancelFinetune"},
    "/fine_tuning/jobs/j-1/events": {"GET": "listFinetuneEvents"},
    "/fine_tuning/jobs/j-1/checkpoints": {"GET": "listFinetuneCheckpoints"},
    "/models": {"GET": "models"},
    "/rerank": {"POST": "rerank"},
    "/ocr": {"POST": "ocr"},
    "/moderations": {"POST": "moderate"},
    "/assistants": {},
    "/assistants/a-1": {},
    "/threads/t-1/messages": {},
    "/threads/t-1/runs": {},
    "/vector_stores": {},
    "/vector_stores/v-1/files": {},
    "/proxy/chat/completions": {},
    "/proxy/any/thing": {},
    "/any/thing": {},
}
FORM_ROUTES = {"/images/edits", "/images/variations", "/audio/transcriptions", "/audio/translations", "/files"}


@pytest.mark.parametrize("path", OPERATIONS)
def test_route_records_its_operation_and_reaches_the_provider(running_gateway: Gateway, provider: Mock, path: str):
    known = count_settled_records(running_gateway)
    provider.clear_ledger()
    kind, body = (FORM_HEADERS, FORM_BODY) if path in FORM_ROUTES else (JSON_HEADERS, JSON_BODY)
    for method in METHODS:
        has_body = method in {"POST", "PUT", "PATCH"}
        headers = {**MOCK_HEADERS, **(kind if has_body else {})}
        response = send_raw_request(
            running_gateway.base_url, f"/v1{path}?after=x&limit=2", body if has_body else None, headers, method=method
        )
        assert response.status < 500, (method, response)
    records = running_gateway.records(known + len(METHODS))[known:]
    assert {record["request_method"]: record["operation"] for record in records} == {
        method: OPERATIONS[path].get(method, "proxy") for method in METHODS
    }
    there = path.removeprefix("/proxy")
    cancelled = f"{path}/cancel" if path == "/fine_tuning/jobs/j-1" else there
    assert [(received["method"], received["path"]) for received in provider.ledger()] == [
        (method, f"/v1{cancelled if method == 'POST' else there}?after=x&limit=2") for method in METHODS
    ]


def test_batch_output_wildcard_matches_one_path_segment(running_gateway: Gateway, provider: Mock):
    known = count_settled_records(running_gateway)
    provider.clear_ledger()
    send_raw_request(running_gateway.base_url, "/v1/batches/b-1/more/output", None, MOCK_HEADERS, method="GET")
    (record,) = running_gateway.records(known + 1)[known:]
    assert record["operation"] == "proxy"
    assert [received["path"] for received in provider.ledger()] == ["/v1/batches/b-1/more/output"]


@pytest.mark.parametrize(("path", "content"), [("/", b"hey"), ("/live", b"live"), ("/ready", b"ready")])
def test_gateway_responds_to_its_own_routes(running_gateway: Gateway, path: str, content: bytes):
    response = send_raw_request(running_gateway.base_url, path, None, {}, method="GET")
    assert (response.status, content in response.body) == (200, True)


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/", "/v2/chat/completions", "/chat/completions"])
@pytest.mark.parametrize("method", METHODS)
def test_unknown_route_returns_404(running_gateway: Gateway, path: str, method: str):
    response = send_raw_request(running_gateway.base_url, path, None, MOCK_HEADERS, method=method)
    assert response.status == 404
    if method != "HEAD":
        assert response.json() == {"message": "Not Found", "ok": False}
