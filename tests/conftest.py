"""Fixtures that integration and end-to-end tests share: a pretend provider and a gateway, both real processes."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.gateway import Gateway, Mock, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    StartGateway = Callable[..., Gateway]


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    """The pretend provider on a free port, with an empty ledger."""
    provider = Mock(tmp_path)
    yield provider
    provider.stop()


@pytest.fixture
def gateway(tmp_path: Path, mock: Mock) -> Iterator[StartGateway]:
    """Start gateways: `gateway({"keys": […]}, env={…})`; each knows the mock and is stopped and checked at the end."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as started:

        def start(tables: Tables | None = None, *options: str, env: Mapping[str, str] | None = None) -> Gateway:
            folder = tmp_path / f"gateway-{next(numbers)}"
            folder.mkdir()
            running = Gateway(folder, {"mock": {"host": mock.url}, **(tables or {})}, env or {}, options)
            # What it said is shown with a test that fails.
            started.callback(lambda: print(running.program.output()))
            started.callback(running.stop)
            return running

        yield start
