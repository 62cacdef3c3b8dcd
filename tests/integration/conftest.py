"""Fixtures of the integration tests: one gateway for all tests of a file, and one for each way that requests enter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway import Mock
from tests.integration.serving import WAYS, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway import Gateway


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    """The pretend provider of a file's tests."""
    mock = Mock(tmp_path_factory.mktemp("provider"))
    yield mock
    mock.stop()


@pytest.fixture(scope="module", params=WAYS)
def served(
    request: pytest.FixtureRequest, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose requests are intercepted, and one whose requests come through Python tasks."""
    tables = {"mock": {"host": provider.url}, **getattr(request.module, "TABLES", {})}
    with running(tmp_path_factory.mktemp(request.param), tables, request.param) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def empty_ledger(request: pytest.FixtureRequest) -> None:
    """Each test sees only what it asked for."""
    if "provider" in request.fixturenames:
        request.getfixturevalue("provider").forget()
