"""`symacct verify`: compare a target's formulas with executions."""

from __future__ import annotations

from typing import Any

import click

from symacct.cli.options import asked_of, debug, formats, say, traced, trained


@click.command()
@click.argument("target")
@traced
@trained
@click.option(
    "--points",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="At how many random sizes to run the model.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which random sizes.")
@click.option(
    "--parallel",
    metavar="DEGREES",
    help='Also compare one rank of these with torch\'s own parallelism: "tp=2,sp", "dp=4,zero=3", "cp=2", "pp=2,m=4".',
)
@click.option(
    "--given",
    multiple=True,
    metavar="'T >= W'",
    help="A comparison of sizes: verify the way that the code takes where it holds.",
)
@formats("text", "json")
@debug
def verify(
    target: str, mode: str, device: str, dtype: str | None, checkpoint: str | None, points: int, seed: int,
    parallel: str | None, given: tuple[str, ...], form: str, **options: Any,
) -> int:
    """Run TARGET at random sizes and compare what is seen with the formulas. Exit 1 if they differ.

    --optimizer and --no-early-stop are run as asked; a step in two precisions, over micro-batches, with widths as
    symbols or with an 8-bit optimizer is not run, and refused.
    """
    from symacct.report.proved import as_json, as_text
    from symacct.verify import verify as run

    say(f"running {target} at {points} random points …")
    certificate = run(
        target, mode, device, points=points, seed=seed, dtype=dtype, checkpoint=checkpoint, parallel=parallel,
        asked=asked_of(options), given=given,
    )
    if form == "json":
        click.echo(as_json(certificate))
    else:
        from symacct.report.grids import Page

        with Page() as page:
            as_text(certificate, page)
    return 0 if certificate.verified else 1
