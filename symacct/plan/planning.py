"""A plan: what was asked about a model on a card, worked out. Formulas stay with the ledger; here are the
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sympy as sp

from symacct.account import Ledger
from symacct.errors import SizeError
from symacct.graph import Assumption
from symacct.parallel import Degrees, Rank
from symacct.parallel import rank as share_of
from symacct.parallel.remarks import held_whole
from symacct.parallel.torch_styles import TorchPlan, torch_plan
from symacct.plan.fitting import ABOVE, BELOW, Demand, Fit, Solution, demand, fit, solve
from symacct.plan.inference import Served, serve
from symacct.plan.question import Case, Question, products_in
from symacct.plan.ranks import Fewest, Sent, demand_of, fewest_ranks, sent, stage_of
from symacct.plan.remedies import Derive, Measured, Remedy, Step, remedies
from symacct.plan.training import Training, train
from symacct.plan.training_time import samples_of
from symacct.plan.untold import as_told, bounded, sure
from symacct.symbols import symbol

Divide = Callable[..., Rank]
_FEW = "the peak of a rank is a bound from above: where layers hardly repeat, its forms may not be reached"
MICRO_BATCHES = "micro-batches"  # a graph's variant says so of a step that adds to gradients


@dataclass(frozen=True)
class Plan:
    """The answer to a question about a case. A part that does not apply is None.

    `fewest` are the data-parallel ranks if these are asked for, `enough` those with which the smallest of the
    solved size would fit, where it does not.
    """

    case: Case
    question: Question
    precision: str
    demand: Demand
    fit: Fit
    solution: Solution | None
    training: Training | None
    served: Served | None
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    rank: Rank | None = None
    links: tuple[Sent, ...] = ()
    fewest: Fewest | None = None
    enough: Fewest | None = None

    @property
    def torch(self) -> TorchPlan | None:
        """How tensor-parallel ranks divide the model, in torch's words; None where they do not."""
        found = self.rank
        if found is None or found.plan is None:
            return None
        return torch_plan(self.case.ledger.graph, found.graph, found.plan, found.names.of["tp"], found.degrees.sequence)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the answer, the solved one included."""
        return self.case.sizes


def plan(
    case: Case,
    question: Question,
    derive: Derive | None = None,
    tried: bool = True,
    divide: Divide | None = None,
) -> Plan:
    """Work out a plan. Raises SizeError and DeviceError for what is missing, unknown or impossible.

    `derive` traces the target anew for the remedies, which are left out unless `tried`. `divide` gives one
    rank's share of a ledger, where the step is divided among cards; with degrees, by these.
    """
    ledger, trains = case.ledger, case.ledger.graph.mode == "train"
    precision, notes = products_in(case, question)
    memory = question.card.needed("memory")
    rank = divide(ledger) if divide is not None else None
    wanted = _demand(case, ledger, rank, question)
    fewest = None
    if rank is not None:
        rank, question, fewest = _ranked(case, question, rank, wanted)
        case = replace(case, conditions=(*case.conditions, *rank.conditions)).at(**rank.numbers)
    solution = _solution(case, question, wanted, memory)
    if rank is None:
        solution, unsolved = sure(case, solution, wanted, memory)
        notes = [*notes, *unsolved]
    case = _settled(case, solution)
    links: tuple[Sent, ...] = ()
    if rank is not None:
        _check(rank, case.sizes)
        forms = demand_of(rank, case.under, stage_of(fit(wanted, memory, case.sizes).form))
        said = _notes(case, question, forms, rank)
        wanted = bounded(forms, ledger.graph, case.sizes)
        said += [_FEW] * (wanted.bound != forms.bound)
        links = sent(rank, case.under, case.sizes, question.card.link)
    else:
        wanted, said = as_told(wanted, ledger.graph, case.sizes, solution), _notes(case, question, wanted, rank)
    found = fit(wanted, memory, case.sizes)

    def measure(new: Ledger, degrees: Degrees | None = None) -> Measured:
        return _measured(case, question, new, divide, degrees)

    passes = question.accumulate
    step = Step(case, wanted, found, derive, measure, rank, question.side_by_side, passes)
    return Plan(
        case,
        question,
        precision,
        wanted,
        found,
        solution,
        train(case, question, precision, rank) if trains else None,
        None if trains else serve(case, question, precision, rank),
        remedies(step) if tried else (),
        (*notes, *said),
        rank,
        links,
        fewest,
        _enough(case, rank, wanted, solution, memory),
    )


def _ranked(
    case: Case, question: Question, rank: Rank, wanted: Demand
) -> tuple[Rank, Question, Fewest | None]:
    """The rank, among the fewest data-parallel ones if these are solved for."""
    if question.solve != rank.names.of["dp"].name:
        return rank, question, None
    memory = question.card.needed("memory")
    fewest = fewest_ranks(rank, wanted, memory, {**case.sizes, **rank.numbers})
    return (*_with_ranks(rank, replace(question, solve=None), fewest.number), fewest)


def _enough(
    case: Case, rank: Rank | None, wanted: Demand, solution: Solution | None, memory: int
) -> Fewest | None:
    """The fewest data-parallel ranks with which the smallest size fits; None where it does, or they change
    nothing, or experts would no longer part evenly among them.
    """
    if rank is None or solution is None or solution.solved.number is not None:
        return None
    if not any(rank.names.of["dp"] in form.bytes.free_symbols for form in wanted.forms):
        return None
    sizes = {**case.sizes, solution.solved.size: solution.solved.smallest}
    found = fewest_ranks(rank, wanted, memory, sizes)
    uneven = found.number is not None and found.number * rank.degrees.context % rank.degrees.experts
    return None if uneven else found


def _settled(case: Case, solution: Solution | None) -> Case:
    """The case with the size that was left open: the largest that fits, else the smallest there is."""
    if solution is None or solution.solved.size in case.sizes:
        return case
    solved = solution.solved
    if solved.next is None and solved.binding is None:
        raise SizeError(f"every {solved.size} fits, however large; give a number for it with --at")
    return case.at(**{solved.size: solved.smallest if solved.number is None else solved.number})


def _with_ranks(rank: Rank, question: Question, number: int | None) -> tuple[Rank, Question]:
    """The rank among another number of data-parallel ones; formulas have that number as a symbol."""
    if number is None:
        return rank, question
    degrees = replace(rank.degrees, data=number)
    numbers = {**rank.numbers, rank.names.of["dp"].name: number}
    asked = replace(question, cards=degrees.devices, replicas=number)
    return replace(rank, degrees=degrees, numbers=numbers), asked


def _check(rank: Rank, sizes: Mapping[str, int]) -> None:
    """Raise SizeError where the degrees do not divide what they must."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    for a in rank.conditions:
        named = set(a.left.free_symbols) | (set(a.right.free_symbols) if a.right is not None else set())
        if named <= set(numbers) and not a.holds(numbers):
            _enough_layers(rank, a, numbers)
            said = ", ".join(f"{s.name} = {numbers[s]}" for s in sorted(named, key=str))
            raise SizeError(f"--parallel: {said} breaks {a.short}; choose degrees that divide it")


