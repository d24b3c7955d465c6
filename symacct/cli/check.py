"""`symacct check`: what is true about a formula that someone wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from symacct.cli.options import debug, formats, ledger_of, priced, sized, traced, trained
from symacct.conventions import convention
from symacct.errors import SymacctError

if TYPE_CHECKING:
    from symacct.account import Ledger
    from symacct.claims import Verdict
    from symacct.claims.written import Unread


@click.command()
@click.argument("target")
@click.argument("claim", default="")
@click.option(
    "--file", "path", type=click.Path(path_type=Path), help="A TOML file of claims to check instead."
)
@click.option(
    "--map", "mapped", multiple=True, metavar="s=T,h=d", help="What the claim's names are in the model."
)
@traced
@trained
@sized
@priced
@formats("text", "json")
@debug
def check(
    target: str, claim: str, path: Path | None, mapped: tuple[str, ...], form: str, **options: Any
) -> int:
    """Judge CLAIM, such as "flops.step = 6*N*D", about TARGET. Exit 0 if it is proved, 1 if it is not.

    Of a file, every claim is judged that can be read; exit 2 if one cannot.
    """
    from symacct.claims import check as judged
    from symacct.claims.written import Unread, as_json, as_text, unread
    from symacct.report.readable import reading_of

    if bool(claim) == (path is not None):
        raise click.UsageError("give one claim, as in 'flops.step = 6*N*D', or --file with many")
    ledger = ledger_of(target, options)
    found: list[tuple[Verdict | Unread, str]]
    if path is None:
        verdict = judged(ledger, claim, options["given"], options["at"], mapped)
        found, good = [(verdict, "")], verdict.proved
    else:
        found, good = _filed(ledger, target, path, mapped, options)
    code = 2 if any(isinstance(one, Unread) for one, _ in found) else 0 if good else 1
    if form == "json":
        click.echo(as_json(found, path is not None))
        return code
    from symacct.report.grids import Page

    with Page() as page:
        for at, (one, source) in enumerate(found):
            if at:
                page.line()
            if isinstance(one, Unread):
                unread(one, page, source)
            else:
                as_text(one, reading_of(ledger.graph), page, source)
    return code


def _filed(
    ledger: Ledger, target: str, path: Path, mapped: tuple[str, ...], options: dict[str, Any]
) -> tuple[list[tuple[Verdict | Unread, str]], bool]:
    """The verdicts on a file's claims, and whether each is the expected one, or proved where none is."""
    from symacct.claims import check as judged
    from symacct.claims.files import claims_of, naming
    from symacct.claims.written import Unread

    found: list[tuple[Verdict | Unread, str]] = []
    good = True
    for filed in claims_of(path):
        own = bool(filed.convention or filed.switches)
        names = [*mapped, *(f"{name}={formula}" for name, formula in filed.mapped.items())]
        sizes = [*options["at"], *(f"{name}={value}" for name, value in filed.sizes.items())]
        given = [*options["given"], *filed.given]
        try:
            with naming(filed):
                there = _there(ledger, target, options | {"given": given, "at": sizes})
                now = there.under(convention(filed.convention, **filed.switches)) if own else there
                verdict = judged(now, filed.formula, given, sizes, names)
        except SymacctError as error:
            found.append((Unread(target, filed.formula, str(error)), filed.source))
            continue
        good &= verdict.verdict == filed.verdict if filed.verdict else verdict.proved
        found.append((verdict, filed.source))
    return found, good


def _there(ledger: Ledger, target: str, options: dict[str, Any]) -> Ledger:
    """The ledger where a claim of a file is made: traced anew if the code takes another way there."""
    from symacct.regions import region
    from symacct.report.relations import numbers

    where, graph = region(options["given"], numbers(options["at"])), ledger.graph
    return ledger_of(target, options) if where.broken(graph.assumptions, graph.values) else ledger
