"""`symacct measure`: real steps on the present device, against its peak."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from symacct.cli.options import debug, formats, priced, sized

if TYPE_CHECKING:
    from symacct.devices import Device
    from symacct.report.answer import Answer


@click.command()
@click.argument("target")
@click.option(
    "--mode",
    type=click.Choice(["train", "forward", "prefill", "decode"]),
    default="train",
    show_default=True,
    help="What a step is.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Where to run; left out, on CUDA if there is a device, else on the CPU.",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    help="Convert the model and its inputs; left out, they stay as the code makes them.",
)
@click.option(
    "--checkpoint",
    metavar="full|PATTERN",
    help="Recompute each block, or the modules whose paths fit, by torch's checkpoint.",
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps to time.")
@click.option(
    "--warmup", type=click.IntRange(0), default=3, show_default=True, help="Steps before these, not timed."
)
@click.option(
    "--card",
    metavar="h100|FILE.toml|FIGURES",
    help="What MFU is measured against; left out, the table's card of the device's name, if any.",
)
@click.option(
    "--precision",
    metavar="bf16|tf32|…",
    help="Which of the card's peaks counts; left out, the products' own.",
)
@sized
@priced
@formats("text", "json")
@debug
def measure(target: str, form: str, steps: int, warmup: int, **options: Any) -> int:
    """Run steps of TARGET on this machine: FLOP/s, MFU and HFU, tokens and bytes a second, peak memory."""
    from symacct.devices import card
    from symacct.report.relations import numbers

    numbers(options["at"])
    known = card(options["card"]) if options["card"] else None
    if known is not None and options["precision"]:
        known.peak(options["precision"])
    from symacct import measure as running
    from symacct.plan.speed import Speed
    from symacct.report.measured import as_json, as_text
    from symacct.tracing.preparation import prepared

    device = running.present(options["device"])
    source = prepared(_source(target), options["dtype"], options["checkpoint"])
    answer = _answer(target, source, device, options)
    timing = running.measure(source, answer.ledger, answer.sizes, device, steps, warmup)
    speed = Speed(answer.ledger, answer.sizes, timing, known or _named(timing.named), options["precision"])
    if form == "json":
        click.echo(json.dumps(as_json(answer, speed), indent=2, ensure_ascii=False))
        return 0
    from symacct.report.grids import Page

    with Page() as page:
        as_text(page, answer, speed)
    return 0


def _source(target: str) -> Any:
    """The model of a target; of a stored graph, the one that it was traced from."""
    from symacct.targets import graph_of, is_stored, model_behind, source_of

    return model_behind(target, graph_of(target)) if is_stored(target) else source_of(target)


def _answer(target: str, source: Any, device: str, options: dict[str, Any]) -> Answer:
    """The ledger of what will run, at the sizes asked for. Raises SizeError for a missing one."""
    from symacct.account import Ledger
    from symacct.cli.options import say
    from symacct.conventions import CHOICES, convention
    from symacct.errors import SizeError
    from symacct.report.answer import answer
    from symacct.report.relations import numbers, relations
    from symacct.tracing.build import Builder

    chosen = convention(options["name"], **{switch: options[switch] for switch in CHOICES})
    known = relations(options["given"], source.dims)
    sizes = known.completed({**source.values, **numbers(options["at"])})
    missing = [name for name in source.dims if name not in sizes]
    if missing:
        every = ", ".join(source.dims)
        raise SizeError(
            f"--at leaves out {', '.join(missing)}; a real step needs a number for each of {every}"
        )
    graph = Builder(source, options["mode"], device).graph(target)
    for remark in graph.remarks:
        say(f"note: {remark}")
    spelled = [f"{name}={value}" for name, value in sizes.items()]
    return answer(Ledger(graph, chosen, options["allow_unknown"]), spelled, options["given"])


def _named(name: str) -> Device | None:
    """The table's card that bears the device's own name, such as NVIDIA H100 80GB HBM3."""
    from symacct.devices import device
    from symacct.errors import DeviceError

    try:
        return device(name)
    except DeviceError:
        return None