def _demand(case: Case, ledger: Ledger, rank: Rank | None, question: Question) -> Demand:
    """What the whole model needs on a card, or a rank's share of it.

    Of several micro-batches, where only the step of one is known: with all gradients alive throughout.
    """
    if rank is not None:
        return demand_of(rank, case.under)
    same = ledger is case.ledger
    formulas = case.formulas if same else {key: case.under(expr) for key, expr in ledger.formulas.items()}
    found = demand(ledger.graph, formulas, case.under)
    grads = formulas.get("bytes.grads")
    one = question.accumulate == 1 or MICRO_BATCHES in ledger.graph.variant
    if one or grads is None or not found.exact:
        return found
    forms = tuple(replace(form, bytes=sp.expand(form.bytes + grads)) for form in found.forms)
    return Demand(found.kinds, forms, ABOVE)


def _enough_layers(rank: Rank, a: Assumption, numbers: Mapping[sp.Symbol, sp.Integer]) -> None:
    """Raise SizeError where a broken condition is that of more stages, or parts of them, than layers."""
    stages, parts = rank.names.of["pp"], rank.names.of["v"]
    if a.kind != "divides" or a.right is None or a.right not in (stages, stages * parts):
        return
    layers, asked = (side.xreplace(dict(numbers)) for side in (a.left, a.right))
    if asked > layers:
        what = "stages" if a.right == stages else f"parts of stages ({stages}·{parts})"
        raise SizeError(f"--parallel: {asked} {what}, but {layers} layers; choose degrees that divide them")


def _measured(
    case: Case, question: Question, new: Ledger, divide: Divide | None, degrees: Degrees | None
) -> Measured:
    """What a remedied step needs and does on a card. Raises SizeError where degrees do not divide it."""
    rank = divide(new) if divide is not None and degrees is None else None
    if degrees is not None:
        again = (new.graph, degrees, case.sizes, new.convention)
        rank = divide(new, degrees) if divide is not None else share_of(*again)
        _check(rank, {**case.sizes, **rank.numbers})
    found = new.formulas if rank is None else rank.flops
    times = case.per_flop * (question.accumulate if rank is None else 1)
    counted = sp.expand(times * case.under(found["flops.hardware"]))
    numbers = {} if rank is None else {**rank.numbers, **(case.sizes if degrees is None else {})}
    wanted = _demand(case, new, rank, question)
    if rank is None:
        wanted = as_told(wanted, new.graph, case.sizes)
    else:
        sizes = {**case.sizes, **numbers}
        wanted = demand_of(rank, case.under, stage_of(fit(wanted, 0, sizes).form))
        wanted = bounded(wanted, new.graph, case.sizes)
    return Measured(wanted, counted, {name: numbers[name] for name in (rank.numbers if rank else ())}, rank)


def _solution(case: Case, question: Question, wanted: Demand, memory: int) -> Solution | None:
    """The size that was asked for, else the batch if it moves a byte."""
    size = question.solve
    if size is None:
        batch = samples_of(case.ledger.graph)
        if (
            batch is None
            or not batch.is_Symbol
            or not any(batch in form.bytes.free_symbols for form in wanted.forms)
        ):
            return None
        size = batch.name
    return solve(wanted, memory, size, case.sizes, case.conditions, case.ledger.graph.symbols)


def _notes(case: Case, question: Question, wanted: Demand, rank: Rank | None) -> list[str]:
    found = []
    if wanted.bound == BELOW:
        found.append(
            "where the peak lies follows no rule for this model: shown is what is alive at once for sure"
        )
    elif wanted.bound == ABOVE and rank is None:
        found.append(
            "a bound from above: all gradients are taken as alive throughout; a model file is traced so"
        )
    elif wanted.bound == ABOVE:
        scatters = rank is not None and rank.degrees.zero == 2
        beside = "gradients of a layer before they are scattered" if scatters else "all that is gathered"
        held = f"all that other micro-batches keep, and {beside}"
        found.append(f"the peak of a rank is a bound from above: it holds {held}")
    if rank is not None:
        return [*found, *rank.remarks, *held_whole(rank.whole)]
    if question.cards > 1 and case.ledger.graph.mode == "train":
        found.append(
            "each card holds the whole model and works on a batch of its own; what they send is left out"
        )
    return found
