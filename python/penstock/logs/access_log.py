"""Access log of model requests, made from their records. Management requests are logged by the control process."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.forwarded import FORWARDED_FOR_HEADER, TrustedProxies, split_addresses
from penstock.process_log import AccessEntry, log_access

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.logs.observed_records import ObservedLine
    from penstock.settings import Settings


class AccessRecord(msgspec.Struct, frozen=True):
    """Fields of a record that the access log shows."""

    id: str
    created_at: str = ""
    request_method: str = ""
    request_url: str = ""
    response_status_code: int = 0
    response_time: float = 0.0
    api_key_id: str | None = None
    peer: str | None = None
    request_headers: dict[str, Any] = {}
    is_amendment: bool = False


class AccessLog:
    """Logs one line for each record, after the record was written."""

    def __init__(self, settings: Settings) -> None:
        """Stores the trusted proxies, whose headers contain the address of the client."""
        self.is_enabled = settings.log.access
        self._proxies = TrustedProxies(settings.security.trusted_proxies)
        self._decode = msgspec.json.Decoder(AccessRecord).decode

    def observe(self, written: Iterable[ObservedLine]) -> None:
        """Logs records."""
        if not self.is_enabled:
            return
        for line in written:
            try:
                record = self._decode(line.line)
            except msgspec.MsgspecError:
                continue
            if not record.is_amendment:
                log_access(self._make_entry(record), _ended_at(record))

    def _make_entry(self, record: AccessRecord) -> AccessEntry:
        forwarded = record.request_headers.get(FORWARDED_FOR_HEADER)
        headers = [forwarded] if isinstance(forwarded, str) else []
        client = self._proxies.find_client([*split_addresses(headers), record.peer]) if record.peer else None
        return AccessEntry(
            method=record.request_method,
            path=record.request_url.partition("?")[0],
            status=record.response_status_code,
            ms=round(record.response_time, 1),
            api_key_id=record.api_key_id,
            id=record.id,
            client=client,
        )


def _ended_at(record: AccessRecord) -> float | None:
    try:
        return datetime.fromisoformat(record.created_at).timestamp() + record.response_time / 1000
    except ValueError:
        return None
