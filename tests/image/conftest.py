"""The wheel that the image contains."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.shape.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel of `make test-image`, which sets its folder."""
    (wheel,) = (ROOT / os.environ["DIST"]).glob("penstock-*.whl")
    return wheel
