"""`symacct rules`: the ops that have a price."""

from __future__ import annotations

import click

from symacct.cli.options import debug, formats


@click.command()
@click.argument("op", default="")
@formats("text", "json", "markdown")
@debug
def rules(op: str, form: str) -> int:
    """List the rules, all or those whose op contains OP, with the law of each in words."""
    from symacct.report import ruled
    from symacct.report.grids import Page, markdown

    found = ruled.matching(op)
    if form == "text":
        with Page() as page:
            page.grid(ruled.grid(found))
    else:
        click.echo(ruled.as_json(found) if form == "json" else markdown(ruled.grid(found)))
    return 0
