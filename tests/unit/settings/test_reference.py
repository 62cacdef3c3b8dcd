"""Generated reference of all settings."""

from penstock import settings
from penstock.settings.reference import render_markdown


def test_reference_lists_every_setting_with_a_description():
    rows = render_markdown().splitlines()[2:]
    assert len(rows) == len(list(settings.iter_setting_specs()))
    assert all(entry.description for entry in settings.iter_setting_specs())
    assert "| `upstream.request_timeout_ms` | `REQUEST_TIMEOUT` | integer | `300000` |" in render_markdown()
