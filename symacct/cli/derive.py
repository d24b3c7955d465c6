"""`symacct derive`: the formulas of a target."""

from __future__ import annotations

from typing import Any

import click

from symacct.cli.options import answer_of, debug, formats, priced, sized, traced, trained


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
    answer = answer_of(target, options)
    if form == "text":
        from symacct.report.grids import Page

        with Page() as page:
            as_text(answer, page, keys)
    elif form == "json":
        click.echo(as_json(answer, keys))
    else:
        from symacct.latex import short_markdown, short_tex

        click.echo((short_tex if form == "latex" else short_markdown)(answer, keys), nl=False)
    return 0
