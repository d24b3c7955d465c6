"""A model source under a recipe of mixed precision, or adding to gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from symacct.dtypes import checked as known
from symacct.errors import ModelFileError, SymacctError
from symacct.graph import Assumption, Graph
from symacct.quantised import eight_bit
from symacct.regions import Region, examples
from symacct.tracing.build import Builder
from symacct.tracing.masters import Made, MasterWeights
from symacct.tracing.preparation import DTYPES, prepared, without_early_stop
from symacct.tracing.source import ModelSource
from symacct.tracing.stepping import checked
from symacct.variants import EIGHT_BIT, Recipe, Variant
from symacct.widths import symbolic

_TURNS = 4  # branches of the code that a region turns, one after another


def graph_of(
    source: ModelSource,
    target: str,
    mode: str,
    device: str,
    dtype: str | None = None,
    checkpoint: str | None = None,
    asked: Variant | None = None,
    region: Region | None = None,
) -> Graph:
    """The graph of a variant of a source; the graph says which. Of several ways through the code that of the region.

    Raises what tracing raises, and ModelFileError where what is asked contradicts itself.
    """
    asked = asked or Variant()
    if asked.trains and mode != "train":
        raise ModelFileError(
            f"{target}: {asked.text} says how to train, and mode {mode} does not; leave it out, or derive "
            "--mode train"
        )

    def traced(now: str | None) -> Graph:
        return _within(region, Builder(varied(source, asked, now, checkpoint), mode, device)).graph(target)

    if asked.symbolic and dtype == "fp32":
        raise ModelFileError(
            f"{target}: widths stay symbols of a model converted to bf16 or fp16; leave out --dtype fp32"
        )
    if asked.symbolic:
        low = dtype or "bf16"
        graph = symbolic(traced(low), str(DTYPES[low]).removeprefix("torch."), traced("fp32"))
    else:
        graph = traced(dtype)
    if asked.optimizer in EIGHT_BIT:
        graph = eight_bit(graph)
    said = of_stored(source.stored, dtype, asked)
    if source.trained and mode == "train":
        said.append(source.trained)
    if asked.recipe:
        said.append(f"recipe {asked.recipe.name}: {asked.recipe.meaning} ({asked.recipe.source})")
    return replace(graph, variant=asked.text, remarks=(*graph.remarks, *said))


def _within(region: Region | None, builder: Builder) -> Builder:
    """The builder at example sizes from which code takes the way that it takes in the region.

    The builder itself where no example sizes are found: what it derives then holds elsewhere, and says where.
    """
    if region is None or not (region.wanted or region.sizes):
        return builder
    source, asked = builder.source, region.wanted
    found = examples(source.dims, asked) if asked else None
    made = Builder(replace(source, dims=found), builder.mode, builder.device) if found else builder
    for _ in range(_TURNS):
        try:
            known = made.taken()[2].assumptions
        except SymacctError:  # the model itself refuses such sizes
            return builder
        if not _told_of(known, set(asked) - set(region.wanted)):
            return builder
        more = region.broken(known, source.values)
        found = examples(source.dims, asked := tuple(dict.fromkeys((*asked, *more)))) if more else None
        if found is None or found == made.source.dims:
            return made
        made = Builder(replace(source, dims=found), builder.mode, builder.device)
    return made


def _told_of(known: Iterable[Assumption], turned: Iterable[Any]) -> bool:
    """Whether code asks about these sizes there, too: else a tensor is empty there, and that is no other way."""
    asked = [a.left.free_symbols for a in known if a.kind == "branch"]
    return all(any(one.free_symbols <= sizes for sizes in asked) for one in turned)


def of_stored(stored: str, dtype: str | None, asked: Variant) -> list[str]:
    """A remark where a config stores weights otherwise than they are built, and no dtype was asked for."""
    converted = asked.symbolic or (asked.recipe is not None and not asked.recipe.casting)
    if not stored or dtype is not None or converted:
        return []
    half = next((name for name, kind in DTYPES.items() if stored == str(kind).removeprefix("torch.")), "")
    more = f": --dtype {half} derives these bytes" if half and asked.recipe is None else ""
    return [f"the config says that weights are stored in {stored}, and the model is built in float32{more}"]


def _named(name: str) -> Made:
    """An optimizer of torch.optim by its name in lower case; of an 8-bit one the fused step in its place."""
    kinds = {kind.lower(): made for kind, made in vars(torch.optim).items() if isinstance(made, type)}
    if name in EIGHT_BIT:
        return lambda parameters: kinds[name.removesuffix("8bit")](parameters, fused=True)
    return kinds[name]


def varied(
    source: ModelSource, asked: Variant, dtype: str | None = None, recompute: str | None = None
) -> ModelSource:
    """The source as a variant of it is traced. Raises ModelFileError where options contradict each other."""
    if asked.optimizer:
        source = replace(source, optimizer=_named(asked.optimizer))
    if not asked.early_stop:
        return without_early_stop(varied(source, replace(asked, early_stop=True), dtype, recompute))
    recipe = asked.recipe
    if recipe is None:
        return replace(prepared(source, dtype, recompute), accumulated=asked.accumulated)
    low = known(dtype) or "bf16"
    if low == "fp32":
        raise ModelFileError(
            f"{source.name}: recipe {recipe.name} trains in two precisions; leave out --dtype fp32, or name "
            "the low one"
        )
    made = prepared(source, None if recipe.casting else low, recompute)
    if recipe.casting:
        return replace(made, autocast=DTYPES.get(low), accumulated=asked.accumulated)
    return replace(
        made,
        optimizer=_with_masters(source.name, source.optimizer or torch.optim.AdamW, recipe),
        accumulated=asked.accumulated,
    )


def _with_masters(name: str, make: Made, recipe: Recipe) -> Made:
    return lambda parameters: MasterWeights(
        lambda copies: checked(name, make(copies)), list(parameters), recipe.gradients
    )
