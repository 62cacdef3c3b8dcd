"""Generated records with feedback, and the numbers that analytics must return for them, computed in plain Python."""

from __future__ import annotations

import datetime as dt
import json
import random
import statistics
import uuid
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from penstock.logs.batch import BodyLocation, RecordBatch
from penstock.logs.body_text import split_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.logs.query import LogFilters

Graph = tuple[dict[str, Any], list[dict[str, Any]]]
START = dt.datetime(2026, 11, 2, 0, 0, tzinfo=dt.UTC)
MODELS = [("openai", "gpt-5"), ("openai", "gpt-5-mini"), ("anthropic", "claude"), ("it's", 'a "b" \\ %_')]
WORDS = ["apple", "banana", "Überfluss", "日本", "can't", "x_y", "100%"]
# Fields that the record of a killed request lacks, because they become known after it has begun.
UNKNOWN_OF_KILLED = (
    *("response_status_code", "response_time", "req_units", "res_units", "total_units", "cost_nanodollars"),
    *("config", "last_used_option_index", "decisions", "cache_status", "retry_success_count", "usage"),
    "request_headers",
)
TEAMS = ["red", "blue", "o'neil", 'quote"', "back\\slash", "%", None]


def make_id(moment: dt.datetime, source: random.Random) -> uuid.UUID:
    milliseconds = int(moment.timestamp() * 1000)
    return uuid.UUID(
        int=(milliseconds << 80) | (7 << 76) | (source.getrandbits(12) << 64) | (2 << 62) | source.getrandbits(62)
    )


def make_record(source: random.Random, moment: dt.datetime, organisation: str = "org") -> dict[str, Any]:
    provider, model = source.choice(MODELS)
    status = source.choice([200] * 8 + [429, 500, 503])
    units = source.choice([None, (source.randrange(1, 4000), source.randrange(1000))])
    cache = source.choice(["disabled", "miss", "hit", "semantic_hit", "refresh"])
    is_fallback = source.random() < 0.2
    target = f"config.targets[{1 if is_fallback else 0}]"
    user, team = source.choice(["ann", "bob", "", None]), source.choice(TEAMS)
    record = {
        "id": str(make_id(moment, source)),
        "created_at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "organisation_id": organisation,
        "workspace_id": source.choice(["w1", "w2", "w3"]),
        "api_key_id": source.choice(["k1", "k2", None]),
        "user_id": source.choice(["u1", "u2", None]),
        "user": user,
        "trace_id": f"t{source.randrange(300)}",
        "span_id": f"s{source.randrange(1000)}",
        "request_method": "POST",
        "request_url": "/v1/chat/completions",
        "response_status_code": status,
        "is_success": status == 200 and source.random() < 0.95,
        "outcome": "complete" if source.random() < 0.9 else "killed",
        "response_time": round(source.lognormvariate(6, 1), 3),
        "ai_org": provider,
        "ai_model": model,
        "virtual_key": source.choice(["vk-1", "vk-2", None]),
        "config": source.choice(["c1", "c2", None]),
        "prompt_slug": source.choice(["p1", None]),
        "prompt_version": source.choice([1, 2]),
        "source": source.choice(["gateway", "gateway", "comparison"]),
        "operation": "chat_completions",
        "mode": "fallback",
        "last_used_option_index": target,
        "decisions": [
            {
                "step": "tried",
                "at": "config.targets[0]",
                "provider": "openai",
                "status": 503 if is_fallback else status,
            },
            *([{"step": "chose", "at": "config", "strategy": "fallback", "target": 1}] if is_fallback else []),
        ],
        "cache_status": cache,
        "retry_success_count": source.choice([0, 0, 0, 1, 2, -1]),
        "is_proxy_call": False,
        "stream_mode": source.random() < 0.5,
        "metadata": {key: value for key, value in (("_user", user), ("team", team), ("k'\"\\", "v")) if value},
        "usage": {"input": 1},
        "request_headers": {"accept": "*/*"},
        "later_field": 1,
    }
    if units:
        cost = None if source.random() < 0.2 else source.randrange(10**8)
        record |= {"req_units": units[0], "res_units": units[1], "total_units": sum(units), "cost_nanodollars": cost}
    if record["outcome"] == "killed":
        record |= dict.fromkeys(UNKNOWN_OF_KILLED) | {"is_success": False}
    if source.random() < 0.6:
        record["hook_results"] = {
            stage: [make_result(source) for _ in range(source.randrange(3))]
            for stage in ("before_request_hooks", "after_request_hooks")
        }
    return record


