"""`symacct plan`: what fits on a card, how large a batch, how long it takes, and how near to the peak it
is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from symacct.cli.apart import apart
from symacct.cli.dividing import RANKS, agree, degrees_of, divider
from symacct.cli.options import (
    asked_of,
    debug,
    formats,
    given_of,
    ledger_of,
    priced,
    say,
    sized,
    traced,
    trained,
)
from symacct.devices import DTYPES

if TYPE_CHECKING:
    from symacct.account import Ledger
    from symacct.plan.planning import Plan
    from symacct.plan.question import Case, Question
    from symacct.report.answer import Answer

_UNITS = ("tokens", "samples", "steps")


@click.command()
@click.argument("target")
@click.option(
    "--card",
    required=True,
    metavar="h100|FILE.toml|FIGURES",
    help="The device; FIGURES such as peak=312e12,memory=80e9,bandwidth=1.5e12.",
)
@click.option("--cards", metavar="NUMBER", help="How many there are; left out, one, or those of --parallel.")
@click.option(
    "--precision",
    metavar="|".join(DTYPES),
    help="In which peak products run; left out, that of the model's own dtype.",
)
@click.option("--solve", metavar="SIZE", help="The size to make as large as fits; left out, the batch.")
@click.option("--tokens", metavar="NUMBER", help="How many tokens are trained in all, such as 15e12.")
@click.option("--samples", metavar="NUMBER", help="How many samples.")
@click.option("--steps", metavar="NUMBER", help="How many steps of the optimizer.")
@click.option(
    "--micro-batches",
    metavar="NUMBER",
    help="Passes of the batch B in a step of the optimizer.",
)
@click.option("--mfu", metavar="SHARE", help="Model FLOPs utilisation to plan with, such as 0.4.")
@click.option(
    "--tokens-per-second", metavar="NUMBER", help="A measured rate, of all cards together: gives MFU and HFU."
)
@click.option(
    "--step-seconds",
    metavar="NUMBER",
    help="Instead, measured seconds of a step: the micro-batches of B on each replica.",
)
@click.option("--days", metavar="NUMBER", help="How long it may take: gives the cards that this needs.")
@click.option("--price", metavar="NUMBER", help="Of one card for an hour: gives the cost.")
@click.option(
    "--flops", "estimate", type=click.Choice(["exact", "6ND", "6ND+attention"]), default="exact",
    show_default=True, help="Which FLOPs of a step are used for the time.",
)  # fmt: skip
@click.option(
    "--parallel",
    metavar="dp=8,zero=3,tp=2",
    help="Divide the step among cards: bytes, FLOPs and links of a rank, and which of them bounds it.",
)
@click.option(
    "--styles",
    metavar="PATH=colwise|rowwise,…",
    help="With --parallel tp=…: how to divide weights, by modules' paths with *; left out, a plan is proposed.",
)
@click.option(
    "--search",
    is_flag=True,
    help="Try every way to spread --batch samples of a step over --cards cards; --mfu is then the share of the peak "
    "that arithmetic reaches (0.5 if left out).",
)
@click.option("--batch", metavar="NUMBER", help="With --search: samples in a step, on all cards together.")
@click.option(
    "--node",

    metavar="NUMBER",
    help="With --search: cards that the card's links join; left out, 8.",
)
@click.option(
    "--network", metavar="NUMBER", help="With --search: bytes a second one way between nodes, for each card."
)
@click.option(
    "--remedies/--no-remedies",
    default=True,
    help="Say what recomputing, sharding or a smaller dtype would change.",
)
@click.option(
    "--roofline/--no-roofline",
    default=None,
    help="Say which ops are bound by arithmetic or memory, and why MFU is low.",
)
@traced
@trained
@sized
@priced
@formats("text", "json")
@debug
def plan(target: str, form: str, **options: Any) -> int:
    """Plan TARGET on a card: does it fit, the largest batch, time, days and cost, what each remedy would
    change.
    """
    from symacct.errors import UnknownOps

    apart(options)
    if options["search"]:
        from symacct.cli.searching import searched

        return searched(target, form, options)
    from symacct.plan.planning import plan as worked_out
    from symacct.report.answer import Answer
    from symacct.report.planned_json import as_json
    from symacct.targets import is_stored

    question = question_of(options)
    options["accumulate"] = options["accumulate"] or (question.accumulate > 1 and not is_stored(target))
    ledger = ledger_of(target, options)
    if ledger.unknown:
        raise UnknownOps(target, ledger.unknown)
    case, relations = case_of(ledger, question.solve, options)
    retrace = _deriver(target, ledger, options)
    found = worked_out(
        case, question, retrace, options["remedies"], divider(case, options, question.solve)
    )
    ledger.checked({name: found.sizes[name] for name in ledger.graph.symbols if name in found.sizes})
    answer = Answer(ledger, relations, dict(found.sizes), True)
    roof = _roof(ledger, found, options["roofline"])
    if form == "json":
        click.echo(as_json(found, answer, roof))
    else:
        _print(found, answer, roof)
    return 0 if found.fit.fits else 1


def question_of(options: dict[str, Any]) -> Question:
    """What is asked, read exactly. Raises SizeError and DeviceError for numbers and cards that cannot be."""
    from symacct.amounts import amount, whole
    from symacct.devices import card
    from symacct.errors import SizeError
    from symacct.plan.question import Question

    amounts = [unit for unit in _UNITS if options[unit] is not None]
    if len(amounts) > 1:
        raise SizeError(f"give one of {', '.join(f'--{unit}' for unit in amounts)}")
    rates = [
        unit for unit in ("tokens-per-second", "step-seconds") if options[unit.replace("-", "_")] is not None
    ]
    if len(rates) > 1:
        raise SizeError(f"give one of {', '.join(f'--{unit}' for unit in rates)}")
    unit, rate = amounts[0] if amounts else "tokens", rates[0] if rates else "tokens-per-second"

    def read(key: str, most: int | None = None) -> Any:
        given = options[key.replace("-", "_")]
        return None if given is None else amount(given, f"--{key}", most)

    if options["days"] is not None and not amounts:
        raise SizeError(f"--days is for a whole training run; say how much with --{', --'.join(_UNITS)}")
    device = card(options["card"])
    if options["precision"] is not None:
        device.peak(options["precision"])
    cards = whole(options["cards"] or 1, "--cards")
    passes = whole(options["micro_batches"] or 1, "--micro-batches")
    replicas = None
    if options["parallel"] is not None:
        degrees = degrees_of(options["parallel"], options["solve"])
        agree("--cards", options["cards"], cards, "dp·tp·cp·pp", degrees.devices)
        agree("--micro-batches", options["micro_batches"], passes, "m", degrees.micro_batches)
        cards, passes, replicas = degrees.devices, degrees.micro_batches, degrees.data
    return Question(
        device, cards, replicas, options["precision"], options["solve"], unit, read(unit), passes,
        read("mfu", 1), read(rate), rate, read("price"), options["estimate"], read("days"),
    )  # fmt: skip


def case_of(ledger: Ledger, solve: str | None, options: dict[str, Any]) -> tuple[Case, Any]:
    """The ledger at the sizes of `--at`, of which the one to solve for may be left out. Raises SizeError."""
    from symacct.errors import SizeError
    from symacct.graph import Assumption
    from symacct.plan.question import Case
    from symacct.report.relations import numbers, relations

    graph = ledger.graph
    known = relations(given_of(graph, options), graph.symbols)
    asked = numbers(options["at"])
    sizes = known.completed({**graph.values, **asked})
    ranks = False
    if solve == RANKS and solve not in graph.symbols:
        if options["parallel"] is None:
            raise SizeError("--solve dp is about sharded training; say how with --parallel, such as zero=3")
        ranks, solve = True, None
    if solve is not None and solve not in graph.symbols:
        raise SizeError(f"--solve {solve}: not a size of {graph.target}; it has {', '.join(graph.symbols)}")
    open_ = (
        solve if solve is not None and solve not in sizes else _batch(ledger, sizes) if not ranks else None
    )
    replaced = dict(known.replaced)
    missing = [
        name for name in graph.symbols if name not in sizes and name != open_ and not _told(name, known)
    ]
    if missing:
        raise SizeError(
            f"--at leaves out {', '.join(missing)}; give a number for each, or one of them to --solve"
        )
    if open_ is None:
        ledger.checked(sizes)
    elif unknown := [name for name in sizes if name not in graph.symbols]:
        raise SizeError(
            f"{', '.join(unknown)}: not a size of {graph.target}; it has {', '.join(graph.symbols)}"
        )
    conditions = tuple(
        Assumption(
            a.kind,
            a.left.xreplace(replaced),
            a.right.xreplace(replaced) if a.right is not None else None,
            a.source,
        )
        for a in (*graph.assumptions, *known.conditions)
    )

    def under(expr: Any) -> Any:
        return known.apply(expr, ledger.domain)

    formulas = {key: under(expr) for key, expr in ledger.formulas.items()}
    return Case(ledger, formulas, under, sizes, conditions, known.completed), known


def _told(name: str, known: Any) -> bool:
    """Whether a relation gives this size as soon as the others are known."""
    return any(size.name == name for size in known.replaced)


def _batch(ledger: Ledger, sizes: dict[str, int]) -> str | None:
    """The batch, if it is the only size without a number: it is solved for."""
    from symacct.plan.training_time import samples_of

    batch = samples_of(ledger.graph)
    return batch.name if batch is not None and batch.is_Symbol and batch.name not in sizes else None


def _deriver(target: str, ledger: Ledger, options: dict[str, Any]) -> Any:
    """A function that traces the target anew with another dtype or recomputation; None for a stored graph."""
    from symacct import targets
    from symacct.account import Ledger

    if targets.is_stored(target):
        return None

    def derive(**changed: str) -> Ledger:
        now = {**options, **({"recipe": None} if "dtype" in changed else {}), **changed}
        graph = targets.graph_of(
            target, now["mode"], now["device"], now["dtype"], now["checkpoint"], asked_of(now)
        )
        return Ledger(graph, ledger.convention, ledger.allow_unknown)

    return derive


def _roof(ledger: Ledger, found: Plan, asked: bool | None) -> Any:
    """The roofline of the step, of the slowest rank's if it is divided.

    Unless it was asked for, None where the card or an op has no figure for it.
    """
    from symacct.plan.rank_roofline import ONE_PASS, slowest
    from symacct.plan.roofline import roofline

    device, rank = found.question.card, found.rank
    if asked is False or (asked is None and (device.bandwidth is None or ledger.unknown)):
        return None
    if rank is None:
        sizes = {name: found.sizes[name] for name in ledger.graph.symbols}
        if (times := found.question.accumulate) > 1:
            say(f"note: {ONE_PASS.format(times)}")
        return roofline(ledger, device, sizes, found.question.precision)
    made = slowest(rank, ledger, device, found.sizes, found.question.precision)
    for remark in made.said:
        say(f"note: {remark}")
    return made.found


def _print(found: Plan, answer: Answer, roof: Any) -> None:
    from symacct.report import planned
    from symacct.report.grids import Page

    with Page() as page:
        planned.as_text(found, answer, page, roof)
        if roof is not None:
            from symacct.report import roofed

            page.line()
            roofed.as_text(page, roof, answer.under)
