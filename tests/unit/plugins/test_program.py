"""Loading of plug-ins in a process of their own, and what is reported if one cannot be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.errors import StartupError
from penstock.plugins.program import describe_plugins
from penstock.settings.guardrail_plugins import GuardrailPlugins
from tests.doc_examples import page_examples

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "from penstock.plugins import check\n\n@check(description='d')\ndef one(call):\n    return True\n"


def describe(path: Path) -> list[dict[str, object]]:
    return json.loads(describe_plugins(GuardrailPlugins(paths=(str(path),))))


def test_example_of_the_documentation_is_described(tmp_path: Path):
    (example,) = page_examples("docs/guardrail-plugins.md", "python")
    (tmp_path / "acme.py").write_text(example.text)
    tickets, project = describe(tmp_path)
    assert (tickets["id"], tickets["changes"], tickets["stages"]) == ("acme.no_tickets", True, ["input", "output"])
    assert tickets["parameters"] == {
        "type": "object",
        "properties": {
            "prefix": {
                "description": "letters before the number",
                "type": "string",
                "minLength": 1,
                "default": "ACME-",
            },
            "redact": {"type": "boolean", "default": False},
        },
        "required": [],
        "additionalProperties": False,
    }
    assert (project["id"], project["stages"]) == ("acme.has_project", ["input"])


def test_one_file_and_parameters_within_parameters(tmp_path: Path):
    file = tmp_path / "one.py"
    file.write_text(
        "import msgspec\nfrom penstock.plugins import Call, check\n\n"
        "class Inner(msgspec.Struct):\n    a: int\n\nclass Outer(msgspec.Struct):\n    inner: Inner\n\n"
        "@check(description='d')\ndef nested(call: Call, parameters: Outer) -> bool:\n    return True\n"
    )
    (row,) = describe(file)
    parameters = row["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    assert parameters["$defs"]["Inner"]["properties"] == {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("bad.py", "def", "bad.py: SyntaxError"),
        ("bad.py", "raise RuntimeError('no licence')", "bad.py: RuntimeError: no licence"),
        ("Bad-Name.py", GOOD, "rename the file"),
        ("bad.py", GOOD.replace("one(call)", "one()"), "must take a `Call`"),
        ("bad.py", GOOD.replace("one(call)", "one(call, other: int)"), "must take a `Call`"),
        ("bad.py", GOOD.replace("one(call)", "One(call)"), "no name of a check"),
        ("bad.py", "import os\nos._exit(7)", "exit code 7"),
    ],
)
def test_unusable_plugin_is_named(tmp_path: Path, name: str, source: str, message: str):
    (tmp_path / name).write_text(source)
    with pytest.raises(StartupError, match=r"guardrail_plugins\.paths") as raised:
        describe(tmp_path)
    assert message in str(raised.value)


def test_plugin_that_everybody_can_replace_is_rejected(tmp_path: Path):
    file = tmp_path / "open.py"
    file.write_text(GOOD)
    file.chmod(0o666)
    with pytest.raises(StartupError, match="every user can write to it"):
        describe(tmp_path)


def test_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(StartupError, match="No such file or directory"):
        describe(tmp_path / "none")
