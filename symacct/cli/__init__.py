"""The command line: parse, ask, print. The answer goes to stdout, everything else to stderr.

Exit codes: 0 answered, 1 answered in the negative, 2 bad input. No traceback unless `--debug` asks for one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from symacct.errors import SymacctError

_VERBS = ("derive", "verify", "check", "plan", "measure", "latex", "explain", "diff", "graphs", "rules")


class _Verbs(click.Group):
    """The verbs; each is imported when it is called or described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> Any:
        return getattr(import_module(f"symacct.cli.{name}"), name) if name in _VERBS else None


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(package_name="symacct", message="symacct %(version)s")
def symacct() -> None:
    """What a neural network costs, as closed forms derived from its PyTorch code and proven against runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = symacct.main(args=words or ["--help"], prog_name="symacct", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (click.Abort, KeyboardInterrupt):
        return _failed("interrupted", 130)
    except SystemExit as error:
        return _failed(
            f"the model's code ended the program with {error.code!r}; a model file must not exit", 2
        )
    except Exception as error:
        if "--debug" in words:
            raise
        return _failed(_sentence(error), 2)


def _sentence(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        help_ = f"{error.ctx.command_path} --help" if error.ctx else "symacct --help"
        return f"{error.format_message()} ({help_} lists what there is)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, SymacctError):
        return str(error)
    detail = " ".join(str(error).split())[:300]
    return f"internal {type(error).__name__}: {detail}; run with --debug for the traceback"


def _failed(sentence: str, code: int) -> int:
    click.echo(f"error: {sentence}", err=True)
    return code


__all__ = ["main"]
