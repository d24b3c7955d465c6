"""`symacct explain`: every node of a target and what it costs."""

from __future__ import annotations

from typing import Any

import click

from symacct.cli.options import answer_of, debug, formats, priced, sized, traced


@click.command()
@click.argument("target")
@click.option(
    "--op", default="", metavar="PATTERN", help="Only ops that contain this, or fit it with * and ?."
)
@click.option("--module", default="", metavar="PATTERN", help="Only modules that contain this, or fit it.")
@traced
@sized
@priced
@formats("text", "json")
@debug
def explain(target: str, form: str, op: str, module: str, **options: Any) -> int:
    """Explain TARGET node by node: module, op, line, tensors, FLOPs, and the law that prices it."""
    from symacct.report.explained import as_json, as_text, lines

    answer = answer_of(target, options)
    found = lines(answer.ledger, op, module)
    if form == "json":
        click.echo(as_json(answer, found))
        return 0
    from symacct.report.grids import Page

    with Page() as page:
        as_text(answer, page, found)
    return 0
