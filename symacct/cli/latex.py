"""`symacct latex`: a target's costs as the appendix of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from symacct.cli.options import answer_of, debug, formats, priced, sized, traced, trained
from symacct.cli.ordered import apart, blocks


@click.command()
@click.argument("target")
@traced
@trained
@sized
@priced
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, instead of stdout.",
)
@click.option("--standalone", is_flag=True, help="A document that compiles as it is, instead of a fragment.")
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `symacct verify --format json` wrote, to be said at the end.",
)
@formats("latex", "markdown")
@debug
def latex(
    target: str, form: str, output: Path | None, standalone: bool, certificate: Path | None, **options: Any
) -> int:
    """Write TARGET's costs as an appendix for a paper: notation, closed forms, derivation, memory."""
    from symacct.errors import SizeError
    from symacct.latex import document, markdown

    proof = _certificate(certificate) if certificate is not None else None
    if standalone and form != "latex":
        raise SizeError("--standalone is for --format latex")
    orders, options = apart(options)
    answer = answer_of(target, options)
    more = blocks(answer, orders)
    text = markdown(answer, proof, more) if form == "markdown" else document(answer, standalone, proof, more)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
    return 0


def _write(path: Path, text: str) -> None:
    from symacct.errors import SizeError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SizeError(f"cannot write {path}: {error.strerror}") from None


def _certificate(path: Path) -> Any:
    """The certificate in a file. Raises SizeError for what is none."""
    import json

    from symacct.certificate import Certificate, Check
    from symacct.errors import SizeError

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        checks = tuple(
            Check(**{"where": "", **{k: v for k, v in check.items() if k in Check.__slots__}})
            for check in data["checks"]
        )
        return Certificate(
            data["target"], data["mode"], data["device"], tuple(data["points"]), checks, tuple(data["notes"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise SizeError(
            f"{path} is no certificate; make one with: symacct verify TARGET --format json"
        ) from None
