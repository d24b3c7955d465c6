"""`symacct derive`: the formulas of a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from symacct.cli.options import answer_of, debug, formats, priced, sized, traced, trained
from symacct.cli.ordered import apart, blocks

if TYPE_CHECKING:
    from symacct.report.answer import Answer
    from symacct.report.grids import Page


@click.command()
@click.argument("target")
@traced
@trained
@sized
@priced
@click.option(
    "--by", multiple=True, metavar="module|op|phase|kind", help="Group the FLOPs of the whole step."
)
@formats("text", "json", "markdown", "latex")
@debug
def derive(target: str, form: str, by: tuple[str, ...], **options: Any) -> int:
    """Derive the closed-form cost of TARGET: a model file, a stored graph, or a config.json."""
    from symacct.report.breakdown import keys_of
    from symacct.report.derived import as_json, as_text

    keys = keys_of(by)
    orders, options = apart(options)
    answer = answer_of(target, options)
    if form == "text":
        from symacct.report.grids import Page

        with Page() as page:
            as_text(answer, page, keys)
            if orders:
                page.line()
                _to_leading_order(answer, orders, page)
    elif form == "json":
        click.echo(as_json(answer, keys, _leading(answer, orders) if orders else None))
    else:
        from symacct.latex import short_markdown, short_tex

        write = short_tex if form == "latex" else short_markdown
        click.echo(write(answer, keys, blocks(answer, orders)), nl=False)
    return 0


def _to_leading_order(answer: Answer, orders: list[str], page: Page) -> None:
    from symacct.claims.dropped import leading, table

    page.grid(table(answer, leading(answer, orders), orders), heading=False)


def _leading(answer: Answer, orders: list[str]) -> dict[str, Any]:
    """By key, what the orders leave of a formula, what is dropped and the bound."""
    from symacct.claims.dropped import leading
    from symacct.expressions import to_text

    found = leading(answer, orders)
    rows = {
        one.key: {"kept": to_text(one.kept), "dropped": to_text(one.rest), "bound": one.bound}
        for one in found
    }
    return {"orders": orders, "leading": rows}
