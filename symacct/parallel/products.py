"""How products, attention, norms, lookups and losses divide."""

from __future__ import annotations

from symacct.parallel.laws import LAWS, Call, Undivided, asked
from symacct.parallel.layout import SUMMAND, WHOLE, Layout, Part

_ROWS, _SUM, _COLUMNS, _BATCH = "rows", "sum", "columns", "batch"
_OUT = {_ROWS: -2, _COLUMNS: -1}


def product(call: Call) -> list[Layout]:
    """(…,m,k) by (…,k,n). Divided rows, columns or batches stay; a divided sum leaves summands."""
    a, b = call.tensors[-2:]
    names = {a: (_ROWS, _SUM), b: (_SUM, _COLUMNS)}
    call.settle(a)
    call.settle(b)
    for _ in range(2):
        roles = {name: _role(call, name, ends) for name, ends in names.items()}
        (ra, pa), (rb, pb) = roles[a], roles[b]
        if pa is None and pb is None:
            return [WHOLE]
        if pa is not None and pb is not None and (ra, rb) not in ((_SUM, _SUM), (_BATCH, _BATCH)):
            _yield(call, {b: pb, a: pa} if ra == _ROWS else {a: pa, b: pb})  # rows of queries stay, keys are gathered
            continue
        part, role = (pa, ra) if pa is not None else (pb, rb)
        assert part is not None
        other, ends = (b, names[b]) if pa is not None else (a, names[a])
        if role in (_SUM, _BATCH):
            dim = part.dim if role == _BATCH else len(call.shape(other)) - 2 + ends.index(_SUM)
            if not part.at(dim, part.outer).fits(call.layout(other)):
                call.want(other, part.moved(dim))
        return [_result(call, part, role)]
    raise Undivided(f"{call.op} meets two divisions", [call.layout(a), call.layout(b)])


def _role(call: Call, name: str, ends: tuple[str, str]) -> tuple[str, Part | None]:
    layout = call.layout(name)
    if not isinstance(layout, Part):
        return "", None
    place = layout.dim - (len(call.shape(name)) - 2)
    return (ends[place] if place >= 0 else _BATCH), layout


def _yield(call: Call, parts: dict[str, Part]) -> None:
    """Of two divisions that do not go together the one along the sequence is gathered."""
    along = [name for name, part in parts.items() if part.sequence]
    if not along:
        raise Undivided(f"{call.op} meets two divisions", list(parts.values()))
    call.gather(along[0])


def _result(call: Call, part: Part, role: str) -> Layout:
    if role == _SUM:
        return SUMMAND
    rank = len(call.outputs[0])
    made = part if role == _BATCH else part.moved(rank + _OUT[role])
    if len(call.tensors) == 3:
        bias = call.tensors[0]
        here = made.dim - (rank - len(call.shape(bias)))
        if here >= 0 and call.shape(bias)[here] != 1 and not made.moved(here).fits(call.layout(bias)):
            call.want(bias, made.moved(here))
    return made


def attention(call: Call) -> list[Layout]:
    """Heads or batches divided stay so; along the sequence, keys and values are gathered and queries stay."""
    q, k, v = ("query", "key", "value")
    names = [n for n in ("grad_out", "grad_out_", "out", "logsumexp") if n in call.tensors]
    parts = {n: call.settle(n) for n in (q, k, v)}
    chosen = next((p for p in parts.values() if isinstance(p, Part) and not p.sequence), None)
    chosen = chosen or next((p for p in parts.values() if isinstance(p, Part)), None)
    if chosen is None:
        whole = [call.settle(n) for n in names]
        chosen = next((p for p in whole if isinstance(p, Part)), None)
        if chosen is None:
            return [WHOLE] * len(call.outputs)
    if chosen.dim == 2 and chosen.sequence:
        for n in (k, v):
            call.gather(n)
        if not chosen.fits(call.layout(q)):
            call.want(q, chosen)
        call.spread("is_causal")
    elif chosen.dim in (0, 1):
        for n in (q, k, v):
            held = parts[n]
            by_heads = isinstance(held, Part) and not held.sequence
            if chosen.dim == 1 and call.shape(n)[1] != call.shape(q)[1] and not by_heads:
                call.gather(n)  # fewer heads than ranks: all of them on every rank
            elif not chosen.fits(held):
                call.want(n, chosen)
    else:
        raise Undivided(f"{call.op} needs whole rows of queries and keys", [chosen])
    for n in names:
        if not chosen.fits(call.settle(n)):
            call.want(n, chosen)
    for n in ("attn_bias", "attn_mask"):
        if n in call.tensors:
            _masked(call, n, chosen)
    if "backward" in call.op:
        operands = [n for n in (q, k, v, "bias", "attn_bias") if n in call.tensors]
        return asked(call, [call.layout(n) if isinstance(call.layout(n), Part) else SUMMAND for n in operands])
    rank = len(call.shape(q))
    return [chosen if len(out) in (rank, rank - 1) and out[0] == call.shape(q)[0] else WHOLE for out in call.outputs]


