"""Both engines of the log store, empty or with the same sample."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logs.batch import Position
from penstock.logs.engines.clickhouse import ClickHouseEngine
from penstock.logs.engines.clickhouse_client import ClickHouseClient, parse_url
from penstock.logs.engines.duckdb import DuckDbEngine
from tests.clickhouse_server import ClickHouseServer
from tests.unit.logs.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DATABASES = itertools.count()


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ClickHouseEngine]]:
    """Returns a function that opens a new database of one ClickHouse server."""
    server = ClickHouseServer(tmp_path_factory.mktemp("clickhouse"))
    engines: list[ClickHouseEngine] = []

    def open_database(**options: Any) -> ClickHouseEngine:
        name = f"logs_{next(DATABASES)}"
        client = ClickHouseClient(parse_url(f"clickhouse://127.0.0.1:{server.port}/default"))
        client.command(f"CREATE DATABASE {name}")
        client.close()
        engine = ClickHouseEngine(f"clickhouse://127.0.0.1:{server.port}/{name}", "n1", **options)
        engine.open()
        engines.append(engine)
        return engine

    yield open_database
    for engine in engines:
        engine.close()
    server.stop()


def open_duckdb(folder: Path, **options: Any) -> DuckDbEngine:
    engine = DuckDbEngine(folder, **options)
    engine.open()
    return engine


@pytest.fixture(params=["duckdb", "clickhouse"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DuckDbEngine | ClickHouseEngine]:
    """Returns an empty engine, once of each kind."""
    if request.param == "duckdb":
        opened = open_duckdb(tmp_path / "store")
        yield opened
        opened.close()
    else:
        yield request.getfixturevalue("clickhouse")()


@pytest.fixture(scope="session")
def sample() -> Sample:
    return Sample(3000)


@pytest.fixture(scope="session")
def loaded_duckdb(tmp_path_factory: pytest.TempPathFactory, sample: Sample) -> Iterator[DuckDbEngine]:
    engine = open_duckdb(tmp_path_factory.mktemp("logs") / "store")
    engine.insert(sample.batch(), {"edge-0": Position(1, 100)})
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def loaded_clickhouse(clickhouse: Callable[..., ClickHouseEngine], sample: Sample) -> ClickHouseEngine:
    # The lifetime of rows counts from today, and the sample is older.
    engine = clickhouse(keep_days=36_500, keep_bodies_days=36_500)
    engine.insert(sample.batch(), {"edge-0": Position(1, 100)})
    return engine


@pytest.fixture(params=["duckdb", "clickhouse"])
def sample_engine(request: pytest.FixtureRequest) -> DuckDbEngine | ClickHouseEngine:
    """Returns an engine with the sample, once of each kind. Tests only read it."""
    return request.getfixturevalue(f"loaded_{request.param}")
