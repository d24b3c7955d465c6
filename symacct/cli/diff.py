"""`symacct diff`: what one target costs more than another, and from which size on."""

from __future__ import annotations

from typing import Any

import click

from symacct.cli.options import debug, formats, ledger_of, priced, sized, traced, trained


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--map",
    "mapping",
    multiple=True,
    metavar="f=8*d/3",
    help="A size of B, in the sizes of A or by a new name.",
)
@click.option("--solve", metavar="SIZE", help="The size to solve the crossover for.")
@traced
@trained
@sized
@priced
@formats("text", "json")
@debug
def diff(a: str, b: str, form: str, mapping: tuple[str, ...], solve: str | None, **options: Any) -> int:
    """Subtract B's formulas from A's. Sizes of one name are the same size; --map says what else they are."""
    from symacct.report.differing import as_json, as_text
    from symacct.report.paired import pair

    one, other = ledger_of(a, options), ledger_of(b, options)
    two = pair(one, other, options["at"], options["given"], mapping, solve)
    if form == "json":
        click.echo(as_json(two))
        return 0
    from symacct.report.grids import Page

    with Page() as page:
        as_text(two, page)
    return 0
