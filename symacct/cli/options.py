"""The options that several verbs share, and how a target becomes an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from symacct.conventions import CHOICES, NAMED, convention
from symacct.dtypes import BUILT
from symacct.variants import RECIPES, Variant, variant

if TYPE_CHECKING:
    from symacct.account import Ledger
    from symacct.graph import Graph
    from symacct.regions import Region
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
        metavar="|".join(BUILT),
        help="Convert the model and its inputs; left out, they stay as the code makes them (of a config, float32).",
    ),
    click.option(
        "--checkpoint",
        metavar="full|selective|PATTERN",
        help="Recompute each block, the attention cores alone, or the outermost modules whose paths fit (* crosses dots), in backward by torch's checkpoint.",
    ),
)

trained = _all(
    click.option(
        "--recipe",
        metavar="|".join(RECIPES),
        help="Train in two precisions: autocast; mixed (low weights and gradients, float32 masters); megatron (float32 "
        "gradient buffers and masters); playbook (low gradients beside these buffers). The low one is bf16, or --dtype.",
    ),
    click.option(
        "--optimizer",
        metavar="NAME",
        help="In place of the model's own, one of torch.optim's at its defaults (adamw, sgd, muon, …), or adamw8bit.",
    ),
    click.option(
        "--no-early-stop", is_flag=True, help="What is recomputed runs to its end, as under set_checkpoint_early_stop(False)."
    ),
    click.option(
        "--accumulate", is_flag=True, help="The step is the last of several micro-batches: it adds to gradients."
    ),
    click.option(
        "--widths",
        type=click.Choice(["concrete", "symbolic"]),
        help="Bytes of an element as symbols: w_p of weights, w_g of gradients, w_o of optimizer state, w_a of the rest.",
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
        help="A relation between sizes, a divisibility 'h | d', a comparison 'T >= W', or for derive, latex and "
        "check an order 'T << d'.",
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


def say_once(text: str) -> None:
    """A remark that is said once in a command, however many graphs it is about."""
    context = click.get_current_context(silent=True)
    said = context.meta.setdefault(f"{__name__}.said", set()) if context is not None else set()
    if text not in said:
        said.add(text)
        say(text)


def graph_of(
    target: str,
    mode: str,
    device: str,
    dtype: str | None = None,
    checkpoint: str | None = None,
    asked: Variant | None = None,
    region: Region | None = None,
) -> Graph:
    """The graph of a target; what tracing remarked goes to stderr."""
    from symacct import targets

    if sys.stderr.isatty() and target not in targets.catalogue():
        say(f"tracing {target} …")
    graph = targets.graph_of(target, mode, device, dtype, checkpoint, asked, region)
    for remark in graph.remarks:
        say_once(f"note: {remark}")
    return graph


def asked_of(options: dict[str, Any]) -> Variant:
    """What the options of `trained` ask for; nothing under a verb that has none."""
    return variant(
        options.get("recipe"),
        options.get("accumulate", False),
        options.get("widths"),
        options.get("optimizer"),
        not options.get("no_early_stop", False),
    )


def ledger_of(target: str, options: dict[str, Any]) -> Ledger:
    """A target's ledger under the options of `traced` and `priced`."""
    from symacct.account import Ledger
    from symacct.regions import region
    from symacct.report.relations import numbers

    chosen = convention(options["name"], **{switch: options[switch] for switch in CHOICES})
    where = region(options["given"], numbers(options["at"]))
    graph = graph_of(
        target, options["mode"], options["device"], options["dtype"], options["checkpoint"], asked_of(options), where
    )
    return Ledger(graph, chosen, options["allow_unknown"])


def given_of(graph: Graph, options: dict[str, Any]) -> tuple[str, ...]:
    """The relations of `--given`; with `--at` but no head width, `d_h = d/h` as in most models whose heads have one
    width, which is said."""
    from symacct.report.relations import numbers

    known = {**graph.values, **numbers(options["at"])}
    told = any("d_h" in text for text in options["given"])
    if not options["at"] or "d_h" not in graph.symbols or {"d_r", "d_v"} & set(graph.symbols) or "d_h" in known or told or not {"d", "h"} <= set(known):
        return tuple(options["given"])
    say("note: --at leaves out d_h; it is taken as d/h")
    return (*options["given"], "d_h = d/h")


def answer_of(target: str, options: dict[str, Any]) -> Answer:
    """A target's ledger under the options of `traced`, `priced` and `sized`."""
    from symacct.report.answer import answer

    ledger = ledger_of(target, options)
    return answer(ledger, options["at"], given_of(ledger.graph, options))