def make_result(source: random.Random) -> dict[str, Any]:
    """Returns the result of a guardrail, as the engine writes it."""
    name = source.choice(["pg-words", "pg-people", "it's"])
    if source.random() < 0.1:
        return {"id": name, "type": "guardrail", "skipped": True, **source.choice([{}, {"deny": True}])}
    checks: list[dict[str, Any]] = [
        {"id": source.choice(["gateway.pii", "default.contains"]), "verdict": source.random() < 0.7, "data": None}
        for _ in range(source.randrange(3))
    ]
    if checks and source.random() < 0.3:
        checks[0] |= {"verdict": False, "error": {"name": "Check error", "message": "m"}}
    verdict = source.random() < 0.6
    dry_run = source.choice([{}, {"dry_run": True, "would_deny": not verdict}])
    deny = not verdict and source.random() < 0.5
    elapsed = sum(map(ord, name)) % 40 + 10 * len(checks)
    return {"id": name, "verdict": verdict, "deny": deny, **dry_run, "checks": checks, "execution_time": elapsed}


class Sample:
    """Records of two organisations over 20 days, with feedback and texts."""

    def __init__(self, count: int, seed: int = 7, days: float = 20) -> None:
        source = random.Random(seed)  # noqa: S311 - not for cryptography
        moments = sorted(
            START + dt.timedelta(milliseconds=source.randrange(int(days * 86_400_000))) for _ in range(count)
        )
        self.records = [make_record(source, moment, source.choice(["org", "org", "other"])) for moment in moments]
        self.texts = {record["id"]: " ".join(source.sample(WORDS, 3)) for record in self.records}
        self.feedback = [
            {
                "id": str(uuid.UUID(int=source.getrandbits(128), version=4)),
                "organisation_id": source.choice(["org", "other"]),
                "workspace_id": source.choice(["w1", "w2"]),
                "trace_id": f"t{source.randrange(400)}",
                "value": source.randrange(-10, 11),
                "weight": source.choice([1.0, 0.5, 0.25]),
                "metadata": {"by": "test"},
                "created_at": START.isoformat(),
            }
            for _ in range(count // 8)
        ]

    def batch(self, *, node: str = "n1", writer: str = "edge-0") -> RecordBatch:
        return RecordBatch(
            node=node,
            writer=writer,
            records=[json.dumps(record).encode() for record in self.records],
            feedback=self.feedback,
            bodies={uuid.UUID(record["id"]): BodyLocation("pack", at, 1) for at, record in enumerate(self.records)},
            texts={uuid.UUID(key): text for key, text in self.texts.items()},
        )

    def select(self, filters: LogFilters) -> list[dict[str, Any]]:
        return [record for record in self.records if self.matches(filters, record)]

    def feedback_of(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        if not hasattr(self, "_feedback"):
            self._feedback = defaultdict(list)
            for item in self.feedback:
                self._feedback[item["organisation_id"], item["workspace_id"], item["trace_id"]].append(item)
        return self._feedback.get((record["organisation_id"], record["workspace_id"], record["trace_id"]), [])

    def matches(self, filters: LogFilters, record: dict[str, Any]) -> bool:
        weighted = mean([item["value"] * item["weight"] for item in self.feedback_of(record)], None)
        cents = None if record.get("cost_nanodollars") is None else record["cost_nanodollars"] / 1e7
        created = dt.datetime.fromisoformat(record["created_at"])
        restriction = filters.restricted_to
        pair = f"{record['ai_org']}__{record['ai_model']}"
        words = set(split_words(self.texts.get(record["id"], "")))
        return all((
            record["organisation_id"] == filters.organisation_id,
            is_in(record["workspace_id"], filters.workspace_ids),
            restriction is None
            or record["user_id"] in restriction.user_ids
            or record["api_key_id"] in restriction.api_key_ids,
            is_between(created, filters.time_of_generation_min, filters.time_of_generation_max),
            is_between(record.get("total_units"), filters.total_units_min, filters.total_units_max),
            is_between(record.get("req_units"), filters.prompt_token_min, filters.prompt_token_max),
            is_between(record.get("res_units"), filters.completion_token_min, filters.completion_token_max),
            is_between(cents, filters.cost_min, filters.cost_max),
            is_between(weighted, filters.weighted_feedback_min, filters.weighted_feedback_max),
            is_in(record["response_status_code"] or 0, filters.status_code),
            is_in(record["virtual_key"], filters.virtual_keys),
            is_in(record["config"], filters.configs),
            is_in(record["api_key_id"], filters.api_key_ids),
            is_in(record["user_id"], filters.user_ids),
            is_in(record["ai_model"], filters.ai_model),
            filters.ai_org_model is None or pair in filters.ai_org_model or f"{record['ai_org']}__" in filters.ai_org_model,
            is_in(record["trace_id"], filters.trace_id),
            is_in(record["span_id"], filters.span_id),
            is_in(record["prompt_slug"], filters.prompt_slug),
            is_in(record["cache_status"], filters.cache_status),
            is_in(record["outcome"], filters.outcome),
            filters.rescued is None or bool(rescues_of(record) & set(filters.rescued)),
            filters.guardrails is None or any(item["id"] in filters.guardrails for item in results_of(record)),
            all(record["metadata"].get(key) in values for key, values in (filters.metadata or {}).items()),
            not filters.q or set(split_words(filters.q)) <= words,
        ))  # fmt: skip


def is_in(value: object, values: Iterable[object] | None) -> bool:
    return values is None or value in values


def is_between(value: Any, low: Any, high: Any) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)


def mean(values: Iterable[float | None], default: Any = 0) -> Any:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else default


def known_times(records: Iterable[dict[str, Any]]) -> list[float]:
    return [record["response_time"] for record in records if record["response_time"] is not None]


def status_of(record: dict[str, Any]) -> int:
    """Returns the status that analytics show: 0 without a response."""
    return record["response_status_code"] or 0


def percentile(values: list[float], level: float) -> float:
    if not values:
        return 0
    ordered = sorted(values)
    at = level * (len(ordered) - 1)
    low = int(at)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)


