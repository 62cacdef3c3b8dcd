"""Fixtures that integration and end-to-end tests share: a mock provider and a gateway, both real processes."""

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
from tests.bootstrapped_store import DatabaseTemplates
from tests.fork_server import use_real_starts
from tests.gateway import Gateway, Mock, SettingsTables
from tests.postgres import Postgres
from tests.processes import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    StartGateway = Callable[..., Gateway]


# Lock that coordinates tests running in parallel. The file's content is not used.
LOCK_FILE = Path(__file__).parents[1] / ".cache/tests.lock"
# Variants of tests, each with the flag of the modules that do not need it.
LEFT_OUT_VARIANTS = {"postgresql": "ONE_STORE", "plain": "ONE_ENTRY_MODE"}
# Estimated duration of a test without the mark `slow`.
SECONDS_PER_TEST = 0.3


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Runs a test marked `figures` exclusively, since it measures the machine; all other tests run in parallel. The
    test's duration excludes the wait for the lock.
    """
    LOCK_FILE.parent.mkdir(exist_ok=True)
    with LOCK_FILE.open("w") as test_lock, LOCK_FILE.with_suffix(".queue").open("w") as queue_lock:
        # A test that waits for the exclusive lock holds the second lock; otherwise new shared holders would starve it.
        fcntl.flock(queue_lock, fcntl.LOCK_EX)
        is_figure = item.get_closest_marker("figures") is not None
        fcntl.flock(test_lock, fcntl.LOCK_EX if is_figure else fcntl.LOCK_SH)
        fcntl.flock(queue_lock, fcntl.LOCK_UN)
        with use_real_starts(real=is_figure or item.get_closest_marker("real_start") is not None):
            return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes variants of tests whose results do not depend on them: PostgreSQL in modules with `ONE_STORE = True`, and
    requests in Python tasks in modules with `ONE_ENTRY_MODE = True`. Orders the test files.
    """

    def is_left_out(item: pytest.Item) -> bool:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        return any(
            variant in parameters.values() and getattr(getattr(item, "module", None), flag, False)
            for variant, flag in LEFT_OUT_VARIANTS.items()
        )

    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = order_files([item for item in items if not is_left_out(item)])


def order_files(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests with the files that take the longest first. Each process of `--dist=loadfile` runs whole files.
    If a long file started last, it would run while the other processes have nothing to do.
    """
    seconds: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("slow")
        seconds[item.path] = seconds.get(item.path, 0) + (mark.args[0] if mark else SECONDS_PER_TEST)
    return sorted(items, key=lambda item: (-seconds[item.path], item.path))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Starts one PostgreSQL server for all tests that need one."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Secret:
    """Returns the URL of an empty store, once for each kind of database."""
    if request.param == "sqlite":
        return Secret(f"sqlite:///{tmp_path}/penstock.db")
    return Secret(request.getfixturevalue("postgres").create_database())


@pytest.fixture(scope="session")
def store_templates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatabaseTemplates:
    """Returns template stores with an organisation, one for each kind of database, from which tests make copies."""
    return DatabaseTemplates(tmp_path_factory.mktemp("store_templates"), lambda: request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgresql"])
def bootstrapped_url(request: pytest.FixtureRequest, store_templates: DatabaseTemplates, tmp_path: Path) -> Secret:
    """Returns the URL of a store with an organisation and its admin key, once for each kind of database."""
    return Secret(store_templates.copy(request.param, tmp_path))


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    """Starts the mock provider on a free port, with an empty ledger."""
    provider = Mock(tmp_path)
    yield provider
    provider.stop()


@pytest.fixture
def gateway(tmp_path: Path, mock: Mock) -> Iterator[StartGateway]:
    """Returns a function that starts gateways: `gateway({"keys": […]}, env={…})`. Each gateway has the mock provider
    configured; it is stopped and checked when the test ends.
    """
    numbers = itertools.count(1)
    with contextlib.ExitStack() as started:

        def start_gateway(
            tables: SettingsTables | None = None, *options: str, env: Mapping[str, str] | None = None
        ) -> Gateway:
            folder = tmp_path / f"gateway-{next(numbers)}"
            folder.mkdir()
            running = Gateway(folder, {"mock": {"host": mock.url}, **(tables or {})}, env or {}, options)
            # pytest shows this output if the test fails.
            started.callback(lambda: print(running.program.read_output()))
            started.callback(running.stop)
            return running

        yield start_gateway


@pytest.fixture
def aimock(tmp_path: Path) -> Iterator[str]:
    """Starts `@copilotkit/aimock` on a free port."""
    folder = Path(__file__).parent / "e2e/node"
    node = shutil.which("node") or "node"
    command = [node, folder / "node_modules/.bin/llmock", "--port", "0", "--fixtures", folder / "fixtures.json"]
    program = Program(command, tmp_path / "aimock.log", env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    yield program.wait_until_listening()
    program.kill()
