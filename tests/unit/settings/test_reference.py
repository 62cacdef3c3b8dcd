"""Generated reference of all settings."""

import pytest

from penstock import settings
from penstock.settings.reference import render_markdown


def test_reference_lists_every_setting_with_a_description():
    rows = render_markdown().splitlines()[2:]
    assert len(rows) == len(list(settings.iter_setting_specs()))
    assert all(entry.description for entry in settings.iter_setting_specs())


@pytest.mark.parametrize(
    "row",
    [
        "| `server.host` | `PENSTOCK_SERVER_HOST` | string | `127.0.0.1` |",
        "| `upstream.request_timeout_ms` | `REQUEST_TIMEOUT` | integer | `300000` |",
        "| `server.drain_seconds` | `PENSTOCK_SERVER_DRAIN_SECONDS` | number | `30.0` |",
        "| `upstream.http2` | `PENSTOCK_UPSTREAM_HTTP2` | boolean | `true` |",
        "| `security.block_inline_config` | `BLOCK_INLINE_CONFIG` | boolean | `false` |",
        "| `security.header_aliases` | `GATEWAY_HEADER_ALIASES` | list | `x-portkey-` |",
        "| `jwt.organisations` | `ORGANISATIONS_TO_SYNC` | list | none |",
        "| `redis.url` | `REDIS_URL` | secret |  |",
        "| `log.level` | `PENSTOCK_LOG_LEVEL` | `debug` or `info` or `warning` or `error` | `info` |",
    ],
)
def test_reference_shows_type_and_default(row: str):
    assert row in render_markdown()
