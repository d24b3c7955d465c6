"""What a trace changes in torch, math and numpy while it runs, and nothing of it afterwards.

A replacement acts only on symbolic sizes and fake tensors; any other argument reaches the original. Traces hold
one lock: a second thread that traces waits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torch.optim.optimizer as torch_optimizer

from symacct.tracing import private
from symacct.tracing.autocast import emulating, lowered
from symacct.tracing.conversion import converting
from symacct.tracing.indexing import getitem, setitem
from symacct.tracing.integers import Integral, whole_numbers
from symacct.tracing.lines import user_line
from symacct.tracing.private import FakeTensor
from symacct.tracing.stepping import number_of

LOCK = threading.RLock()
_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_MISSING = object()


@contextlib.contextmanager
def patched(device: str, recompute: Callable[[Any], Any], modules: tuple[str, ...] = (), branch: Any = None, built: dict[int, str] | None = None) -> Iterator[None]:
    """Hold the lock and every patch for the length of one trace. In `modules`, the user's own, `int` keeps symbols."""
    with LOCK, contextlib.ExitStack() as stack:
        _silence(stack)
        if device == "cuda":
            stack.enter_context(emulating())
        stack.enter_context(private.symbolic_metadata())
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(private.set_onednn, private.set_onednn(False))
        for owner, name, new in _everywhere(_functions(device)) + _members(device) + private.checkpoint_hooks(recompute) + whole_numbers(modules) + [(torch.Tensor, "__bool__", _truth(branch)), (private.FakeTensorMode, "__deepcopy__", _itself), (torch.nn.Module, "__init__", _building(built))]:
            _patch(stack, owner, name, new)
        yield


def _itself(mode: Any, memo: Any) -> Any:
    """A copied layer's tensors are of the mode of the original's, not of a copy of it."""
    return mode


def _patch(stack: contextlib.ExitStack, owner: Any, name: str, new: Any) -> None:
    old = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)
    if old is _MISSING:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, old)


def _silence(stack: contextlib.ExitStack) -> None:
    """Torch logs errors that the trace handles itself, and warns of what sizes and tensors of ours bring about: copies
    of fake tensors, heads that are odd in some runs alone."""
    stack.enter_context(warnings.catch_warnings())
    for text in ("Accessing the data pointer of FakeTensor", "enable_nested_tensor is True"):
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
    for name in private.LOGGERS:
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)


def _everywhere(replacements: dict[int, tuple[Any, Any]]) -> list[tuple[Any, str, Any]]:
    """Every module-level name that is bound to one of these functions, whoever imported it."""
    found = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        bound = replacements.keys() & map(id, names.values())
        for name, value in list(names.items()) if bound else ():
            if id(value) in bound and replacements[id(value)][0] is value:
                found.append((module, name, replacements[id(value)][1]))
    return found


def _functions(device: str) -> dict[int, tuple[Any, Any]]:
    pairs: list[tuple[Any, Any]] = [(math.sqrt, _sqrt(math.sqrt)), (math.prod, _product(math.prod))]
    if "numpy" in sys.modules:
        pairs.append((sys.modules["numpy"].sqrt, _sqrt(sys.modules["numpy"].sqrt)))
    for name, function in vars(torch.nn.init).items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            pairs.append((function, _no_initialiser(function)))
    pairs.append((F.scaled_dot_product_attention, _attention(F.scaled_dot_product_attention, device)))
    pairs.append((torch_optimizer._get_value, number_of))
    pairs.append((torch.histc, _histogram(torch.histc)))
    if "transformers.utils.import_utils" in sys.modules:
        asks = sys.modules["transformers.utils.import_utils"].is_fake_tensor
        pairs.append((asks, _is_no_fake))
    if device == "cuda":
        pairs.append((torch_optimizer._default_to_fused_or_foreach, _foreach(torch_optimizer._default_to_fused_or_foreach)))
        pairs.append((torch_optimizer._get_capturable_supported_devices, _capturable))
        pairs.append((torch.dropout, _dropout(torch.dropout)))
    return {id(old): (old, new) for old, new in pairs}


def _members(device: str) -> list[tuple[Any, str, Any]]:
    members: list[tuple[Any, str, Any]] = [
        (numbers, "Integral", Integral),
        (torch.Tensor, "__getitem__", getitem),
        (torch.Tensor, "__setitem__", setitem),
        (torch.nn.Module, "_apply", converting(torch.nn.Module._apply)),
    ]
    members.append(private.grouped_products())
    if "transformers.modeling_utils" in sys.modules:
        models = sys.modules["transformers.modeling_utils"].PreTrainedModel
        members.append((models, "initialize_weights", _unless_fake(models.initialize_weights)))
    if device == "cuda":
        members.append((private.dropout_owner(), "dropout", _dropout(torch.dropout)))
    return members


