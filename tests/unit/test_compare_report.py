"""Statistics and report of the gateway comparison, from samples with known results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benches.compare import __main__ as compare
from benches.compare import figures, paired, publish, report, result
from benches.compare.cores import CpuReading, foreign_share
from benches.compare.result import Result, Sample

if TYPE_CHECKING:
    from pathlib import Path


def cpu_samples(peer: str, *values: float, work: str = "whole16") -> list[Sample]:
    return [Sample(number, work, peer, {"cpu_us": value}) for number, value in enumerate(values, 1)]


def make_result(*samples: Sample, **changes: object) -> Result:
    versions = dict.fromkeys(dict.fromkeys(sample.peer for sample in samples), "1.0")
    known = Result("2026-01-02 03:04", quick=False, rounds=3, machine={"cores": "2"}, versions=versions)
    known.samples.extend(samples)
    for name, value in changes.items():
        setattr(known, name, value)
    return known


def find_verdict(known: Result, work: str, against: str | None = "nginx") -> figures.Verdict:
    return next(
        evaluate_target
        for evaluate_target in figures.evaluate_targets(known)
        if (evaluate_target.metric.workload, evaluate_target.metric.baseline) == (work, against)
    )


def test_ratio_is_the_median_of_the_ratios_per_round() -> None:
    samples = cpu_samples("penstock", 30, 44, 90) + cpu_samples("nginx", 20, 22, 30)
    spread = paired.ratio_spread(samples, "whole16", "cpu_us", ("penstock", "nginx"))
    assert spread == paired.Spread(2.0, 1.5, 3.0, 3)


def test_ignores_rounds_that_only_one_peer_finished() -> None:
    samples = [
        *cpu_samples("penstock", 30, 44),
        *cpu_samples("nginx", 20),
        Sample(2, "whole16", "nginx", {}, "it died"),
    ]
    spread = paired.ratio_spread(samples, "whole16", "cpu_us", ("penstock", "nginx"))
    assert spread == paired.Spread(1.5, 1.5, 1.5, 1)


def test_no_samples_give_no_ratio() -> None:
    assert paired.ratio_spread([], "whole16", "cpu_us", ("penstock", "nginx")) is None
    assert paired.compute_spread([]) is None


def test_does_not_divide_by_a_negative_value() -> None:
    samples = cpu_samples("penstock", 10, 10) + cpu_samples("nginx", -5, 5)
    assert paired.ratio_spread(samples, "whole16", "cpu_us", ("penstock", "nginx")) == paired.Spread(2.0, 2.0, 2.0, 1)


def test_added_latency_is_relative_to_the_direct_request() -> None:
    samples = [
        Sample(1, "latency", "direct", {"p50_us": 50}),
        Sample(1, "latency", "nginx", {"p50_us": 150}),
        Sample(2, "latency", "nginx", {"p50_us": 170}),
    ]
    known = paired.add_overhead(samples, "latency", ("p50_us",))
    assert [sample.values.get("added_p50_us") for sample in known] == [None, 100, None]


def test_target_is_met_at_its_limit_and_missed_above() -> None:
    nginx = cpu_samples("nginx", 20, 20, 20)
    assert find_verdict(make_result(*cpu_samples("penstock", 50, 50, 50), *nginx), "whole16").is_met is True
    assert find_verdict(make_result(*cpu_samples("penstock", 50, 51, 51), *nginx), "whole16").is_met is False
    assert find_verdict(make_result(*nginx), "whole16").is_met is None


def test_target_without_a_peer_uses_the_absolute_value() -> None:
    hold = Sample(1, "hold", "penstock", {"kb_per_stream": 41.0})
    assert find_verdict(make_result(hold), "hold", None).is_met is False


def test_one_invalid_sample_misses_the_target() -> None:
    samples = [
        *cpu_samples("penstock", 20),
        *cpu_samples("nginx", 20, 20),
        Sample(2, "whole16", "penstock", {}, "3 errors"),
    ]
    verdict = find_verdict(make_result(*samples), "whole16")
    assert verdict.is_met is False
    assert verdict.invalid_reason == "3 errors"


def test_report_shows_what_was_and_was_not_measured() -> None:
    samples = [
        *cpu_samples("nginx", 20, 22, 30),
        *cpu_samples("penstock", 30, 44, 90),
        Sample(1, "body", "nginx", {}, "2 errors"),
    ]
    text = report.render_report(make_result(*samples, left_out={"bifrost": "no Go"}, warnings=["noisy"]))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "2.00× [1.50–3.00]" in text
    assert "| 44.0 (2.00×) |" in text
    assert "not measured" in rows["1 MB request body"]
    assert "- bifrost: no Go" in text
    assert "- nginx, body: 2 errors" in text
    assert "- noisy" in text


@pytest.mark.parametrize(
    ("has_named_peers", "peers", "works", "left_out", "status"),
    [
        (False, ["penstock", "nginx"], ["body"], {}, 0),
        (False, ["penstock", "nginx"], ["body"], {"nginx": "no package"}, 1),
        (False, ["penstock", "nginx"], ["body"], {"bifrost": "no Go"}, 0),
        (False, ["penstock", "nginx"], ["body", "hold"], {}, 1),
        (True, ["penstock", "nginx"], ["body", "hold"], {"nginx": "no package"}, 0),
        (True, ["penstock", "nginx"], ["body"], {"penstock": "it died"}, 1),
        (True, ["nginx"], ["body"], {}, 0),
    ],
)
def test_run_succeeds_only_if_it_measured_everything(
    has_named_peers: bool, peers: list[str], works: list[str], left_out: dict[str, str], status: int
) -> None:
    known = make_result(
        *cpu_samples("penstock", 30, work="body"), *cpu_samples("nginx", 20, work="body"), left_out=left_out
    )
    assert compare.exit_status(known, has_named_peers=has_named_peers, peers=peers, workloads=works) == status


def test_marks_samples_disturbed_by_foreign_load() -> None:
    noisy = Sample(1, "whole16", "nginx", {"cpu_us": 20, "foreign": 0.08})
    text = report.render_report(
        make_result(noisy, *cpu_samples("penstock", 30), *cpu_samples("nginx", 20, work="whole64"))
    )
    assert text.count("1.50× [1.50–1.50] † |") == 1
    assert text.count("| 20.0 † |") == 1
    assert text.count("| 20.0 ") == 2
    assert "- † whole16: others used the gateway's core: nginx 8%" in text


def test_every_table_row_has_all_columns() -> None:
    text = report.render_table(["work", "met"], [["a long title", "yes"], ["short", ""]])
    assert {line.count("|") for line in text.splitlines()} == {3}
    assert len({len(line) for line in text.splitlines()}) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (2.5, "2.50"), (19.04, "19.0"), (935.4, "935"), (70900.0, "70,900"), (-0.5, "-0.50")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert report.format_number(value) == text


def test_result_can_be_saved_and_loaded(tmp_path: Path) -> None:
    known = make_result(*cpu_samples("nginx", 20, 22), left_out={"envoy": "no pip"})
    known.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["at"] == "2026-01-02 03:04"
    assert result.load_result(tmp_path / "run.json") == known


def test_chart_is_drawn_from_the_same_samples(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    known = make_result(
        *cpu_samples("nginx", 20, 22, 30), *cpu_samples("penstock", 30, 44, 90), *cpu_samples("haproxy", 18, 19, 20)
    )
    assert "penstock" in report.write_report(known, tmp_path / "run.json")
    assert (tmp_path / "run.md").read_text() == report.render_report(known)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_interrupt_time_is_not_foreign_load() -> None:
    before = CpuReading(
        timestamp=0, busy_seconds=10, steal_seconds=0, gateway_cpu_seconds=1, other_cpu_seconds={7: 1.0}
    )
    after = CpuReading(
        timestamp=10, busy_seconds=18, steal_seconds=0, gateway_cpu_seconds=6, other_cpu_seconds={7: 1.2, 8: 0.1}
    )
    assert foreign_share(before, after) == pytest.approx(0.03)


def test_stolen_cpu_time_counts_in_full() -> None:
    before = CpuReading(timestamp=0, busy_seconds=0, steal_seconds=0, gateway_cpu_seconds=0, other_cpu_seconds={})
    after = CpuReading(timestamp=10, busy_seconds=9, steal_seconds=1, gateway_cpu_seconds=9, other_cpu_seconds={7: 5.0})
    assert foreign_share(before, after) == pytest.approx(0.1)


def test_every_figure_belongs_to_a_workload() -> None:
    from benches.compare.works import WORKLOADS  # noqa: PLC0415 - it needs what is only there to compare

    assert {figure.workload for figure in figures.METRICS} <= {work.name for work in WORKLOADS}


def test_published_table_has_a_column_for_each_gateway() -> None:
    samples = [
        *cpu_samples("penstock", 40, 44, 42, work="whole64"),
        *cpu_samples("nginx", 20, 22, 21, work="whole64"),
        Sample(1, "start", "penstock", {"start_s": 0.5, "idle_mb": 99}),
        Sample(1, "latency", "direct", {"p50_us": 50, "p99_us": 70}),
        Sample(1, "latency", "nginx", {"p50_us": 150, "p99_us": 270}),
    ]
    section = publish.render_section(make_result(*samples))
    lines = section.splitlines()
    assert lines[0].startswith("Measured on 2026-01-02 in one run of 3 interleaved rounds")
    assert "penstock 1.0, nginx 1.0." in lines[0]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert table[0] == ["work", "unit", "penstock", "nginx"]
    assert table[2] == ["complete response, 64 connections", "CPU µs/request", "42.0 (2.00×)", "21.0"]
    assert [row[2:] for row in table[3:]] == [["–", "100"], ["–", "200"], ["0.50", "–"], ["99.0", "–"]]


def test_publishing_replaces_only_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{publish.BEGIN}\n\nold\n\n{publish.END}\n\nafter\n")
    monkeypatch.setattr(publish, "PAGE", page)
    file = tmp_path / "run.json"
    make_result(*cpu_samples("penstock", 40, work="whole64"), quick=True).save(file)
    assert publish.main([str(file)]) == 1
    assert publish.main([str(file), "--allow-quick"]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n\n{publish.BEGIN}\n\nMeasured on ")
    assert text.endswith(f"|\n\n{publish.END}\n\nafter\n")
    assert "old" not in text
    with pytest.raises(ValueError, match="no lines"):
        publish.replace_section("a page without markers", "")


def test_the_page_has_a_place_for_the_table() -> None:
    assert publish.replace_section(publish.PAGE.read_text(), "x").count("\n\nx\n\n") == 1
