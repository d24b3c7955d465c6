"""What a trace needs to know about a model, wherever the model came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class ModelSource:
    """A model as functions of named sizes; a size is an int or a `torch.SymInt`."""

    name: str
    dims: dict[str, int]  # every symbol and an example size
    model: Callable[[Mapping[str, Any]], nn.Module]
    inputs: Callable[[Mapping[str, Any]], Any]  # a tensor, a tuple (positional) or a dict (keyword)
    loss: Callable[..., Tensor] | None = None  # (output, sizes, inputs); None: output.loss, else sum of floats
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None  # None: torch.optim.AdamW
    meanings: dict[str, str] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)  # a ready --at: a config's own numbers
    structural: tuple[str, ...] = ()  # symbols that Python consumes, such as a depth
    periods: dict[str, int] = field(default_factory=dict)  # {"L": 2} where layers alternate
    cache: Callable[[nn.Module, Mapping[str, Any]], dict[str, Any]] | None = None  # keyword -> an empty cache
    prompt: Callable[[Mapping[str, Any]], Any] | None = None  # what inference reads; None: the inputs
    step: Callable[[Mapping[str, Any]], Any] | None = None  # what a step of decode reads; None: the prompt at T = 1
    stored: str = ""  # how a config says that the weights are stored, in words; they are built in float32
    trained: str = ""  # what is to be said of a training step
    autocast: Any = None  # the dtype of torch.autocast around forward and loss
    accumulated: bool = False  # the step adds to gradients that earlier micro-batches left
    modules: tuple[str, ...] = ()  # names of the modules that hold the model's own code
