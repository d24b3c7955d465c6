"""The Python door: `symacct.derive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from symacct import account
from symacct.certificate import Certificate
from symacct.conventions import convention as named
from symacct.errors import ModelFileError, Unsupported
from symacct.graph import Graph
from symacct.regions import Region, region
from symacct.report.answer import answer
from symacct.targets import graph_of, is_stored
from symacct.variants import Variant, variant

MODES = ("train", "forward", "prefill", "decode")
DEVICES = ("cuda", "cpu")


class Ledger(account.Ledger):
    """The ledger of a target, with the verbs as methods. `origin` is what it was derived from: dtype, checkpoint, what was asked."""

    origin: tuple[Any, str | None, str | None, Variant] | None = None
    elsewhere: Callable[[Region], Graph] | None = None  # the graph of the way that code takes in another region

    def at(self, **sizes: int) -> dict[str, int]:
        """Every formula in exact integers at these sizes; a config's own numbers stand for sizes that are left out, and
        d/h for the width of a head that no number tells.

        Where the model's code takes another way at these sizes (a window that is full, T >= W), it is traced there.
        Raises SizeError where a size is missing or excluded.
        """
        known = {**self.graph.values, **sizes}
        if not all(isinstance(value, int) and value > 0 for value in known.values()):
            return super().at(**known)
        if "d_h" in self.graph.symbols and {"d", "h"} <= known.keys() and known["d"] % known["h"] == 0:
            known.setdefault("d_h", known["d"] // known["h"])
        where = Region((), known)
        if self.elsewhere is not None and where.broken(self.graph.assumptions, {}):
            others: list[account.Ledger] = self.__dict__.setdefault("_others", [])
            if all(where.broken(other.graph.assumptions, {}) for other in others):
                others.append(account.Ledger(self.elsewhere(where), self.convention, self.allow_unknown))
            for other in others:
                if not where.broken(other.graph.assumptions, {}):
                    return other.at(**known)
        return super().at(**known)

    def latex(
        self,
        *,
        at: Mapping[str, int] | Iterable[str] | str = (),
        given: Iterable[str] | str = (),
        standalone: bool = False,
        certificate: Certificate | None = None,
    ) -> str:
        """The appendix of a paper in LaTeX, as `symacct latex` writes it; `given` may hold orders, "T << d".

        >>> "12\\\\,d^{2}" in derive("gpt2").latex(given="f=4*d")
        True
        """
        from symacct import latex  # a tenth of the time of an answer in text
        from symacct.claims.dropped import leading
        from symacct.latex.orders import leading_order
        from symacct.report.orders import split_orders

        numbers = [f"{name}={value}" for name, value in at.items()] if isinstance(at, Mapping) else _texts(at)
        relations, orders = split_orders(_texts(given))
        asked = answer(self, numbers, relations)
        more = list(leading_order(asked, leading(asked, orders), orders)) if orders else []
        return latex.document(asked, standalone, certificate, more)

    def verify(self, points: int = 5, seed: int = 0, parallel: str | None = None) -> Certificate:
        """The certificate of the formulas, from at least `points` random points, as `symacct verify` gives it.

        `parallel` ("tp=2,sp") also compares a rank's share with torch's own parallelism. Raises Unsupported where
        there is no model to run, a graph alone, and for steps that are not run: in two precisions, over micro-batches,
        with widths as symbols or with an 8-bit optimizer.
        """
        if self.origin is None:
            raise Unsupported(f"{self.graph.target}: no model is known behind this ledger; derive it to verify it")
        verify = import_module("symacct.verify").verify  # that module stands above this one
        target, dtype, checkpoint, asked = self.origin
        return verify(target, self.graph.mode, self.graph.device, points, seed, self.graph, True, dtype, checkpoint, parallel, asked)

    def _repr_latex_(self) -> str:
        from symacct import latex

        return latex.display(answer(self))


def derive(
    target: str | None = None,
    *,
    model: Callable[..., Any] | Any = None,
    inputs: Callable[..., Any] | Any = None,
    dims: Mapping[str, int] | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | str | None = None,
    meanings: Mapping[str, str] | None = None,
    cache: Callable[..., Any] | None = None,
    mode: str = "train",
    device: str = "cuda",
    dtype: str | None = None,
    checkpoint: str | None = None,
    recipe: str | None = None,
    accumulate: bool = False,
    widths: str | None = None,
    early_stop: bool = True,
    convention: str | None = None,
    allow_unknown: bool = False,
    given: Iterable[str] | str = (),
    **switches: str | None,
) -> Ledger:
    """The ledger of a target, or of a model and its inputs given as functions of sizes (or ready, with `dims={}`).

    `cache` gives an empty cache, a function of sizes, for mode "prefill" and "decode": the model's forward takes it as
    `cache=` and fills it in place. `dtype` ("fp32", "fp16", "bf16") converts the model and its inputs. `checkpoint`
    recomputes each block ("full"), the attention cores alone ("selective"), or the outermost modules whose paths fit a pattern,
    by torch's own checkpoint. `recipe` ("autocast", "mixed", "megatron",
    "playbook") trains in two precisions; `accumulate` adds to gradients that earlier micro-batches left; `widths`
    ("symbolic") leaves the bytes of an element as symbols w_p, w_g, w_o, w_a; without `early_stop` a checkpoint
    recomputes to its end. `given` tells by comparisons ("T >= W")
    which way the code takes where sizes decide it.

    >>> ledger = derive("gpt2")
    >>> ledger.at(B=1, T=1024, V=50257, L=12, d=768, h=12, f=3072)["params.total"]
    124439808
    """
    chosen, asked = named(convention, **switches), variant(
        recipe, accumulate, widths, optimizer if isinstance(optimizer, str) else None, early_stop
    )
    if mode not in MODES or device not in DEVICES:
        raise ModelFileError(f"mode = {mode!r}, device = {device!r}: choose from {', '.join(MODES)} and from {', '.join(DEVICES)}")
    if target is None and (model is None or inputs is None):
        raise ModelFileError("nothing to derive: name a target, or give model=, inputs= and dims= (dims={} if both are ready)")
    if target is not None:
        source: Any = target
        again = partial(graph_of, target, mode, device, dtype, checkpoint, asked)
    else:
        from symacct.tracing.model_file import model_source
        from symacct.tracing.variation import graph_of as traced

        source = model_source(
            "the model", dims=dims or {}, model=_function(model), inputs=_function(inputs), loss=loss, optimizer=_own(optimizer), meanings=meanings, cache=cache
        )
        again = partial(traced, source, "the model", mode, device, dtype, checkpoint, asked)
    made = Ledger(again(region(_texts(given), {})), chosen, allow_unknown)
    made.origin, made.elsewhere = (source, dtype, checkpoint, asked), None if is_stored(str(target)) else again
    return made


def _function(given: Any) -> Callable[..., Any]:
    """A function of sizes from a function, or from a ready module or ready inputs."""
    if isinstance(given, type) or (callable(given) and not hasattr(given, "parameters")):
        return given
    return lambda: given


def _own(optimizer: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    return None if isinstance(optimizer, str) else optimizer


def _texts(given: Iterable[str] | str) -> Iterable[str]:
    return [given] if isinstance(given, str) else given
