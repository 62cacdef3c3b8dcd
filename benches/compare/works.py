"""Workloads of the comparison: the requests sent to each gateway and the values measured meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from statistics import median
from typing import TYPE_CHECKING
from urllib.request import urlopen

from benches.compare import bodies, cores, guarded, load
from benches.compare.gateway import InvalidSample, RunningGateway, run_gateway, send_request
from benches.compare.peers import burning
from benches.compare.peers.penstock import BurningPenstock
from benches.compare.peers.stored import STORED_VARIANTS, StoredPenstock

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.compare.bodies import RequestSpec
    from benches.compare.load import LoadOptions, LoadReport

Measurements = dict[str, float]


@dataclass(frozen=True)
class Durations:
    """Durations of the phases of a measurement."""

    measure_seconds: float = 5
    warmup_seconds: float = 1
    settle_seconds: float = 0.4
    """Wait after each load, so that deferred work, such as writing records, counts towards the load that caused it."""
    idle_seconds: float = 2
    hold_seconds: int = 10
    stuck_seconds: float = 5
    low_variance_rounds: int = 2


QUICK_DURATIONS = Durations(0.8, 0.2, 0.25, 0.5, 3, 2, low_variance_rounds=1)
STREAM_COUNT = 64
MIN_RATE_SHARE = 0.95
CHUNK_COUNT = 100
CHUNK_INTERVAL_MS = 10
SLOW_STREAM_COUNT = 500
SLOW_CHUNK_INTERVAL_MS = 100
STUCK_CLIENT_COUNT = 64
# Far larger than the socket buffers, so the response is never sent in full.
ENDLESS_STREAM = {"chunks": 1_000_000, "chunk_bytes": 4096}
# Share of the measured page capacity at which pages are requested. The control process is then busy nearly all the
# time, but its queue does not grow without bound.
PAGE_LOAD_SHARE = 0.9
PAGE_CONNECTIONS = 8
EDGE_TITLE = "penstock: edge"
RELOAD_TIMEOUT_SECONDS = 10
# Number of times that the configs are measured in both orders.
ROUTING_REPEATS = 3
TAIL_LOAD_OPTIONS: LoadOptions = {"rate": 500, "connections": 8}
MANAGEMENT_PAGES = ("/schema/openapi.json", "/metrics")


@dataclass(frozen=True)
class BenchContext:
    """Input of a workload: a running gateway, its core and the durations."""

    gateway: RunningGateway
    core: int
    durations: Durations
    framing_events: int = 0
    """Number of events of a stream besides its content chunks. Counted once, without a gateway."""

    @property
    def duration_options(self) -> LoadOptions:
        return {"seconds": self.durations.measure_seconds}

    def warm_up(self, kind: str, request: RequestSpec, options: LoadOptions) -> None:
        load.run(self.gateway, kind, request, {**options, "seconds": self.durations.warmup_seconds})
        time.sleep(self.durations.settle_seconds)

    def measure(
        self, kind: str, request: RequestSpec, options: LoadOptions, units: str
    ) -> tuple[LoadReport, Measurements]:
        """Returns the client's report and the CPU cost of each unit in it. Raises `InvalidSample` if there are no
        units.
        """
        tree = self.gateway.process_tree
        # CPU time of the edge processes alone, which handle the requests. The other processes can work later, and on a
        # larger machine on other cores.
        edge_before = tree.cpu_seconds_of(EDGE_TITLE) if tree else 0.0
        before = cores.read_cpu(self.core, tree)
        report = load.run(self.gateway, kind, request, {**options, **self.duration_options})
        time.sleep(self.durations.settle_seconds)
        after = cores.read_cpu(self.core, tree)
        if not report.get(units):
            message = f"no {units} at all"
            raise InvalidSample(message)
        values = {"foreign": cores.foreign_share(before, after)}
        if tree:
            values["cpu_us"] = (after.gateway_cpu_seconds - before.gateway_cpu_seconds) * 1e6 / report[units]
            if edge_before:
                values["edge_us"] = (tree.cpu_seconds_of(EDGE_TITLE) - edge_before) * 1e6 / report[units]
        return report, values


def _measure_requests(bench: BenchContext, kind: str, request: RequestSpec, options: LoadOptions) -> Measurements:
    bench.warm_up(kind, request, options)
    report, values = bench.measure(kind, request, options, "requests")
    return values | _select_values(report, "rps", "p50_us", "p99_us")


def _select_values(report: LoadReport, *names: str) -> Measurements:
    return {name: report[name] for name in names if name in report}


def make_complete_workload(connections: int) -> Callable[[BenchContext], Measurements]:
    """Returns a workload that requests complete responses in a closed loop, as fast as possible."""
    return lambda bench: _measure_requests(bench, "whole", bodies.non_streaming_request(), {"connections": connections})


def make_rate_workload(rate: int, connections: int) -> Callable[[BenchContext], Measurements]:
    """Returns a workload that requests complete responses at a fixed rate."""
    options: LoadOptions = {"rate": rate, "connections": connections}

    def measure_rate(bench: BenchContext) -> Measurements:
        values = _measure_requests(bench, "rate", bodies.non_streaming_request(), options)
        if values["rps"] < rate * MIN_RATE_SHARE:
            message = f"only {values['rps']:.0f} of {rate} requests a second"
            raise InvalidSample(message)
        return values

    return measure_rate


def measure_cache(bench: BenchContext) -> Measurements:
    """Measures cached responses, and the same responses forwarded."""
    options: LoadOptions = {"connections": 16}
    forwarded = _measure_requests(bench, "whole", bodies.non_streaming_request(), options)
    values = _measure_requests(bench, "whole", bodies.request_with_config("kept"), options)
    if (
        status := send_request(bench.gateway, bodies.request_with_config("kept")).headers.get("x-gateway-cache-status")
    ) != "HIT":
        message = f"the response was not cached; cache status: {status}"
        raise InvalidSample(message)
    return values | {"of_forwarded": values["cpu_us"] / forwarded["cpu_us"]}


def measure_routing(bench: BenchContext) -> Measurements:
    """Measures requests with large configs, compared with a config that has one target."""
    options: LoadOptions = {"connections": 16}
    bench.gateway.peer.save_configs(bench.gateway.launch)
    _wait_for_configs(bench.gateway, bodies.request_with_config("conditional"))
    configs = ("single", "nested", "conditional")
    # The differences are small compared with the values. Measuring in both orders cancels the drift of the machine.
    turns = [
        {config: _measure_requests(bench, "whole", bodies.request_with_config(config), options) for config in order}
        for order in (configs, configs[::-1]) * ROUTING_REPEATS
    ]
    single, nested, conditional = (median(turn[config]["cpu_us"] for turn in turns) for config in configs)
    return {
        "nested_us": nested - single,
        "conditional_us": conditional - single,
        "foreign": max(values["foreign"] for turn in turns for values in turn.values()),
    }


def measure_guardrails(bench: BenchContext) -> Measurements:
    """Measures what five checks of a text of 2 KB add to the same request without them.

    The log worker has no part in the checks, so only the edge processes count where they are separate processes.
    """
    bench.gateway.peer.save_configs(bench.gateway.launch)
    _wait_for_configs(bench.gateway, bodies.guarded_request(guarded.GUARDED))
    turns = [
        {
            config: _measure_requests(bench, "whole", bodies.guarded_request(config), {"connections": 16})
            for config in order
        }
        for order in (guarded.CONFIG_NAMES, guarded.CONFIG_NAMES[::-1]) * ROUTING_REPEATS
    ]
    without, checked = (
        median(turn[config].get("edge_us", turn[config]["cpu_us"]) for turn in turns) for config in guarded.CONFIG_NAMES
    )
    return {
        "unguarded_us": without,
        "guarded_us": checked,
        "checks_us": checked - without,
        "foreign": max(values["foreign"] for turn in turns for values in turn.values()),
    }


def _wait_for_configs(gateway: RunningGateway, request: RequestSpec) -> None:
    """Waits until the gateway has reloaded its changed config file."""
    deadline = time.monotonic() + RELOAD_TIMEOUT_SECONDS
    while send_request(gateway, request).status != HTTPStatus.OK:
        if time.monotonic() > deadline:
            message = "the gateway did not load the saved configs"
            raise InvalidSample(message)
        time.sleep(RELOAD_TIMEOUT_SECONDS / 100)


def make_realistic_workload(connections: int) -> Callable[[BenchContext], Measurements]:
    """Returns a workload with the headers of an SDK and of a large provider.

    Penstock has a saved provider, a price and the log store. It also measures what the bodies in logs, three policies
    and a saved prompt add.
    """
    options: LoadOptions = {"connections": connections}

    def measure_realistic(bench: BenchContext) -> Measurements:
        if bench.gateway.peer.name != "penstock":
            values = _measure_requests(bench, "whole", bodies.realistic_request(), options)
            return values | {"bodies_us": values["cpu_us"]}
        provider_url = bench.gateway.launch.provider_url
        with run_gateway(StoredPenstock(has_records=False), provider_url, bench.core) as gateway:
            unlogged = _measure_requests(
                replace(bench, gateway=gateway), "whole", bodies.realistic_request("plain"), options
            )
        with run_gateway(StoredPenstock(), provider_url, bench.core) as gateway:
            return _measure_variants(replace(bench, gateway=gateway), options, unlogged)

    return measure_realistic


def _measure_variants(bench: BenchContext, options: LoadOptions, unlogged: Measurements) -> Measurements:
    """Measures the variants of one gateway in both orders, which cancels the drift of the machine."""
    turns = [
        {variant: _measure_requests(bench, "whole", bodies.realistic_request(variant), options) for variant in order}
        for order in (STORED_VARIANTS, STORED_VARIANTS[::-1])
    ]
    plain, logged, limited, prompt = (median(turn[variant]["cpu_us"] for turn in turns) for variant in STORED_VARIANTS)
    edge, _, limited_edge, _ = (median(turn[variant]["edge_us"] for turn in turns) for variant in STORED_VARIANTS)
    return {
        "cpu_us": plain,
        "log_us": plain - unlogged["cpu_us"],
        "edge_us": edge,
        "edge_log_us": edge - unlogged["edge_us"],
        "edge_of_unlimited": limited_edge / edge,
        "bodies_us": logged,
        "of_unlimited": limited / plain,
        "prompt_us": prompt - plain,
        "rps": median(turn["plain"]["rps"] for turn in turns),
        "foreign": max(values["foreign"] for turn in turns for values in turn.values()),
    }


def measure_large_body(bench: BenchContext) -> Measurements:
    """Measures complete responses to requests of 1 MB."""
    return _measure_requests(bench, "whole", bodies.large_request(), {"connections": 4})


def make_stream_workload(
    request: RequestSpec, count: int, within_ms: int = 0
) -> Callable[[BenchContext], Measurements]:
    """Returns a workload of `count` concurrent streams, each repeated until the time is up.

    `within_ms` spreads the start of the streams over this time, as with independent clients. Streams that start
    together stay in step: their chunks arrive together, and one wake-up handles many of them.
    """

    def measure_streams(bench: BenchContext) -> Measurements:
        options: LoadOptions = {"streams": count, "within_ms": within_ms, **_expected_chunks(bench, request)}
        bench.warm_up("stream", request, options)
        report, values = bench.measure("stream", request, options, "chunks")
        return values | _select_values(report, "first_byte_p50_us", "first_byte_p99_us", "late_p50_us", "late_p99_us")

    return measure_streams


def _expected_chunks(bench: BenchContext, request: RequestSpec) -> LoadOptions:
    """Returns the exact event count of each stream, for gateways that forward events unchanged."""
    if not bench.gateway.peer.is_verbatim:
        return {}
    return {"expect_chunks": request.chunk_count + bench.framing_events}


def measure_slow_streams(bench: BenchContext) -> Measurements:
    """Measures the memory for each of many concurrent slow streams; all of them must finish."""
    request = slow_stream_request(bench.durations)
    base = _idle_memory_kb(bench)
    received = [base]
    report = load.run_watched(
        bench.gateway,
        "hold",
        request,
        {"streams": SLOW_STREAM_COUNT, "seconds": bench.durations.hold_seconds, **_expected_chunks(bench, request)},
        lambda: received.append(bench.gateway.memory_kb()),
    )
    if report.get("finished") != SLOW_STREAM_COUNT:
        message = f"{report.get('finished')} of {SLOW_STREAM_COUNT} streams finished"
        raise InvalidSample(message)
    grown = {"kb_per_stream": (max(received) - base) / SLOW_STREAM_COUNT}
    return grown | _select_values(report, "first_byte_p50_us", "first_byte_p99_us")


def _idle_memory_kb(bench: BenchContext) -> int:
    """Returns the memory after one stream. Excludes what the gateway allocates once, after its first response and for
    its first stream.
    """
    bench.warm_up("stream", BURST_STREAM, {"streams": 1, "rounds": 1})
    time.sleep(bench.durations.idle_seconds)
    return bench.gateway.memory_kb()


def slow_stream_request(scale: Durations) -> RequestSpec:
    """Returns a request for a stream that lasts as long as the workload."""
    return bodies.streaming_request(
        scale.hold_seconds * 1000 // SLOW_CHUNK_INTERVAL_MS, chunk_ms=SLOW_CHUNK_INTERVAL_MS
    )


def measure_stuck_clients(bench: BenchContext) -> Measurements:
    """Measures the memory for each client that sends a request and never reads. A warm-up with a few clients excludes
    one-time allocations.
    """
    bench.warm_up("stuck", bodies.streaming_request(**ENDLESS_STREAM), {"clients": STUCK_CLIENT_COUNT // 16})
    base = _idle_memory_kb(bench)
    received = [base]
    load.run_watched(
        bench.gateway,
        "stuck",
        bodies.streaming_request(**ENDLESS_STREAM),
        {"clients": STUCK_CLIENT_COUNT, "seconds": bench.durations.stuck_seconds},
        lambda: received.append(bench.gateway.memory_kb()),
    )
    return {"kb_per_client": (max(received) - base) / STUCK_CLIENT_COUNT}


def _check_burn_route(gateway: RunningGateway) -> None:
    """Checks that the burn route exists. The load client ignores its response, so a missing route would go unnoticed."""
    with urlopen(f"http://{gateway.host}{burning.BURN_PATH}", timeout=30) as response:
        if response.read().decode() != burning.BURN_RESPONSE:
            message = f"{burning.BURN_PATH} does not return the expected response"
            raise InvalidSample(message)


def measure_tail_latency(bench: BenchContext) -> Measurements:
    """Measures the p99 of the data plane while management burns CPU in Python, and while it is idle.

    Then measures the same with management pages, requested near the rate that the gateway can serve. In the idle
    phase the pages come from the provider. So the page client uses the same CPU time on the load core in both phases.
    """
    with run_gateway(BurningPenstock(), bench.gateway.launch.provider_url, bench.core) as gateway:
        _check_burn_route(gateway)
        burnt = replace(bench, gateway=gateway)
        quiet = _measure_p99_ms(burnt)
        with load.start_page_client(
            "whole", f"http://{gateway.host}{burning.BURN_PATH}", {"connections": 1, "seconds": RELOAD_TIMEOUT_SECONDS}
        ):
            busy = _measure_p99_ms(burnt)
    values: Measurements = {"quiet_p99_ms": quiet, "p99_ms": busy, "rise_ms": busy - quiet}
    for page in MANAGEMENT_PAGES:
        name = page.rpartition("/")[2].partition(".")[0]
        page_url = f"http://{bench.gateway.host}{page}"
        pages = _measure_capacity(page_url, bench.durations.warmup_seconds) * PAGE_LOAD_SHARE
        quiet = _p99_under_page_load(bench, f"{bench.gateway.launch.provider_url}/v1/models", pages)
        busy = _p99_under_page_load(bench, page_url, pages)
        values |= {f"{name}_rps": pages, f"{name}_quiet_p99_ms": quiet, f"{name}_p99_ms": busy}
        values["pages_rise_ms"] = max(values.get("pages_rise_ms", busy - quiet), busy - quiet)
    return values


def _measure_capacity(url: str, seconds: float) -> float:
    """Returns how many responses of a page the otherwise idle gateway serves in a second."""
    with load.start_page_client("whole", url, {"connections": PAGE_CONNECTIONS, "seconds": seconds}) as client:
        report = load.read_report(client, seconds)
    if report.get("errors") or not report.get("requests"):
        message = f"{url} returned {report.get('requests')} responses with {report.get('errors')} errors"
        raise InvalidSample(message)
    return report["rps"]


def _p99_under_page_load(bench: BenchContext, url: str, pages: float) -> float:
    """Returns the p99 in milliseconds while a page is requested `pages` times a second."""
    seconds = bench.durations.measure_seconds * 2 + 2
    with load.start_page_client("rate", url, {"rate": pages, "connections": PAGE_CONNECTIONS, "seconds": seconds}):
        return _measure_p99_ms(bench)


def _measure_p99_ms(bench: BenchContext) -> float:
    bench.warm_up("rate", bodies.non_streaming_request(), TAIL_LOAD_OPTIONS)
    return (
        load.run(
            bench.gateway, "rate", bodies.non_streaming_request(), {**TAIL_LOAD_OPTIONS, **bench.duration_options}
        )["p99_us"]
        / 1000
    )


def measure_startup(bench: BenchContext) -> Measurements:
    """Returns the time to the first response and the memory of the idle gateway."""
    time.sleep(bench.durations.idle_seconds)
    idle = bench.gateway.memory_kb() / 1024
    return {"start_s": bench.gateway.startup_seconds, "idle_mb": idle}


@dataclass(frozen=True)
class Workload:
    """A named workload and the peers that run it."""

    name: str
    group: str
    """Name of the workload's group. The command line selects workloads by group."""
    measure: Callable[[BenchContext], Measurements]
    includes_direct: bool = False
    """True if the workload is also run without a gateway."""
    only_peers: tuple[str, ...] = ()
    """Names of the peers that run the workload; empty for all."""
    is_low_variance: bool = False
    """True if the workload takes long and its values vary little, so that a few rounds are enough."""


