"""The reference of all settings."""

from penstock import settings
from penstock.settings.reference import markdown


def test_the_reference_lists_every_setting_with_a_description():
    rows = markdown().splitlines()[2:]
    assert len(rows) == len(list(settings.entries()))
    assert all(entry.description for entry in settings.entries())
    assert "| `upstream.request_timeout_ms` | `REQUEST_TIMEOUT` | integer | `300000` |" in markdown()
