"""Input file of a batch. Each line is one request; its errors are reported with the line number."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batches.files import iter_lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from penstock.blobs.store import BlobStore
    from penstock.settings import Settings
    from penstock.store.tenant import Row

MAX_CUSTOM_ID_CHARS = 512
# Maximum number of errors that the validation of one file reports.
MAX_ERRORS = 100
# Maximum length of a line that guardrails have checked. They may make it longer, and add their results.
MAX_CHECKED_LINE_BYTES = 64 * 1024 * 1024


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]
    # Results of the guardrails, in a file that the gateway has written after they checked the line.
    hook_results: list[dict[str, Any]] | None = None


# A problem with a line: its code, its message, and the field that has it.
LineFault = tuple[str, str, str]


class InputError(msgspec.Struct, frozen=True):
    """An error in one line, or in the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchInput:
    """The lines of one batch."""

    def __init__(self, blobs: BlobStore, settings: Settings, row: Row) -> None:
        """Stores the blob storage, the id of the input file, and the endpoint of its lines."""
        self._blobs = blobs
        self._settings = settings
        self._row = row
        self._file_id: str = row["input_file_id"]
        self._endpoint: str = row["endpoint"]
        self._model: str | None = row["model"]
        self._is_provider_batch = bool(row["job"])
        self._max_line_bytes: int = settings.batches.line_bytes
        if row["job"] and "checked_file_id" in row["job"]:
            self._file_id, self._max_line_bytes = row["job"]["checked_file_id"], MAX_CHECKED_LINE_BYTES

    def with_checked_file(self, file_id: str) -> BatchInput:
        """Returns the input with the lines of a file that guardrails have checked."""
        job: dict[str, object] = {**(self._row["job"] or {}), "checked_file_id": file_id}
        return BatchInput(self._blobs, self._settings, {**self._row, "job": job})

    async def validate(
        self, check_consistency: Callable[[BatchLine, BatchLine], Iterator[LineFault]] | None = None
    ) -> tuple[int, list[InputError]]:
        """Counts and validates the lines. Returns their number and the errors. `check_consistency` is an additional
        check: it takes a line and the first line of the file, and yields further faults of the line.
        """
        names: set[str] = set()
        total, wrong = 0, list[InputError]()
        first: BatchLine | None = None
        async for number, text in iter_lines(self._blobs, self._file_id, self._settings.batches.line_bytes):
            total += 1
            if total > self._settings.batches.max_lines:
                message = f"there are more lines than batches.max_lines: {self._settings.batches.max_lines}"
                return total, [InputError("too_many_lines", message)]
            line = self._parse_line(number, text)
            if isinstance(line, BatchLine):
                first = first or line
                further = check_consistency(line, first) if check_consistency else ()
                faults = itertools.chain(self._find_faults(line, names), further)
                first_error = next((InputError(*fault, number) for fault in faults), None)
                names.add(line.custom_id)
            else:
                first_error = line
            if first_error and len(wrong) < MAX_ERRORS:
                wrong.append(first_error)
        return total, wrong if total else [InputError("empty_file", "the file has no lines")]

    async def requests(self) -> AsyncGenerator[tuple[int, BatchLine]]:
        """Yields each request with its line number. The lines were validated before."""
        async for number, text in iter_lines(self._blobs, self._file_id, self._max_line_bytes):
            line = self._parse_line(number, text)
            if isinstance(line, BatchLine):
                yield number, line

    def _parse_line(self, number: int, text: bytes | None) -> BatchLine | InputError:
        if text is None:
            message = f"it is longer than batches.line_bytes: {self._settings.batches.line_bytes}"
            return InputError("line_too_long", message, None, number)
        try:
            line = msgspec.json.decode(text, type=BatchLine)
        except msgspec.ValidationError as error:
            return InputError("invalid_line", str(error), _error_path(str(error)), number)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return InputError("invalid_json_line", f"it is not JSON: {error}", None, number)
        if self._model and not line.body.get("model"):
            line.body["model"] = self._model
        return line

    def _find_faults(self, line: BatchLine, names: set[str]) -> Iterator[LineFault]:
        if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID_CHARS:
            yield "invalid_custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID_CHARS} characters", "custom_id"
        if line.custom_id in names:
            yield (
                "duplicate_custom_id",
                f"the custom_id {line.custom_id!r} is already used by an earlier line",
                "custom_id",
            )
        if line.method != "POST":
            yield "invalid_method", f"method is {line.method!r}: expected 'POST'", "method"
        if line.url != self._endpoint:
            yield "invalid_url", f"url is {line.url!r}: expected {self._endpoint!r}, the endpoint of the batch", "url"
        if line.body.get("stream"):
            yield "invalid_body", "body.stream is not allowed: a batch response is a single line", "body.stream"
        model = line.body.get("model")
        if not isinstance(model, str):
            yield "missing_model", "body.model is required: the batch has no default model", "body.model"
        elif self._is_provider_batch and model.startswith("@"):
            yield (
                "invalid_model",
                f"body.model is {model!r}: a provider runs this batch, so a line cannot name another provider",
                "body.model",
            )


def _error_path(message: str) -> str | None:
    _, _, path = message.partition("`$.")
    return path.rstrip("`") or None
