"""Restarts of child processes, and the internals of Granian that the supervisor depends on."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from granian import _granian

from penstock import child_process as module
from penstock.child_process import MAX_FAILED_STARTS, ChildProcess
from penstock.serve import EDGE_PAUSE, GranianServer
from penstock.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FakeServer(GranianServer):
    """Runs a plain function instead of Granian's worker."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def prepare_worker(self, load: Callable[[], object]) -> multiprocessing.Process:
        del load
        return multiprocessing.get_context("fork").Process(target=self.work)


def test_server_allocator_reads_its_configuration():
    # With another allocator or variable name, connections would silently use a tenth more memory.
    assert os.environ["_RJEM_MALLOC_CONF"] == "cache_oblivious:false"
    assert b"_RJEM_MALLOC_CONF" in Path(_granian.__file__).read_bytes()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def run_until_exit(work: Callable[[], object], times: int) -> tuple[ChildProcess, list[str]]:
    child = ChildProcess("edge 1", FakeServer(work), lambda: None, EDGE_PAUSE)
    content: list[str] = []
    for _ in range(times):
        child.start()
        assert child.process
        child.process.join()
        content.append(child.record_exit())
    return child, content


def test_killed_child_restarts_at_once_then_after_longer_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    pauses: list[float] = []
    child = ChildProcess("edge 1", FakeServer(lambda: os.kill(os.getpid(), 9)), lambda: None, EDGE_PAUSE)
    for _ in range(6):
        child.start()
        assert child.process
        child.process.join()
        assert child.record_exit() == "signal 9"
        pauses.append(round(child.due - 100.0, 3))
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert not child.hopeless


def test_child_that_always_fails_to_start_is_given_up():
    child, content = run_until_exit(lambda: os._exit(1), MAX_FAILED_STARTS)
    assert content == ["exit code 1"] * MAX_FAILED_STARTS
    assert child.hopeless


def test_child_that_ran_for_a_while_is_never_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STABLE_AFTER_SECONDS", -1.0)
    child, _ = run_until_exit(lambda: os._exit(1), MAX_FAILED_STARTS + 2)
    assert not child.hopeless


def test_granian_still_has_the_internals_in_use(listener: socket.socket):
    parameters = inspect.signature(GranianServer._spawn_worker).parameters
    assert list(parameters) == ["self", "idx", "target", "callback_loader"]
    server = GranianServer.for_edge(Settings(), listener, None)
    process = server.prepare_worker(lambda: None)
    assert isinstance(process, multiprocessing.process.BaseProcess)
    # The worker receives the bound socket as it is, and never binds it again.
    assert process._args[3] == ((None, server._shd), listener)  # pyright: ignore[reportAttributeAccessIssue]
    assert server._shd.get_fd() == listener.fileno()