def _masked(call: Call, name: str, chosen: Part) -> None:
    here = chosen.dim - (4 - len(call.shape(name)))
    if here >= 0 and call.shape(name)[here] != 1 and not chosen.moved(here).fits(call.settle(name)):
        call.want(name, chosen.moved(here))


def norm(call: Call) -> list[Layout]:
    """A norm over the last dimensions: rows may be divided; weights are whole, so their gradients are summands."""
    grad = [n for n in call.tensors if n.startswith("grad")]
    rows = [*grad, "input"]
    last = len(call.shape("input")) - len(_tuple(call.argument("normalized_shape")))
    layouts = [call.settle(n) for n in rows]
    chosen = next((p for p in layouts if isinstance(p, Part)), None)
    if chosen is not None and chosen.dim >= last:
        raise Undivided(f"{call.op} needs whole rows", layouts)
    for n in [*rows, *(n for n in ("mean", "rstd") if n in call.tensors)]:
        if chosen is not None and not chosen.fits(call.settle(n)):
            call.want(n, chosen)
    if not grad:
        return [chosen or WHOLE] * len(call.outputs)
    weights: Layout = SUMMAND if chosen is not None else WHOLE
    return asked(call, [chosen or WHOLE, weights, weights])


def _tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def lookup(call: Call) -> list[Layout]:
    """Rows of a table: a table divided by rows leaves summands, by columns a division of the last dimension."""
    table, indices = call.layout("weight"), call.settle("indices")
    if isinstance(table, Part):
        if isinstance(indices, Part):
            call.gather("indices")
        return [SUMMAND if table.dim == 0 else Part(len(call.outputs[0]) - 1, origin=table.origin)]
    return [indices]


def lookup_backward(call: Call) -> list[Layout]:
    """The table's gradient: rows of it where the table is divided, summands where the positions are."""
    grad = call.settle("grad_output")
    table = call.table()
    if isinstance(table, Part) and table.dim == 0:
        if isinstance(grad, Part):
            call.gather("grad_output")
        return [table]
    if not isinstance(grad, Part):
        return [WHOLE]
    if grad.dim == len(call.shape("grad_output")) - 1:
        return [Part(1, origin=grad.origin)]
    if not grad.fits(call.settle("indices")):
        call.want("indices", grad)
    return [SUMMAND]


def likelihood(call: Call) -> list[Layout]:
    """The log-likelihood of the targets: with divided classes the ranks add what each of them picked."""
    layout, target = call.settle("self"), call.settle("target")
    if not isinstance(layout, Part):
        if isinstance(target, Part):
            call.gather("target")
        return [WHOLE] * len(call.outputs)
    if layout.dim == len(call.shape("self")) - 1:
        if isinstance(target, Part):
            call.gather("target")
        if "backward" in call.op:
            return [layout]
        call.reduce(call.shape("self")[:-1])
        return [WHOLE] * len(call.outputs)
    if not layout.fits(target):
        call.want("target", layout)
    return [layout] if "backward" in call.op else [SUMMAND] * len(call.outputs)


_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable", "flash_attention_for_cpu")
LAWS.update(dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "_int_mm"), product))
LAWS.update({f"_scaled_dot_product_{kernel}{end}": attention for kernel in _KERNELS for end in ("", "_backward")})
LAWS.update(dict.fromkeys(("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"), norm))
LAWS.update({"embedding": lookup, "embedding_dense_backward": lookup_backward})
LAWS.update(dict.fromkeys(("nll_loss_forward", "nll_loss_backward"), likelihood))
