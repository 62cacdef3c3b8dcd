"""Fixtures of the integration tests. One gateway serves all tests of a file, once for each way that requests enter."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from tests.bootstrapped_store import ADMIN_KEY, DatabaseTemplates
from tests.fork_server import run_penstock
from tests.gateway import Mock
from tests.integration.management_client import Client
from tests.integration.serving import ENTRY_MODES, run_gateway
from tests.postgres import Postgres
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Gateway
    from tests.integration.batching import RestartableGateway

    StoreFactory = Callable[..., dict[str, str]]


MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    """Runs the mock provider for the tests of a file."""
    mock = Mock(tmp_path_factory.mktemp("provider"))
    yield mock
    mock.stop()


@pytest.fixture(scope="module", params=ENTRY_MODES)
def running_gateway(
    request: pytest.FixtureRequest, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Runs a gateway that intercepts requests, then one that handles them in Python tasks."""
    tables = {"mock": {"host": provider.url}, **getattr(request.module, "TABLES", {})}
    with run_gateway(tmp_path_factory.mktemp(request.param), tables, request.param) as gateway:
        yield gateway


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Runs a separate PostgreSQL server that a test may stop or break."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def sdk_client_cleanup() -> Iterator[None]:
    """Closes the SDK clients of a test when it ends."""
    # Imported here, because SDKs import slowly and few tests need them.
    from tests.integration.batching import OPEN_CLIENTS  # noqa: PLC0415 - see the comment above

    yield
    while OPEN_CLIENTS:
        OPEN_CLIENTS.pop().close()


@pytest.fixture
def start_restartable(
    tmp_path: Path, mock: Mock, environment_variables: Mapping[str, str]
) -> Iterator[Callable[..., RestartableGateway]]:
    """Returns a function that starts a gateway with an embedded store, which a test may kill and start again."""
    from tests.integration.batching import RestartableGateway  # noqa: PLC0415 - as in `sdk_client_cleanup`

    started: list[RestartableGateway] = []

    def start(**options: Any) -> RestartableGateway:
        started.append(RestartableGateway(tmp_path, mock, env=environment_variables, **options))
        return started[-1]

    yield start
    for item in started:
        print(item.gateway.program.read_output())
        item.gateway.stop()


def run_init(folder: Path, env: Mapping[str, str]) -> str:
    """Runs `penstock init`, as an operator does once for an external database; returns its output."""
    done = run_penstock("init", env=env, cwd=folder)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Runs a Redis server for one test."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def environment_variables() -> Mapping[str, str]:
    """Returns extra environment variables for a file's gateway; test files override it."""
    return {}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_store(request: pytest.FixtureRequest, store_templates: DatabaseTemplates) -> StoreFactory:
    """Returns a factory that creates a store in a folder and returns the environment that selects it. Runs once per
    kind of database.
    """

    def create_store(folder: Path, number: int = 0, **more: str) -> dict[str, str]:
        url = store_templates.copy(request.param, folder, number)
        env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, **more}
        if request.param == "postgresql":
            # An embedded store generates its own master key.
            env.setdefault("PENSTOCK_STORE_MASTER_KEY", MASTER_KEY)
        return env

    return create_store


@pytest.fixture(scope="module")
def admin(
    request: pytest.FixtureRequest,
    provider: Mock,
    new_store: StoreFactory,
    environment_variables: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Client]:
    """Yields an admin client of a gateway with a new store, once per kind of database."""
    folder = tmp_path_factory.mktemp("admin")
    tables = {"mock": {"host": provider.url}, **getattr(request.module, "TABLES", {})}
    with run_gateway(folder, tables, env=new_store(folder, **environment_variables)) as gateway:
        yield Client(gateway)


@pytest.fixture(autouse=True)
def empty_ledger(request: pytest.FixtureRequest) -> None:
    """Clears the provider's ledger, so that each test sees only its own requests."""
    if "provider" in request.fixturenames:
        request.getfixturevalue("provider").clear_ledger()
