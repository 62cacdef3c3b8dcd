"""Access log of model requests: what a line has, what it never has, and the client behind proxies."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from penstock import process_log
from penstock.logs.access_log import AccessLog
from penstock.logs.batch import Position
from penstock.logs.record_file import WaitingLine
from penstock.settings import Security, Settings
from penstock.settings.monitoring import Log

RECORD = {
    "id": "id-1",
    "created_at": "2026-11-26T09:00:00.500Z",
    "request_method": "POST",
    "request_url": "/v1/chat/completions?api-version=1&sig=canary",
    "response_status_code": 429,
    "response_time": 1500.04,
    "api_key_id": "key-1",
    "peer": "10.0.0.1",
    "request_headers": {"authorization": "***", "x-forwarded-for": "192.0.2.7, 10.0.0.9"},
}


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("penstock.access")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]


def observe(caplog: pytest.LogCaptureFixture, *proxies: str, access: bool = True, **fields: Any) -> list[Any]:
    caplog.set_level(logging.INFO)
    log = AccessLog(Settings(log=Log(access=access), security=Security(trusted_proxies=proxies)))
    line = json.dumps({**RECORD, **fields}).encode()
    log.observe([WaitingLine("edge-1", Position(1, 0), line, False, 0.0)])
    return caplog.records


def test_line_has_the_request_without_its_query(caplog: pytest.LogCaptureFixture):
    (line,) = observe(caplog)
    assert line.fields == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 429,
        "ms": 1500.0,
        "api_key_id": "key-1",
        "id": "id-1",
        "client": "10.0.0.1",
    }
    assert line.getMessage() == (
        "access method=POST path=/v1/chat/completions status=429 ms=1500.0 api_key_id=key-1 id=id-1 client=10.0.0.1"
    )
    # The time at which the request ended.
    formatted = json.loads(process_log.JsonFormatter().format(line))
    assert (formatted["time"], formatted["message"]) == ("2026-11-26T09:00:02.000+00:00", "access")


def test_trusted_proxies_name_the_client(caplog: pytest.LogCaptureFixture):
    (line,) = observe(caplog, "10.0.0.0/8")
    assert line.fields["client"] == "192.0.2.7"


def test_amendments_and_other_lines_are_not_logged(caplog: pytest.LogCaptureFixture):
    assert not observe(caplog, is_amendment=True)
    assert not observe(caplog, id=5)
    assert not observe(caplog, access=False)


def test_text_of_a_client_cannot_forge_a_line(caplog: pytest.LogCaptureFixture):
    (line,) = observe(caplog, request_url="/a b\n2026 INFO access status=200", peer=None, api_key_id=None)
    text = process_log.logging.Formatter("%(message)s").format(line)
    assert "\n" not in text
    assert 'path="/a b\\n2026 INFO access status=200" status=429' in text
    assert "client" not in line.fields
