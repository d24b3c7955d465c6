"""What is asked of a model beside its code: mixed precision, accumulation, an optimizer, symbolic widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from symacct.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a step is trained in two precisions, the low one bfloat16 unless `--dtype fp16` asks for the other.

    `casting`: the model stays in float32, its forward and loss run under torch.autocast; otherwise the model
    is converted, and the optimizer steps float32 copies of its parameters (masters), part of its state.
    `gradients`: what holds them from one backward to the next: "own" the parameters' `.grad`; "wide" float32
    buffers, into which each is added as soon as it is there, and then freed; "both" these and `.grad`.
    """

    name: str
    casting: bool
    gradients: str
    meaning: str
    source: str


_ROWS = (
    Recipe(
        "autocast",
        True,
        "own",
        "float32 weights, gradients and optimizer; forward and loss under torch.autocast",
        "torch.amp; Hugging Face, model memory anatomy",
    ),
    Recipe(
        "mixed",
        False,
        "own",
        "low-precision weights and gradients, float32 masters in the optimizer: 2 + 2 + 4 + its state",
        "Rajbhandari et al. 2020 (ZeRO), section 3.1",
    ),
    Recipe(
        "megatron",
        False,
        "wide",
        "low-precision weights, float32 gradient buffers and masters: 2 + 4 + 4 + its state",
        "NVIDIA/Megatron-LM, theoretical_memory_usage.py without distributed optimizer",
    ),
    Recipe(
        "playbook",
        False,
        "both",
        "low-precision weights and gradients, float32 buffers and masters: 2 + 2 + 4 + 4 + its state",
        "Hugging Face, The Ultra-Scale Playbook, memory for weights, gradients and optimizer states",
    ),
)
RECIPES: Mapping[str, Recipe] = {row.name: row for row in _ROWS}
EIGHT_BIT = ("adam8bit", "adamw8bit")  # by the rule of symacct.quantised
_TORCH = "adadelta adafactor adagrad adam adamax adamw asgd muon nadam radam rmsprop rprop sgd"
OPTIMIZERS = (*_TORCH.split(), *EIGHT_BIT)  # torch.optim's in lower case, at their defaults


@dataclass(frozen=True, slots=True)
class Variant:
    """What is asked. `accumulated`: the step is the last of several micro-batches, and adds to gradients.

    `symbolic`: bytes of an element stay symbols, `w_p` of parameters, `w_g` of gradients, `w_o` of optimizer
    state, `w_a` of everything else that has the model's dtype. `optimizer`: one of OPTIMIZERS in place of the
    model's own. `early_stop`: whether what is recomputed ends as soon as backward has all that it needs, as
    torch's checkpoint does unless told otherwise.
    """

    recipe: Recipe | None = None
    accumulated: bool = False
    symbolic: bool = False
    optimizer: str = ""
    early_stop: bool = True

    @property
    def trains(self) -> bool:
        """Whether it concerns training alone."""
        return self.recipe is not None or self.accumulated or bool(self.optimizer) or not self.early_stop

    @property
    def text(self) -> str:
        """The variant in a few words, for a head line; empty when nothing is asked."""
        words = [self.optimizer] if self.optimizer else []
        words += [f"recipe {self.recipe.name}"] if self.recipe else []
        words += ["last of several micro-batches"] if self.accumulated else []
        words += ["symbolic widths"] if self.symbolic else []
        words += [] if self.early_stop else ["recomputation without early stop"]
        return ", ".join(words)

    @property
    def option(self) -> str:
        """The first option that asks for it."""
        if self.optimizer:
            return f"--optimizer {self.optimizer}"
        if self.recipe:
            return f"--recipe {self.recipe.name}"
        if self.accumulated:
            return "--accumulate"
        return "--widths symbolic" if self.symbolic else "--no-early-stop"

    @property
    def beyond_runs(self) -> str:
        """The first option under which no plain step in float32 or a cast model runs; empty where there is none."""
        if self.optimizer in EIGHT_BIT:
            return f"--optimizer {self.optimizer}"
        if self.recipe:
            return f"--recipe {self.recipe.name}"
        return "--accumulate" if self.accumulated else "--widths symbolic" if self.symbolic else ""


def variant(
    recipe: str | None = None,
    accumulate: bool = False,
    widths: str | None = None,
    optimizer: str | None = None,
    early_stop: bool = True,
) -> Variant:
    """The variant by its options. Raises ModelFileError for unknown names and for a contradiction."""
    optimizer = optimizer.lower() if optimizer else ""
    for kind, word, known in (("recipe", recipe, tuple(RECIPES)), ("optimizer", optimizer, OPTIMIZERS)):
        if word and word not in known:
            near = get_close_matches(word, known, 1)
            raise ModelFileError(
                f"no {kind} {word!r}; "
                + (f"did you mean {near[0]!r}? " if near else "")
                + f"known: {', '.join(known)}"
            )
    if widths not in (None, "concrete", "symbolic"):
        raise ModelFileError(f"widths = {widths!r}: choose from concrete, symbolic")
    if recipe is not None and widths == "symbolic":
        raise ModelFileError(
            f"--recipe {recipe} says which width each tensor has; leave out --widths symbolic"
        )
    if optimizer in EIGHT_BIT and widths == "symbolic":
        raise ModelFileError(
            f"--optimizer {optimizer} says which width its state has; leave out --widths symbolic"
        )
    return Variant(RECIPES[recipe] if recipe else None, accumulate, widths == "symbolic", optimizer, early_stop)