PACED_STREAM = bodies.streaming_request(CHUNK_COUNT, chunk_ms=CHUNK_INTERVAL_MS, stamp=1)
BURST_STREAM = bodies.streaming_request(CHUNK_COUNT)
BURST_STREAM_COUNT = 16
ONE_WRITE_STREAM = bodies.streaming_request(CHUNK_COUNT, burst=1)

WORKLOADS: tuple[Workload, ...] = (
    Workload("whole16", "whole", make_complete_workload(16), includes_direct=True),
    Workload("whole64", "whole", make_complete_workload(64)),
    Workload("realistic16", "realistic", make_realistic_workload(16), only_peers=("penstock", "nginx")),
    Workload("realistic64", "realistic", make_realistic_workload(64), only_peers=("penstock", "nginx")),
    Workload("rate", "rate", make_rate_workload(2000, 16)),
    Workload(
        "paced",
        "paced",
        make_stream_workload(PACED_STREAM, STREAM_COUNT, within_ms=CHUNK_INTERVAL_MS),
        includes_direct=True,
    ),
    Workload("instep", "paced", make_stream_workload(PACED_STREAM, STREAM_COUNT)),
    Workload("burst", "burst", make_stream_workload(BURST_STREAM, BURST_STREAM_COUNT)),
    Workload("onewrite", "burst", make_stream_workload(ONE_WRITE_STREAM, BURST_STREAM_COUNT)),
    Workload("cache", "cache", measure_cache, only_peers=("penstock", "nginx")),
    Workload("routing", "routing", measure_routing, only_peers=("penstock",)),
    Workload("guardrails", "guardrails", measure_guardrails, only_peers=("penstock", "portkey")),
    Workload("body", "body", measure_large_body),
    Workload("latency", "latency", make_complete_workload(1), includes_direct=True),
    Workload("steady", "latency", make_rate_workload(40, 1), includes_direct=True),
    Workload("hold", "hold", measure_slow_streams, is_low_variance=True),
    Workload("stuck", "stuck", measure_stuck_clients, is_low_variance=True),
    Workload("tail", "tail", measure_tail_latency, only_peers=("penstock",)),
    Workload("start", "start", measure_startup),
)
WORKLOAD_GROUPS = tuple(dict.fromkeys(work.group for work in WORKLOADS))
