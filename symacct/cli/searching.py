"""`symacct plan --search`: every way to spread a step over a number of cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from symacct.cli.options import given_of, ledger_of, say

if TYPE_CHECKING:
    from symacct.account import Ledger
    from symacct.plan.setting import Setting
    from symacct.plan.shares import Share

_TENSOR = (1, 2, 4, 8, 16, 32)


def searched(target: str, form: str, options: dict[str, Any]) -> int:
    """Search, print the front and the reasons, and return 0 if something fits."""
    from symacct.errors import SizeError
    from symacct.plan.search import search
    from symacct.plan.training_time import samples_of
    from symacct.report.relations import numbers, relations
    from symacct.report.searched import as_json, as_text

    setting = _setting(options)
    ledger = ledger_of(target, options)
    if ledger.graph.mode != "train":
        raise SizeError("--search is about training steps; leave out --mode")
    batch = samples_of(ledger.graph)
    if batch is None or not batch.is_Symbol:
        raise SizeError(f"{target} names no size for the batch, so there is nothing to spread over the cards")
    known = relations(given_of(ledger.graph, options), ledger.graph.symbols)
    asked = numbers(options["at"])
    if batch.name in asked:
        raise SizeError(
            f"--search chooses {batch.name} itself, so that --batch samples make a step; leave it out of --at"
        )
    sizes = known.completed({**ledger.graph.values, **asked}) | {batch.name: 1}
    ledger.checked({name: value for name, value in sizes.items() if name in ledger.graph.symbols})
    setting = _in_precision(setting, ledger, sizes, options)
    shares = _shares(target, ledger, sizes, batch.name, options)
    outcome = search(shares, setting, sizes, batch.name)
    flops = (
        float(ledger.at(**sizes)["flops.step"])
        * setting.batch
        * (2 if ledger.convention.unit == "MAC" else 1)
    )
    shown = {name: value for name, value in sizes.items() if name != batch.name}
    if form == "json":
        click.echo(as_json(outcome, setting, target, shown, flops))
    else:
        from symacct.report.grids import Page

        with Page() as page:
            as_text(outcome, setting, page, target, shown, flops)
    return 0 if len(outcome.front) else 1


def _setting(options: dict[str, Any]) -> Setting:
    from symacct.amounts import amount, whole
    from symacct.devices import card
    from symacct.errors import SizeError
    from symacct.plan.setting import Setting

    device = card(options["card"])
    if options["cards"] is None or options["batch"] is None:
        raise SizeError("--search spreads --batch samples of a step over --cards cards; give both numbers")
    efficiency = 0.5 if options["mfu"] is None else float(amount(options["mfu"], "--mfu", 1))
    network = None if options["network"] is None else int(amount(options["network"], "--network"))
    return Setting(
        whole(options["cards"], "--cards"), whole(options["batch"], "--batch"), device,
        options["precision"] or "", efficiency, whole(options["node"] or 8, "--node"), network,
    )  # fmt: skip


def _in_precision(
    setting: Setting, ledger: Ledger, sizes: dict[str, int], options: dict[str, Any]
) -> Setting:
    """The setting with the dtype that products run in."""
    from dataclasses import replace

    from symacct.plan.question import Case, Question, products_in

    case = Case(ledger, {}, lambda expr: expr, sizes)
    precision, notes = products_in(case, Question(setting.card, precision=setting.precision or None))
    for note in notes:
        say(f"note: {note}")
    return replace(setting, precision=precision)


def _shares(
    target: str, ledger: Ledger, sizes: dict[str, int], batch: str, options: dict[str, Any]
) -> list[Share]:
    """Every way that the graph allows; what a way cannot do is said on stderr."""
    from symacct.errors import Unsupported
    from symacct.plan.search import ways
    from symacct.plan.shares import share

    graphs = _traced(target, ledger, options)
    found, said = [], set()
    most = int(options["node"] or 8)
    tensor = [t for t in _TENSOR if t <= max(most, 1)]
    for way in ways(tensor, graphs, bool({"T", "S"} & set(ledger.graph.symbols))):
        try:
            found.append(share(graphs[way.recompute, way.adds], way, sizes, batch))
        except Unsupported as error:
            said.add(" ".join(line.strip() for line in str(error).split("\n")[:2]))
    for sentence in sorted({*said, *(f"with cp, {one.undivided}" for one in found if one.undivided)}):
        say(f"note: {sentence}")
    if not found:
        raise Unsupported(f"{target} can be spread in no way; {'; '.join(sorted(said))}")
    return found


def _traced(target: str, ledger: Ledger, options: dict[str, Any]) -> dict[tuple[str, bool | None], Any]:
    """The graph as it is, and where the target can be traced anew, with each block recomputed, and of the
    last of several micro-batches, by these two facts; None where one graph stands for one micro-batch and
    for several.
    """
    from symacct import targets
    from symacct.errors import SymacctError

    chosen = options["checkpoint"] or "none"
    if targets.is_stored(target):
        return {(chosen, None): ledger.graph}
    graphs: dict[tuple[str, bool | None], Any] = {(chosen, None if options["accumulate"] else False): ledger.graph}
    more: dict[tuple[str, bool | None], dict[str, Any]] = {} if options["accumulate"] else {(chosen, True): {"accumulate": True}}
    if options["checkpoint"] is None:
        more |= {
            ("full", adds): {"checkpoint": "full", "accumulate": adds is not False}
            for _, adds in (*graphs, *more)
        }
    for key, changed in more.items():
        try:
            graphs[key] = ledger_of(target, {**options, **changed}).graph
        except SymacctError as error:
            say(f"note: without {_said(changed)}, for {str(error).partition(chr(10))[0]}")
    return graphs


def _said(changed: dict[str, Any]) -> str:
    recomputed = "recomputation" if "checkpoint" in changed else ""
    return " of ".join(
        filter(None, (recomputed, "several micro-batches" if changed.get("accumulate") else ""))
    )
