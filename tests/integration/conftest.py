"""Fixtures of the integration tests: one gateway for all tests of a file, and one for each way that requests enter."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.founded import ADMIN_KEY, DatabaseTemplates
from tests.gateway import Mock
from tests.integration.managed import Client
from tests.integration.serving import ENTRY_MODES, run_gateway
from tests.postgres import Postgres
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway

    StoreFactory = Callable[..., dict[str, str]]


MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    """The pretend provider of a file's tests."""
    mock = Mock(tmp_path_factory.mktemp("provider"))
    yield mock
    mock.stop()


@pytest.fixture(scope="module", params=ENTRY_MODES)
def served(
    request: pytest.FixtureRequest, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose requests are intercepted, and one whose requests come through Python tasks."""
    tables = {"mock": {"host": provider.url}, **getattr(request.module, "TABLES", {})}
    with run_gateway(tmp_path_factory.mktemp(request.param), tables, request.param) as gateway:
        yield gateway


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may hurt."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def closed() -> Iterator[None]:
    """No connection of an SDK's client outlives its test."""
    # Here: few tests want it, and SDKs are long to import.
    from tests.integration.batching import OPEN_CLIENTS  # noqa: PLC0415 - as said above

    yield
    while OPEN_CLIENTS:
        OPEN_CLIENTS.pop().close()


def run_init(folder: Path, env: Mapping[str, str]) -> str:
    """Do what an operator does once for a store that is not embedded, and give what was said."""
    command = [sys.executable, "-m", "penstock", "init"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=dict(env), cwd=folder).stdout


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of a test's own."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def surroundings() -> Mapping[str, str]:
    """What else is in the environment of a file's gateway; the file may say."""
    return {}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_store(request: pytest.FixtureRequest, founded: DatabaseTemplates) -> StoreFactory:
    """Give each gateway that asks a new store of each kind: by its folder, the environment that leads there."""

    def create_store(folder: Path, number: int = 0, **more: str) -> dict[str, str]:
        url = founded.copy(request.param, folder, number)
        env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, **more}
        if request.param == "postgresql":
            # An embedded store makes its own.
            env.setdefault("PENSTOCK_STORE_MASTER_KEY", MASTER_KEY)
        return env

    return create_store


@pytest.fixture(scope="module")
def admin(
    request: pytest.FixtureRequest,
    provider: Mock,
    new_store: StoreFactory,
    surroundings: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Client]:
    """The admin of a gateway with an empty store of each kind."""
    folder = tmp_path_factory.mktemp("admin")
    tables = {"mock": {"host": provider.url}, **getattr(request.module, "TABLES", {})}
    with run_gateway(folder, tables, env=new_store(folder, **surroundings)) as gateway:
        yield Client(gateway)


@pytest.fixture(autouse=True)
def empty_ledger(request: pytest.FixtureRequest) -> None:
    """Each test sees only what it asked for."""
    if "provider" in request.fixturenames:
        request.getfixturevalue("provider").forget()
