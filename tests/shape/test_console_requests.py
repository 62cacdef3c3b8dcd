"""Requests of the web console: each goes through a client that handles an expired session or a new key."""

from __future__ import annotations

import re

from tests.shape.repository import files_under, read_text

# Files that may send requests: clients of the management API, of the sign-in, of the data plane and of the live tail;
# the request that is sent before the session is known, whose failure is ignored; and the worker that loads a log, whose
# status goes through the client of the management API.
CLIENTS = {"api.ts", "session.svelte.ts", "key-requests.ts", "log-tail.svelte.ts", "early-figure.ts", "log-worker.ts"}
REQUEST = re.compile(r"(?:\bfetch\(|= fetch\b|\bnew (?:EventSource|XMLHttpRequest|WebSocket)\b)")


def test_forms_send_requests_only_through_the_clients():
    sources = files_under("console/src", ".ts", ".svelte")
    senders = {path.name for path in sources if REQUEST.search(read_text(path))}
    assert senders == CLIENTS
