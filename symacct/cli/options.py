"""The options that several verbs share, and how a target becomes an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from symacct.conventions import CHOICES, NAMED, convention

if TYPE_CHECKING:
    from symacct.graph import Graph
    from symacct.report.answer import Answer

Command = Callable[..., Any]
_SWITCHES = {
    "unit": "2 FLOPs or 1 MAC for a multiply-add.",
    "count": "Products only, or all arithmetic.",
    "attention": "The square of a causal mask, half of it, or its exact triangle.",
    "backward": "The backward pass as traced, or twice the forward.",
    "params": "Which parameters N stands for in 6·N·D.",
}


def _all(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")

traced = _all(
    click.option(
        "--mode",
        type=click.Choice(["train", "forward", "prefill", "decode"]),
        default="train",
        show_default=True,
        help="What is run; prefill is a prompt of T tokens with the model's cache, decode one token behind T.",
    ),
    click.option(
        "--device",
        type=click.Choice(["cuda", "cpu"]),
        default="cuda",
        show_default=True,
        help="Whose kernels are assumed; no such device is needed.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["fp32", "fp16", "bf16"]),
        help="Convert the model and its inputs; left out, they stay as the code makes them.",
    ),
    click.option(
        "--checkpoint",
        metavar="full|PATTERN",
        help="Recompute each block, or the modules whose paths fit, in backward by torch's checkpoint.",
    ),
)

priced = _all(
    click.option(
        "--convention", "name", metavar="NAME", help=f"A published way of counting: {', '.join(NAMED)}."
    ),
    *(
        click.option(f"--{switch}", type=click.Choice(words, case_sensitive=False), help=_SWITCHES[switch])
        for switch, words in CHOICES.items()
    ),
    click.option(
        "--allow-unknown", is_flag=True, help="Let ops without a rule stand as symbols in the totals."
    ),
)

sized = _all(
    click.option("--at", multiple=True, metavar="B=8,T=1024", help="Numbers for the sizes."),
    click.option(
        "--given",
        multiple=True,
        metavar="'f=4*d'",
        help="A relation between sizes, or a divisibility 'h | d'.",
    ),
)


def formats(*names: str) -> Callable[[Command], Command]:
    """The `--format` option of a verb."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(names),
        default=names[0],
        show_default=True,
        help="How to write it.",
    )


def say(text: str) -> None:
    """A remark beside the answer."""
    click.echo(text, err=True)


def graph_of(target: str, mode: str, device: str, dtype: str | None = None, checkpoint: str | None = None) -> Graph:
    """The graph of a target; what tracing remarked goes to stderr."""
    from symacct import targets

    if sys.stderr.isatty() and target not in targets.catalogue():
        say(f"tracing {target} …")
    graph = targets.graph_of(target, mode, device, dtype, checkpoint)
    for remark in graph.remarks:
        say(f"note: {remark}")
    return graph


def answer_of(target: str, options: dict[str, Any]) -> Answer:
    """A target's ledger under the options of `traced`, `priced` and `sized`."""
    from symacct.account import Ledger
    from symacct.report.answer import answer
    from symacct.report.relations import numbers

    chosen = convention(options["name"], **{switch: options[switch] for switch in CHOICES})
    numbers(options["at"])
    graph = graph_of(target, options["mode"], options["device"], options["dtype"], options["checkpoint"])
    return answer(Ledger(graph, chosen, options["allow_unknown"]), options["at"], options["given"])
