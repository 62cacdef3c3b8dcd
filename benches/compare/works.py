"""Workloads of the comparison: the requests sent to each gateway and the values measured meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from statistics import median
from typing import TYPE_CHECKING
from urllib.request import urlopen

from benches.compare import bodies, cores, load
from benches.compare.gateway import Gateway, Invalid, answered, running
from benches.compare.peers import burning
from benches.compare.peers.penstock import Burning

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.compare.bodies import Ask
    from benches.compare.load import Options, Report

Values = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """Durations of the phases of a measurement."""

    seconds: float = 5
    warm_seconds: float = 1
    settle_seconds: float = 0.4
    """Work that a gateway puts off, a batch of records say, must fall into the measured time."""
    idle_seconds: float = 2
    hold_seconds: int = 10
    stuck_seconds: float = 5
    rare_rounds: int = 2


QUICK = Scale(0.8, 0.2, 0.25, 0.5, 3, 2, rare_rounds=1)
STREAMS = 64
RATE_HELD = 0.95
CHUNKS = 100
CHUNK_MS = 10
SLOW_STREAMS = 500
SLOW_CHUNK_MS = 100
STUCK_CLIENTS = 64
# Far larger than the socket buffers, so the response is never sent in full.
ENDLESS = {"chunks": 1_000_000, "chunk_bytes": 4096}
# Share of the measured page capacity. The control process is busy nearly all the time, but its queue does not grow
# without bound.
NEARLY_ALL = 0.9
PAGE_CLIENTS = 8
READ_SECONDS = 10
# Number of times that the configs are measured in both orders.
ROUTING_TURNS = 3
TAIL_LOAD: Options = {"rate": 500, "connections": 8}
MANAGEMENT = ("/schema/openapi.json", "/metrics")


@dataclass(frozen=True)
class Bench:
    """Input of a workload: a running gateway, its core and the durations."""

    gateway: Gateway
    core: int
    scale: Scale
    framing: int = 0
    """How many events besides its chunks the provider sends for a stream, counted once directly."""

    @property
    def seconds(self) -> Options:
        return {"seconds": self.scale.seconds}

    def warm(self, kind: str, ask: Ask, options: Options) -> None:
        load.run(self.gateway, kind, ask, {**options, "seconds": self.scale.warm_seconds})
        time.sleep(self.scale.settle_seconds)

    def measure(self, kind: str, ask: Ask, options: Options, units: str) -> tuple[Report, Values]:
        """Returns the client's report and the CPU cost of each unit in it. Raises `InvalidSample` if there are no
        units.
        """
        before = cores.read(self.core, self.gateway.tree)
        report = load.run(self.gateway, kind, ask, {**options, **self.seconds})
        time.sleep(self.scale.settle_seconds)
        after = cores.read(self.core, self.gateway.tree)
        if not report.get(units):
            message = f"no {units} at all"
            raise Invalid(message)
        values = {"foreign": cores.foreign(before, after)}
        if self.gateway.tree:
            values["cpu_us"] = (after.tree - before.tree) * 1e6 / report[units]
        return report, values


def _requests(bench: Bench, kind: str, ask: Ask, options: Options) -> Values:
    bench.warm(kind, ask, options)
    report, values = bench.measure(kind, ask, options, "requests")
    return values | _named(report, "rps", "p50_us", "p99_us")


def _named(report: Report, *names: str) -> Values:
    return {name: report[name] for name in names if name in report}


def whole(connections: int) -> Callable[[Bench], Values]:
    """Returns a workload that requests complete responses in a closed loop, as fast as possible."""
    return lambda bench: _requests(bench, "whole", bodies.whole(), {"connections": connections})


def rate(rate: int, connections: int) -> Callable[[Bench], Values]:
    """Returns a workload that requests complete responses at a fixed rate."""
    options: Options = {"rate": rate, "connections": connections}

    def work(bench: Bench) -> Values:
        values = _requests(bench, "rate", bodies.whole(), options)
        if values["rps"] < rate * RATE_HELD:
            message = f"only {values['rps']:.0f} of {rate} requests a second"
            raise Invalid(message)
        return values

    return work


def cache(bench: Bench) -> Values:
    """Measures cached responses, and the same responses forwarded."""
    options: Options = {"connections": 16}
    forwarded = _requests(bench, "whole", bodies.whole(), options)
    values = _requests(bench, "whole", bodies.routed("kept"), options)
    if (status := answered(bench.gateway, bodies.routed("kept")).headers.get("x-gateway-cache-status")) != "HIT":
        message = f"the response was not cached; cache status: {status}"
        raise Invalid(message)
    return values | {"of_forwarded": values["cpu_us"] / forwarded["cpu_us"]}


def routing(bench: Bench) -> Values:
    """Measures requests with large configs, compared with a config that has one target."""
    options: Options = {"connections": 16}
    bench.gateway.peer.save_configs(bench.gateway.stand)
    _until_known(bench.gateway, bodies.routed("conditional"))
    configs = ("single", "nested", "conditional")
    # The differences are small compared with the values. Measuring in both orders cancels the drift of the machine.
    turns = [
        {config: _requests(bench, "whole", bodies.routed(config), options) for config in order}
        for order in (configs, configs[::-1]) * ROUTING_TURNS
    ]
    single, nested, conditional = (median(turn[config]["cpu_us"] for turn in turns) for config in configs)
    return {
        "nested_us": nested - single,
        "conditional_us": conditional - single,
        "foreign": max(values["foreign"] for turn in turns for values in turn.values()),
    }


def _until_known(gateway: Gateway, ask: Ask) -> None:
    """Waits until the gateway has reloaded its changed config file."""
    deadline = time.monotonic() + READ_SECONDS
    while answered(gateway, ask).status != HTTPStatus.OK:
        if time.monotonic() > deadline:
            message = "the gateway did not load the saved configs"
            raise Invalid(message)
        time.sleep(READ_SECONDS / 100)


def body(bench: Bench) -> Values:
    """Measures complete responses to requests of 1 MB."""
    return _requests(bench, "whole", bodies.large(), {"connections": 4})


def streams(ask: Ask, count: int, within_ms: int = 0) -> Callable[[Bench], Values]:
    """Returns a workload of `count` concurrent streams, each repeated until the time is up.

    `within_ms` spreads the start of the streams over this time, as with independent clients. Streams that start
    together stay in step: their chunks arrive together, and one wake-up handles many of them.
    """

    def work(bench: Bench) -> Values:
        options: Options = {"streams": count, "within_ms": within_ms, **_expected(bench, ask)}
        bench.warm("stream", ask, options)
        report, values = bench.measure("stream", ask, options, "chunks")
        return values | _named(report, "first_byte_p50_us", "first_byte_p99_us", "late_p50_us", "late_p99_us")

    return work


def _expected(bench: Bench, ask: Ask) -> Options:
    """Returns the exact event count of each stream, for gateways that forward events unchanged."""
    if not bench.gateway.peer.verbatim:
        return {}
    return {"expect_chunks": ask.chunks + bench.framing}


def hold(bench: Bench) -> Values:
    """Measures the memory for each of many concurrent slow streams; all of them must finish."""
    ask = slow(bench.scale)
    base = _memory_at_rest(bench)
    seen = [base]
    report = load.run_watched(
        bench.gateway,
        "hold",
        ask,
        {"streams": SLOW_STREAMS, "seconds": bench.scale.hold_seconds, **_expected(bench, ask)},
        lambda: seen.append(bench.gateway.memory_kb()),
    )
    if report.get("finished") != SLOW_STREAMS:
        message = f"{report.get('finished')} of {SLOW_STREAMS} streams finished"
        raise Invalid(message)
    grown = {"kb_per_stream": (max(seen) - base) / SLOW_STREAMS}
    return grown | _named(report, "first_byte_p50_us", "first_byte_p99_us")


def _memory_at_rest(bench: Bench) -> int:
    """Returns the memory after one stream. Excludes what the gateway allocates once, after its first response and for
    its first stream.
    """
    bench.warm("stream", BURST, {"streams": 1, "rounds": 1})
    time.sleep(bench.scale.idle_seconds)
    return bench.gateway.memory_kb()


def slow(scale: Scale) -> Ask:
    """Returns a request for a stream that lasts as long as the workload."""
    return bodies.stream(scale.hold_seconds * 1000 // SLOW_CHUNK_MS, chunk_ms=SLOW_CHUNK_MS)


def stuck(bench: Bench) -> Values:
    """Measures the memory for each client that sends a request and never reads. A warm-up with a few clients excludes
    one-time allocations.
    """
    bench.warm("stuck", bodies.stream(**ENDLESS), {"clients": STUCK_CLIENTS // 16})
    base = _memory_at_rest(bench)
    seen = [base]
    load.run_watched(
        bench.gateway,
        "stuck",
        bodies.stream(**ENDLESS),
        {"clients": STUCK_CLIENTS, "seconds": bench.scale.stuck_seconds},
        lambda: seen.append(bench.gateway.memory_kb()),
    )
    return {"kb_per_client": (max(seen) - base) / STUCK_CLIENTS}


def _check_burning(gateway: Gateway) -> None:
    """Checks that the burn route exists. The load client ignores its response, so a missing route would go unnoticed."""
    with urlopen(f"http://{gateway.host}{burning.PATH}", timeout=30) as answer:
        if answer.read().decode() != burning.BURNT:
            message = f"{burning.PATH} burns nothing"
            raise Invalid(message)


def tail(bench: Bench) -> Values:
    """Measures the p99 of the data plane while management burns CPU in Python, and while it is idle.

    Then measures the same with management pages, requested near the rate that the gateway can serve. In the idle
    phase the pages come from the provider, so that the page client uses the same CPU time on the load core in both
    phases.
    """
    with running(Burning(), bench.gateway.stand.provider, bench.core) as gateway:
        _check_burning(gateway)
        burnt = replace(bench, gateway=gateway)
        quiet = _p99(burnt)
        with load.asking("whole", f"http://{gateway.host}{burning.PATH}", {"connections": 1, "seconds": READ_SECONDS}):
            busy = _p99(burnt)
    values: Values = {"quiet_p99_ms": quiet, "p99_ms": busy, "rise_ms": busy - quiet}
    for page in MANAGEMENT:
        name = page.rpartition("/")[2].partition(".")[0]
        place = f"http://{bench.gateway.host}{page}"
        pages = _capacity(place, bench.scale.warm_seconds) * NEARLY_ALL
        quiet = _p99_beside(bench, f"{bench.gateway.stand.provider}/v1/models", pages)
        busy = _p99_beside(bench, place, pages)
        values |= {f"{name}_rps": pages, f"{name}_quiet_p99_ms": quiet, f"{name}_p99_ms": busy}
        values["pages_rise_ms"] = max(values.get("pages_rise_ms", busy - quiet), busy - quiet)
    return values


def _capacity(url: str, seconds: float) -> float:
    """Returns how many responses of a page the otherwise idle gateway serves in a second."""
    with load.asking("whole", url, {"connections": PAGE_CLIENTS, "seconds": seconds}) as client:
        asked = load.read(client, seconds)
    if asked.get("errors") or not asked.get("requests"):
        message = f"{url} returned {asked.get('requests')} responses with {asked.get('errors')} errors"
        raise Invalid(message)
    return asked["rps"]


def _p99_beside(bench: Bench, url: str, pages: float) -> float:
    """Returns the p99 in milliseconds while a page is requested `pages` times a second."""
    seconds = bench.scale.seconds * 2 + 2
    with load.asking("rate", url, {"rate": pages, "connections": PAGE_CLIENTS, "seconds": seconds}):
        return _p99(bench)


def _p99(bench: Bench) -> float:
    bench.warm("rate", bodies.whole(), TAIL_LOAD)
    return load.run(bench.gateway, "rate", bodies.whole(), {**TAIL_LOAD, **bench.seconds})["p99_us"] / 1000


def start(bench: Bench) -> Values:
    """Returns the time to the first response and the memory of the idle gateway."""
    time.sleep(bench.scale.idle_seconds)
    idle = bench.gateway.memory_kb() / 1024
    return {"start_s": bench.gateway.started, "idle_mb": idle}


@dataclass(frozen=True)
class Work:
    """A named workload and the peers that run it."""

    name: str
    group: str
    """What it is asked for by on the command line."""
    measure: Callable[[Bench], Values]
    direct: bool = False
    """Whether it says something without a gateway as well."""
    only: tuple[str, ...] = ()
    """Who takes part, where not everybody does."""
    rare: bool = False
    """Whether it takes long and varies little, so that few rounds are enough."""


PACED = bodies.stream(CHUNKS, chunk_ms=CHUNK_MS, stamp=1)
BURST = bodies.stream(CHUNKS)
BURST_STREAMS = 16
ONE_WRITE = bodies.stream(CHUNKS, burst=1)

WORKS: tuple[Work, ...] = (
    Work("whole16", "whole", whole(16), direct=True),
    Work("whole64", "whole", whole(64)),
    Work("rate", "rate", rate(2000, 16)),
    Work("paced", "paced", streams(PACED, STREAMS, within_ms=CHUNK_MS), direct=True),
    Work("instep", "paced", streams(PACED, STREAMS)),
    Work("burst", "burst", streams(BURST, BURST_STREAMS)),
    Work("onewrite", "burst", streams(ONE_WRITE, BURST_STREAMS)),
    Work("cache", "cache", cache, only=("penstock", "nginx")),
    Work("routing", "routing", routing, only=("penstock",)),
    Work("body", "body", body),
    Work("latency", "latency", whole(1), direct=True),
    Work("steady", "latency", rate(40, 1), direct=True),
    Work("hold", "hold", hold, rare=True),
    Work("stuck", "stuck", stuck, rare=True),
    Work("tail", "tail", tail, only=("penstock",)),
    Work("start", "start", start),
)
GROUPS = tuple(dict.fromkeys(work.group for work in WORKS))
