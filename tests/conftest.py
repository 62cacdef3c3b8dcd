"""Fixtures that integration and end-to-end tests share: a pretend provider and a gateway, both real processes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.settings.secret import Secret
from tests.founded import DatabaseTemplates
from tests.gateway import Gateway, Mock, SettingsTables
from tests.postgres import Postgres
from tests.processes import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    StartGateway = Callable[..., Gateway]


# What tests that run side by side go by; it says nothing itself.
LOCK_FILE = Path(__file__).parents[1] / ".cache/tests.lock"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Give a test that measures the machine to itself; the others share it. The wait is no part of a test's time."""
    LOCK_FILE.parent.mkdir(exist_ok=True)
    with LOCK_FILE.open("w") as room, LOCK_FILE.with_suffix(".door").open("w") as door:
        # Who waits for the room stands in the door, or others would go in and out for ever.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for all tests that want one."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Secret:
    """Where an empty store of each kind is."""
    if request.param == "sqlite":
        return Secret(f"sqlite:///{tmp_path}/penstock.db")
    return Secret(request.getfixturevalue("postgres").database())


@pytest.fixture(scope="session")
def founded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatabaseTemplates:
    """A store of each kind with an organisation, to be copied."""
    return DatabaseTemplates(tmp_path_factory.mktemp("founded"), lambda: request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgresql"])
def founded_url(request: pytest.FixtureRequest, founded: DatabaseTemplates, tmp_path: Path) -> Secret:
    """Where a store of each kind is that has an organisation and its admin key."""
    return Secret(founded.copy(request.param, tmp_path))


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

        def start_gateway(
            tables: SettingsTables | None = None, *options: str, env: Mapping[str, str] | None = None
        ) -> Gateway:
            folder = tmp_path / f"gateway-{next(numbers)}"
            folder.mkdir()
            running = Gateway(folder, {"mock": {"host": mock.url}, **(tables or {})}, env or {}, options)
            # What it said is shown with a test that fails.
            started.callback(lambda: print(running.program.read_output()))
            started.callback(running.stop)
            return running

        yield start_gateway


@pytest.fixture
def aimock(tmp_path: Path) -> Iterator[str]:
    """`@copilotkit/aimock` on a free port."""
    folder = Path(__file__).parent / "e2e/node"
    node = shutil.which("node") or "node"
    command = [node, folder / "node_modules/.bin/llmock", "--port", "0", "--fixtures", folder / "fixtures.json"]
    program = Program(command, tmp_path / "aimock.log", env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    yield program.wait_until_listening()
    program.kill()
