"""`symacct explain`: every node of a target and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from symacct.cli.options import answer_of, debug, formats, priced, sized, traced, trained

if TYPE_CHECKING:
    from symacct.report.answer import Answer


@click.command()
@click.argument("target")
@click.option(
    "--op", default="", metavar="PATTERN", help="Only ops that contain this, or fit it with * and ?."
)
@click.option("--module", default="", metavar="PATTERN", help="Only modules that contain this, or fit it.")
@click.option("--ancestors", default="", metavar="NODE", help="Only what the node of this name comes from.")
@click.option("--critical-path", is_flag=True, help="Only the longest chain of dependent work; asks for --at.")
@click.option("--copies", is_flag=True, help="Only the copies that the code could avoid, with their bytes.")
@click.option("--fusable", is_flag=True, help="Only the element-wise ops that could run as one kernel.")
@click.option("--peak", is_flag=True, help="Where memory peaks, what is alive there, and at which sizes each place leads.")
@traced
@trained
@sized
@priced
@formats("text", "json")
@debug
def explain(target: str, form: str, op: str, module: str, ancestors: str, critical_path: bool, copies: bool, fusable: bool, peak: bool, **options: Any) -> int:
    """Explain TARGET node by node: module, op, line, tensors, what keeps them for backward, FLOPs, and the law that prices it."""
    from symacct.report.explained import as_json, as_text, lines

    answer = answer_of(target, options)
    if copies or fusable or peak:
        _chosen(answer, "copies" if copies else "fusable" if fusable else "peak", form)
        return 0
    found = lines(answer.ledger, op, module)
    if ancestors or critical_path:
        from symacct import paths

        chosen = paths.ancestors(answer.ledger.graph, ancestors) if ancestors else paths.critical_path(answer.ledger, answer.sizes)[0]
        names = {place.node.name for place in chosen}
        found = [line for line in found if line.place.node.name in names]
    if form == "json":
        click.echo(as_json(answer, found))
        return 0
    from symacct.report.grids import Page

    with Page() as page:
        as_text(answer, page, found)
    return 0


def _chosen(answer: Answer, what: str, form: str) -> None:
    """One chapter of what there is to explain."""
    from symacct.report import alive, copied
    from symacct.report.grids import Page

    if form == "json":
        click.echo(alive.as_json(answer) if what == "peak" else copied.as_json(answer, what))
        return
    write = {"copies": copied.copies_text, "fusable": copied.fusable_text, "peak": alive.as_text}[what]
    with Page() as page:
        write(answer, page)
