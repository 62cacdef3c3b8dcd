"""The page of commands, from the command line itself."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click

from penstock.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

# Options that the introduction explains, so the tables of the commands omit them.
SHARED_OPTIONS = {"--help", "--url", "--api-key", "--config"}
INTRODUCTION = """Commands that work on the files of this machine read the settings: `--config`, `PENSTOCK_CONFIG`, or
`./penstock.toml`. Commands that call a running gateway have `--url` (`PENSTOCK_URL`) and `--api-key`
(`PENSTOCK_ADMIN_KEY`, else `PENSTOCK_API_KEY`). `penstock COMMAND --help` shows the same as this page.

```sh
eval "$(penstock completion bash)"  # completes commands and options
```"""

EXIT_CODES = """## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed; the message on standard error says why, and often what to do |
| 2 | an option or argument is wrong; `penstock apply --dry-run` and `penstock prompts diff`: there are changes |
| 3 | `penstock import`: something in the source is not supported; `--allow` accepts that |"""


def command_sections() -> Iterator[str]:
    """Yields the parts of the page: how commands find the gateway, each command, and the exit codes."""
    yield INTRODUCTION
    yield EXIT_CODES
    for name, command in sorted(main.commands.items()):
        if isinstance(command, click.Group):
            yield f"## penstock {name}\n\n{_sentence(command)}"
            for inner, inner_command in sorted(command.commands.items()):
                yield _describe(f"penstock {name} {inner}", inner_command, "###")
        else:
            yield _describe(f"penstock {name}", command, "##")


def _describe(name: str, command: click.Command, level: str) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    help_text = "\n\n".join(re.sub(r"\s+", " ", paragraph) for paragraph in paragraphs)
    parts = [f"{level} {name}", help_text, f"```\n{usage}\n```"]
    if rows := list(_option_rows(command)):
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    if command.epilog:
        parts.append(f"Example: `{command.epilog.removeprefix('Example: ')}`")
    return "\n\n".join(parts)


def _option_rows(command: click.Command) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option) and not SHARED_OPTIONS.intersection(option.opts):
            meaning = re.sub(r"\s+", " ", option.help or "").replace("|", "\\|")
            yield f"| `{', '.join([*option.opts, *option.secondary_opts])}` | {meaning} |"


def _sentence(command: click.Command) -> str:
    return (command.help or "").strip()
