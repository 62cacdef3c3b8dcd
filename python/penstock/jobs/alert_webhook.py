"""Posts alerts of budgets to the webhook of the settings, with bounded retries and a bounded queue."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from penstock.fetch import Fetcher, FetchRequest, fetch_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.jobs.usage_alerts import Alert
    from penstock.settings import Settings

log = logging.getLogger("penstock")

MAX_QUEUED = 1000
# Pause before each attempt to send an alert. After the last attempt the alert is dropped and logged.
RETRY_SECONDS = (0.0, 1.0, 5.0, 25.0)
SUCCESS_STATUSES = range(200, 300)


class AlertWebhook:
    """Queue of alerts for one URL. Without a URL, it ignores alerts."""

    def __init__(self, settings: Settings) -> None:
        """Reads the URL. The operator sets it, so it may lead to any address."""
        url = settings.limits.alert_webhook
        self._url = url.reveal() if url else ""
        self._fetcher = Fetcher(settings, is_operators=True)
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)
        self.retry_seconds = RETRY_SECONDS
        self.sent = 0
        self.dropped = 0

    def add(self, alerts: Iterable[Alert]) -> None:
        """Queues alerts. If the queue is full, they are dropped."""
        if not self._url:
            return
        for alert in alerts:
            try:
                self._queue.put_nowait(msgspec.json.encode(alert.to_json()))
            except asyncio.QueueFull:
                self.dropped += 1

    async def run(self) -> None:
        """Sends queued alerts in order until cancelled."""
        while True:
            await self.send_next()

    async def send_next(self) -> None:
        """Waits for the next alert and sends it."""
        content = await self._queue.get()
        reason = ""
        for pause in self.retry_seconds:
            await asyncio.sleep(pause)
            reason = await self._post(content)
            if not reason:
                self.sent += 1
                return
        self.dropped += 1
        log.warning(
            "an alert was not delivered to limits.alert_webhook after %d attempts: %s", len(RETRY_SECONDS), reason
        )

    async def _post(self, content: bytes) -> str:
        """Sends one request. Returns the reason of a failure, or an empty string for success. The reason does not
        contain the URL, which may have a token.
        """
        headers = {"content-type": "application/json"}
        request = FetchRequest(url=self._url, method="POST", headers=headers, content=content)
        try:
            response = await self._fetcher.send(request)
        except fetch_errors() as error:
            return type(error).__name__
        return "" if response.status in SUCCESS_STATUSES else f"status {response.status}"
