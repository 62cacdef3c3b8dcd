"""Error envelope of the management API, and its error codes."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import InvalidError, Problem, error_code_for, error_envelope


def test_envelope_has_a_message_and_a_code():
    assert error_envelope("no such route", "AB08") == {
        "success": False,
        "data": {"message": "no such route", "errorCode": "AB08"},
    }


def test_problems_are_listed_with_their_path():
    body = error_envelope("not accepted", "AB01", [Problem("name", "must not be empty")])
    assert body["data"] == {
        "message": "not accepted",
        "errorCode": "AB01",
        "errors": [{"path": "name", "message": "must not be empty"}],
    }


def test_error_prints_one_line_per_problem():
    error = InvalidError("not accepted:", [Problem("a.b", "is wrong"), Problem("", "all of it")])
    assert str(error) == "not accepted:\n  a.b: is wrong\n  all of it"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidError, 400, "AB01"),
        (errors.UnauthorisedError, 401, "AB05"),
        (errors.ForbiddenError, 403, "AB03"),
        (errors.NotFoundError, 404, "AB08"),
        (errors.ConflictError, 409, "AB07"),
        (errors.UnavailableError, 503, "AB04"),
        (errors.PenstockError, 500, "AB04"),
    ],
)
def test_each_error_class_has_its_status_and_code(error: type[errors.PenstockError], status: int, code: str):
    assert (error.status, error.code) == (status, code)
    assert error_code_for(status) == code


@pytest.mark.parametrize(
    ("status", "code"), [(402, "AB09"), (405, "AB01"), (413, "AB01"), (429, "AB06"), (502, "AB04")]
)
def test_every_other_status_has_a_code(status: int, code: str):
    assert error_code_for(status) == code
