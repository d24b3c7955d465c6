"""`symacct verify`: compare a target's formulas with executions."""

from __future__ import annotations

import click

from symacct.cli.options import debug, formats, say, traced


@click.command()
@click.argument("target")
@traced
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
    help='Also compare one rank of these with torch\'s own parallelism: "tp=2,sp", "dp=4,zero=3", "pp=2,m=4".',
)
@formats("text", "json")
@debug
def verify(
    target: str, mode: str, device: str, dtype: str | None, checkpoint: str | None, points: int, seed: int,
    parallel: str | None, form: str,
) -> int:
    """Run TARGET at random sizes and compare what is seen with the formulas. Exit 1 if they differ."""
    from symacct.report.proved import as_json, as_text
    from symacct.verify import verify as run

    say(f"running {target} at {points} random points …")
    certificate = run(target, mode, device, points=points, seed=seed, dtype=dtype, checkpoint=checkpoint, parallel=parallel)
    if form == "json":
        click.echo(as_json(certificate))
    else:
        from symacct.report.grids import Page

        with Page() as page:
            as_text(certificate, page)
    return 0 if certificate.verified else 1