def _sqrt(original: Callable[..., Any]) -> Callable[..., Any]:
    def sqrt(x: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, _SYMBOLIC) else original(x, *args, **kwargs)

    return sqrt


def _product(original: Callable[..., Any]) -> Callable[..., Any]:
    def prod(values: Any, /, *, start: Any = 1) -> Any:
        values = list(values)
        if not any(isinstance(value, _SYMBOLIC) for value in values):
            return original(values, start=start)
        for value in values:
            start = start * value
        return start

    return prod


def _no_initialiser(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
        if tensor is None:
            tensor = kwargs.pop("tensor", None)
        return tensor if isinstance(tensor, FakeTensor) else original(tensor, *args, **kwargs)

    return initialise


def _unless_fake(original: Callable[..., Any]) -> Callable[..., Any]:
    """A model's own initialisation, which branches on sizes and makes matrices that no step sees."""

    def initialize_weights(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(p, FakeTensor) for p in self.parameters()):
            return None
        return original(self, *args, **kwargs)

    return initialize_weights


def _is_no_fake(_: Any) -> bool:
    """What transformers is told when it asks for a fake tensor, so as to build the graph that a real run builds."""
    return False


def _histogram(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counts per bin. ATen's takes no symbolic number of bins."""

    def histc(input: Any, bins: Any = 100, min: Any = 0, max: Any = 0, **kwargs: Any) -> Any:
        if isinstance(input, FakeTensor):
            return input.new_zeros(bins)
        return original(input, bins, min, max, **kwargs)

    return histc


def _foreach(original: Callable[..., Any]) -> Callable[..., Any]:
    """On CUDA the optimizers of torch default to their foreach form."""

    def default(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        if any(isinstance(p, FakeTensor) for p in params):
            return False, not differentiable
        return original(params, differentiable, use_fused)

    return default


def _capturable(supports_xla: bool = True) -> list[str]:
    """Where an optimizer may keep its step counts on the device: fake tensors lie on the CPU, and stand for CUDA's."""
    return ["cuda", "cpu"]


def _dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    """CUDA's dropout keeps a mask of one byte an element (aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable)."""

    def dropout(input: Any, p: float, train: bool) -> Any:
        if isinstance(input, FakeTensor) and train and 0 < p < 1:
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train)

    return dropout


def _attention(original: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Fused attention as one op that keeps q, k, v, its output and a float32 logsumexp per row.

    With CUDA behaviour that op is flash attention, or memory-efficient attention where there is a mask or the widths
    of keys and values differ, as torch chooses there. With CPU behaviour torch decides as it does on a CPU.
    """

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> Any:
        if device != "cuda" or not isinstance(query, FakeTensor) or query.dim() != 4:
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa and query.shape[1] % key.shape[1] != 0:
            raise RuntimeError(f"{query.shape[1]} query heads do not share {key.shape[1]} key heads evenly")
        query, key, value, attn_mask = lowered(query, key, value, attn_mask)
        scale = private.example_of(scale)
        same_width = private.example_of(query.shape[-1]) == private.example_of(value.shape[-1])
        if attn_mask is None and same_width:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, _as_bias(attn_mask, query, key), torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]

    attention.__name__ = original.__name__  # function modes are shown this one
    return attention


def _as_bias(mask: Any, query: Any, key: Any) -> Any:
    """A mask as the additive bias that the fused kernel takes; a boolean one is turned into floats first, as in ATen."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


_plain_init = torch.nn.Module.__init__


def _building(built: dict[int, str] | None) -> Callable[..., None]:
    """Note the user's line that makes a module: torch's own modules call no line of the user's when they run."""

    def init(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        _plain_init(self, *args, **kwargs)
        if built is not None:
            built[id(self)] = user_line(2)

    return init


def _truth(branch: Callable[[str], None] | None) -> Callable[[torch.Tensor], bool]:
    """The truth of a tensor whose data is unknown: a fixed branch, announced. Libraries ask whether a mask is all ones."""

    def truth(self: torch.Tensor) -> bool:
        if not isinstance(self, FakeTensor) or private.constant_of(self) is not None:
            return private.plain_bool(self)
        if branch is not None:
            branch(user_line(2))
        return True

    return truth