def is_hit(record: dict[str, Any]) -> bool:
    return record["cache_status"] in {"hit", "semantic_hit"}


def is_unpriced(record: dict[str, Any]) -> bool:
    is_used = bool(record.get("total_units")) or record["outcome"] == "killed"
    return is_used and record.get("cost_nanodollars") is None and not is_hit(record)


def has_fallen_back(record: dict[str, Any]) -> bool:
    return any(step["step"] == "chose" and step["target"] > 0 for step in record["decisions"] or ())


def results_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the results of all guardrails of a record."""
    return [item for stage in record.get("hook_results", {}).values() for item in stage]


def verdict_of(item: dict[str, Any]) -> str:
    words = {"denied": "deny", "would_deny": "would_deny", "skipped": "skipped", "passed": "verdict"}
    return next((word for word, field in words.items() if item.get(field)), "failed")


def rescues_of(record: dict[str, Any]) -> set[str]:
    ways = {"retry": (record["retry_success_count"] or 0) > 0, "fallback": has_fallen_back(record)}
    return {way for way, happened in ways.items() if happened and record["is_success"]}


class Expectation:
    """Expected numbers of all graphs over the filtered records. `split` returns the bucket of a record by its time."""

    def __init__(self, sample: Sample, filters: LogFilters, split: Callable[[str], str], starts: list[str]) -> None:
        self.sample, self.filters, self.split, self.starts = sample, filters, split, starts
        self.records = sample.select(filters)
        self.buckets: dict[str, list[dict[str, Any]]] = {start: [] for start in starts}
        for record in self.records:
            self.buckets[split(record["created_at"])].append(record)

    def graph(self, name: str) -> dict[str, Any]:
        summary, points = getattr(self, "_" + name.replace("/", "_").replace("-", "_"))()
        return {"summary": summary, "data_points": points, "object": "analytics-graph"}

    def _series(self, shape: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> Graph:
        return shape(self.records), [{"timestamp": start, **shape(part)} for start, part in self.buckets.items()]

    def _requests(self) -> Graph:
        return self._series(lambda part: {"total": len(part)})

    def _sum(self, key: str, factor: float) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            total = sum(record.get(key) or 0 for record in part) / factor
            return {"total": total, "avg": total / len(part) if part else 0}

        return self._series(shape)

    def _cost(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            total = sum(record.get("cost_nanodollars") or 0 for record in part) / 1e7
            unpriced = sum(map(is_unpriced, part))
            priced = len(part) - unpriced
            return {"total": total, "avg": total / priced if priced else 0, "unpriced": unpriced}

        return self._series(shape)

    def _tokens(self) -> Graph:
        return self._sum("total_units", 1)

    def _latency(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            times = known_times(part)
            levels = {f"p{level * 100:g}": percentile(times, level) for level in (0.5, 0.9, 0.99)}
            return {"avg": mean(times), **levels}

        return self._series(shape)

    def _users(self) -> Graph:
        return self._series(lambda part: {"total": len({record["user"] for record in part if record["user"]})})

    def _users_requests(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            users = [record["user"] for record in part if record["user"]]
            return {"total": len(users), "unique": len(set(users)), "avg": len(users) / len(set(users)) if users else 0}

        summary, points = self._series(shape)
        return summary, [{"timestamp": point["timestamp"], "avg": point["avg"]} for point in points]

    def _errors(self) -> Graph:
        return self._series(lambda part: {"total": sum(not record["is_success"] for record in part)})

    def _errors_rate(self) -> Graph:
        return self._series(lambda part: {"rate": mean(100.0 * (not record["is_success"]) for record in part)})

    def _errors_stacks(self) -> Graph:
        def count(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
            counts = Counter(status_of(record) for record in part if not record["is_success"])
            return [{"response_status_code": status, "count": n} for status, n in sorted(counts.items())]

        points = [{"timestamp": start, "stats": count(part)} for start, part in self.buckets.items()]
        return {"total": sum(not record["is_success"] for record in self.records)}, points

    def _errors_status_codes(self) -> Graph:
        counts = Counter(status_of(record) for record in self.records if not record["is_success"])
        points = [
            {"status_code": status, "count": n} for status, n in sorted(counts.items(), key=lambda at: (-at[1], at[0]))
        ]
        return {"total_errors": counts.total(), "unique_error_codes": len(counts)}, points

    def _requests_rescued(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            good = [record for record in part if record["is_success"]]
            counts = Counter(record["retry_success_count"] for record in good if record["retry_success_count"] > 0)
            retry = [{"retry_success_count": number, "count": n} for number, n in sorted(counts.items())]
            return {"retry": retry, "fallback": sum(map(has_fallen_back, good))}

        summary, points = self._series(shape)
        return {**summary, "retry": sum(item["count"] for item in summary["retry"])}, points

    def _cache_hit_rate(self) -> Graph:
        costs = defaultdict(list)
        for record in self.records:
            if not is_hit(record) and record.get("cost_nanodollars") is not None:
                costs[record["ai_org"], record["ai_model"]].append(record["cost_nanodollars"] / 1e7)
        saved = {"hit": 0.0, "semantic_hit": 0.0}
        points = []
        for start, part in self.buckets.items():
            counts = Counter(record["cache_status"] for record in part)
            for record in filter(is_hit, part):
                saved[record["cache_status"]] += mean(costs[record["ai_org"], record["ai_model"]])
            points.append({
                "timestamp": start,
                "simple_hits": counts["hit"],
                "semantic_hits": counts["semantic_hit"],
                "rate": mean(100.0 * is_hit(record) for record in part),
                "cumulative_simple_cache_savings": saved["hit"],
                "cumulative_semantic_cache_savings": saved["semantic_hit"],
            })  # fmt: skip
        hits = sum(map(is_hit, self.records))
        return {"total": hits, "rate": mean(100.0 * is_hit(record) for record in self.records)}, points

    def _cache_latency(self) -> Graph:
        points = self._series(lambda part: {"avg": mean(record["response_time"] for record in part if is_hit(record))})[
            1
        ]
        return {}, points

    def _results(self, part: list[dict[str, Any]]) -> list[dict[str, Any]]:
        chosen = self.filters.guardrails
        return [item for record in part for item in results_of(record) if is_in(item["id"], chosen)]

    def _guardrails(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            words = ("passed", "failed", "denied", "would_deny", "skipped")
            counts = Counter(map(verdict_of, self._results(part)))
            return {"total": counts.total(), **{word: counts[word] for word in words}}

        return self._series(shape)

    def _guardrails_latency(self) -> Graph:
        def shape(part: list[dict[str, Any]]) -> dict[str, Any]:
            times = [item["execution_time"] for item in self._results(part) if "execution_time" in item]
            levels = {f"p{level * 100:g}": percentile(times, level) for level in (0.5, 0.9, 0.99)}
            return {"avg": mean(times), **levels}

        return self._series(shape)

    def _trace_feedback(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Pairs of feedback and the first record of its trace."""
        first = {}
        for record in self.records:
            first.setdefault((record["workspace_id"], record["trace_id"]), record)
        return [(item, record) for record in first.values() for item in self.sample.feedback_of(record)]

    def _feedback_series(self, shape: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> Graph:
        pairs = self._trace_feedback()
        buckets: dict[str, list[dict[str, Any]]] = {start: [] for start in self.starts}
        for item, record in pairs:
            buckets[self.split(record["created_at"])].append(item)
        return shape([item for item, _ in pairs]), [
            {"timestamp": start, **shape(part)} for start, part in buckets.items()
        ]

    def _feedbacks(self) -> Graph:
        return self._feedback_series(lambda part: {"total": len(part)})

    def _feedbacks_weighted(self) -> Graph:
        return self._feedback_series(lambda part: {"avg": mean(item["value"] * item["weight"] for item in part)})

    def _feedbacks_scores(self) -> Graph:
        counts = Counter(item["value"] for item, _ in self._trace_feedback())
        return {"total": counts.total()}, [{"score": score, "total": n} for score, n in sorted(counts.items())]

    def _feedbacks_ai_models(self) -> Graph:
        values = defaultdict(dict)
        for record in self.records:
            for item in self.sample.feedback_of(record):
                values[record["ai_model"]][item["id"]] = item["value"] * item["weight"]
        points = [
            {"ai_model": name, "total": len(at), "avg_weighted_feedback": mean(at.values())}
            for name, at in values.items()
        ]
        return {}, sorted(points, key=lambda point: (-point["total"], point["ai_model"]))
