"""Scheduling of processes and limits: SCHED_BATCH under load, low priority for background processes, and the limit of
open files.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import process
from penstock.errors import StartupError
from penstock.process import ChildTask, SchedPolicySwitcher, notify_service_manager, raise_open_file_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def policy() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the scheduling policy of this process; restores the default policy afterwards."""
    yield lambda: os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_policy_follows_the_load(policy: Callable[[], int]) -> None:
    done = 0
    pace = SchedPolicySwitcher(lambda: done)
    received = []
    for more in (0, 4_900, 5_100, 2_600, 2_400, 4_900):
        done += int(more * SchedPolicySwitcher.CHECK_INTERVAL_SECONDS)
        pace.update_policy()
        received.append(policy())
    normal_policy, batch_policy = os.SCHED_OTHER, os.SCHED_BATCH
    assert received == [normal_policy, normal_policy, batch_policy, batch_policy, normal_policy, normal_policy]


LOW_PRIORITY_SCRIPT = """
import os, threading
from penstock import process
process.lower_priority()
def tell():
    turn = [line.split()[-1] for line in open(f"/proc/self/task/{threading.get_native_id()}/sched") if "slice" in line]
    print(os.getpriority(os.PRIO_PROCESS, 0), *turn)
tell()
thread = threading.Thread(target=tell)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not Path("/proc/self/sched").exists(), reason="the kernel does not tell how long turns are")
def test_low_priority_applies_to_the_process_and_its_threads() -> None:
    # Runs in a process of its own, since a process cannot raise its priority again.
    output = subprocess.run(
        [sys.executable, "-c", LOW_PRIORITY_SCRIPT], capture_output=True, text=True, check=True
    ).stdout
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    expected = "10 250000" if release >= (6, 12) else "10"
    assert [line[: len(expected)] for line in output.splitlines()] == [expected] * 2


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "max_clients"),
    [
        (1024, 20_256, [(20_256, 20_256)], 10_000),
        (20_256, 20_256, [], 10_000),
        (64, 100, [(100, 100)], 1),
        (1024, resource.RLIM_INFINITY, [], sys.maxsize),
    ],
)
def test_open_file_limit_is_raised_and_halved(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: list[tuple[int, int]], max_clients: int
) -> None:
    received: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: received.append(both))
    assert (raise_open_file_limit(), received) == (max_clients, raised)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_service_manager_is_notified(tmp_path: Path, is_abstract: bool) -> None:
    address = f"@penstock-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if is_abstract else address)
        manager.settimeout(5)
        notify_service_manager(address)
        assert manager.recv(64) == b"READY=1"


def test_missing_service_manager_does_not_end_the_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify_service_manager(None)
    assert not caplog.messages
    notify_service_manager(str(tmp_path / "nobody"))
    (message,) = caplog.messages
    assert "cannot be notified: No such file or directory" in message


def kill_this_process() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def raise_an_error() -> bytes:
    raise ValueError


@pytest.mark.parametrize(
    ("task", "reason"),
    [(kill_this_process, "signal 9 ended its process"), (raise_an_error, "the log has the details")],
)
def test_failed_child_names_its_task(task: Callable[[], bytes], reason: str) -> None:
    child = ChildTask(task, "reading the price list")
    # The second call finds a process that was already waited for.
    for _ in range(2):
        with pytest.raises(StartupError, match=rf"^reading the price list failed[:;] {reason}$"):
            child.result()


def test_child_returns_its_result() -> None:
    assert ChildTask(lambda: b"a" * 100_000, "making a result").result() == b"a" * 100_000


def test_garbage_is_collected_again_once_a_process_has_started():
    try:
        process.pause_garbage_collection()
        assert not gc.isenabled()
        process.freeze_heap(collect=False)
        assert gc.isenabled()
    finally:
        gc.unfreeze()
