"""CUDA's autocast on CPU tensors, real or fake: which ops run in the lower precision, which in float32, which in the widest.

Without a GPU `torch.autocast("cuda")` is silently off, and a CPU's own has other lists. Here it, and "cpu" beside it,
switches autocasting of CPU tensors, and for as long as CUDA's lists last they stand in the place of the CPU's. A cast
is an op of its own, under autograd, as on CUDA; a parameter's is kept until the outermost region ends.

Lists: the macros AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE,
AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE and AT_FORALL_PROMOTE of ATen/autocast_mode.h, torch 2.13.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.utils._pytree import tree_leaves, tree_map_only

from symacct.tracing import private

LOWER = """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""".split()
FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
    cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""".split()
FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()
FLOAT32_NORM = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
BANNED = ("binary_cross_entropy",)

_CACHE: dict[int, tuple[Any, torch.Tensor]] = {}
_ACTIVE: list[bool] = []


@contextlib.contextmanager
def emulating() -> Iterator[None]:
    """For the length of the block, autocasting acts on this machine's tensors as CUDA's does on CUDA's."""
    if _ACTIVE:
        yield
        return
    with contextlib.ExitStack() as stack, noting():
        lists: list[Any] = []
        _ACTIVE.append(True)
        stack.callback(_ACTIVE.clear)

        def enter(self: Any) -> Any:
            if not lists:  # few models ask for it
                lists.append(_installed())
                stack.callback(lists[0]._destroy)
            if self.device == "cuda" or hasattr(self, "asked_of_cuda"):
                self.device, self._enabled = "cpu", getattr(self, "asked_of_cuda", self._enabled)
            return plain_enter(self)

        def leave(self: Any, *args: Any) -> Any:
            result = plain_exit(self, *args)
            if hasattr(self, "asked_of_cuda"):
                self.device, self._enabled = "cuda", False
            return result

        def clear() -> None:
            _CACHE.clear()
            plain_clear()

        plain_enter, plain_exit, plain_clear = autocast.__enter__, autocast.__exit__, torch.clear_autocast_cache
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        for owner, name, new in (
            (autocast, "__enter__", enter), (autocast, "__exit__", leave), (torch, "clear_autocast_cache", clear),
            (torch, "is_autocast_enabled", lambda device="cuda": enabled("cpu" if device == "cuda" else device)),
            (torch, "get_autocast_dtype", lambda device: dtype("cpu" if enabled("cpu") and device == "cuda" else device)),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        stack.callback(_CACHE.clear)
        yield


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """For the length of the block, a region that asks for CUDA's autocast notes that: torch alone would forget it."""
    plain = autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if device_type != "cuda":
            return plain(self, device_type, dtype, enabled, cache_enabled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain(self, device_type, dtype, enabled and torch.cuda.is_available(), cache_enabled)
        self.asked_of_cuda = enabled
        return None

    autocast.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        autocast.__init__ = plain  # type: ignore[method-assign]


def lowered(*tensors: Any) -> tuple[Any, ...]:
    """The tensors as an op of the lower precision list takes them now: as they are outside of every region."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    with private.autocast_left_out():
        return _cast(tensors, torch.get_autocast_dtype("cpu"))


# The lists at work

def _installed() -> Any:
    """CUDA's lists as the CPU's; the library's end brings back the CPU's own."""
    library = torch.library.Library("aten", "IMPL")
    made = {name: how for names, how in _HOW for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, how in made.items():
            library.impl(name, _kernel(_overload(name), how), "AutocastCPU")
        for name in private.ops_with_kernel("AutocastCPU") - set(made):
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
    return library


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _kernel(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with private.autocast_left_out():
            return how(op, args, kwargs)

    return kernel


def _lower(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast((args, kwargs), torch.get_autocast_dtype("cpu"))
    return op(*args, **kwargs)


def _float32(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast((args, kwargs), torch.float32)
    return op(*args, **kwargs)


def _float32_result(op: Any, args: Any, kwargs: Any) -> Any:
    place = [argument.name for argument in op._schema.arguments].index("dtype")
    given = args[place] if place < len(args) else kwargs.get("dtype")
    if given is not None or not _eligible(args[0]):
        return op(*args, **kwargs)
    return op(*args[:place], **{**kwargs, "dtype": torch.float32})


def _float32_norm(op: Any, args: Any, kwargs: Any) -> Any:
    wide = getattr(torch.ops.aten.norm, FLOAT32_NORM[f"norm.{op._schema.overload_name}"])
    known = op._schema.arguments
    given = {a.name: a.default_value for a in known if a.has_default_value()}
    given |= dict(zip((a.name for a in known), args, strict=False)) | kwargs
    dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
    return wide(*(given[a.name] for a in wide._schema.arguments if a.name in given), dtype=dtype)


def _widest(op: Any, args: Any, kwargs: Any) -> Any:
    found = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if _eligible(leaf)}
    widest = torch.float32 if torch.float32 in found else torch.get_autocast_dtype("cpu")
    args, kwargs = _cast((args, kwargs), widest)
    return op(*args, **kwargs)


def _banned(op: Any, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy and BCELoss are unsafe to autocast: CUDA refuses them; use binary_cross_entropy_with_logits"
    )


_HOW = (
    (LOWER, _lower), (FLOAT32, _float32), (FLOAT32_RESULT, _float32_result), (tuple(FLOAT32_NORM), _float32_norm),
    (WIDEST, _widest), (BANNED, _banned),
)


def _eligible(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: _cached(tensor, dtype), tree)


def _cached(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in this dtype. The cast of a float32 leaf that is trained is made once in a region."""
    if not _eligible(tensor) or tensor.dtype == dtype:
        return tensor
    lasting = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
    if not lasting or dtype == torch.float32 or not torch.is_autocast_cache_enabled():
        return tensor.to(dtype)
    known = _CACHE.get(id(tensor))
    if known is None or known[0]() is not tensor:
        known = _CACHE[id(tensor)] = (weakref.ref(tensor), tensor.to(dtype))
    return known[1]
