"""Which copies `explain --copies` calls avoidable: those alone without which a real run gives the same.

Whether a dtype holds every value of another is asked of torch: all bit patterns of narrow dtypes, samples of wide ones.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import symacct
from symacct.cli import main
from symacct.copying import copies
from symacct.dtypes import WIDTHS, holds_every
from symacct.symbols import symbol

PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def samples(name: str) -> torch.Tensor:
    """Every value of a dtype of up to 16 bits; of a wider one random bits and the ends of its range."""
    dtype, width = getattr(torch, name), WIDTHS[name]
    if name == "bool":
        return torch.tensor([False, True])
    if name in PARTS:
        part = samples(PARTS[name]).double()
        return torch.complex(part, part.flip(0)).to(dtype)
    if width <= 2:
        return torch.arange(2 ** (8 * width)).to(torch.uint8 if width == 1 else torch.uint16).view(dtype)
    seed = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (1024 * width // 4,), generator=seed).to(torch.int32).view(dtype)
    if dtype.is_floating_point:
        about = torch.finfo(dtype)
        ends = [1 + about.eps, about.max, -about.tiny * about.eps, math.inf, -0.0]
    else:
        ends = [torch.iinfo(dtype).min, torch.iinfo(dtype).max, torch.iinfo(dtype).max - 1]
    return torch.cat([bits, torch.tensor(ends, dtype=dtype)])


def same(a: complex, b: complex) -> bool:
    """Whether two Python numbers are one value; Python compares integers with floats exactly."""
    return all(
        (x == y and math.copysign(1, x) == math.copysign(1, y)) or (x != x and y != y)
        for x, y in ((a.real, b.real), (a.imag, b.imag))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("narrow", WIDTHS)
def test_a_dtype_holds_every_value_of_another_exactly_where_torch_keeps_them(narrow):
    values = samples(narrow)
    kept = {w: all(map(same, values.tolist(), values.to(getattr(torch, w)).tolist())) for w in WIDTHS}
    assert {w: holds_every(w, narrow) for w in WIDTHS} == kept


def test_a_dtype_that_is_a_symbol_is_known_to_hold_nothing():
    assert not holds_every("w_a", "float16") and not holds_every("float32", "w_a") and not holds_every("int64", "w_a")


class Casting(nn.Module):
    def __init__(self, there: torch.dtype) -> None:
        super().__init__()
        self.there = there

    def forward(self, x):
        return x.to(self.there).view(-1).to(x.dtype)


@pytest.mark.parametrize(
    ("own", "there", "exact"),
    [
        ("float32", "bfloat16", False),
        ("float32", "float16", False),
        ("float32", "float8_e4m3fn", False),
        ("float64", "float32", False),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("float32", "int32", False),
        ("int64", "float64", False),
        ("int16", "float16", False),
        ("bfloat16", "float32", True),
        ("float16", "float32", True),
        ("float32", "float64", True),
        ("int8", "float32", True),
        ("int32", "int64", True),
        ("bool", "float16", True),
    ],
)
def test_only_a_trip_that_changes_no_value_is_a_round_trip(own, there, exact):
    x = samples(own)
    assert torch.equal(Casting(getattr(torch, there))(x).nan_to_num(), x.nan_to_num()) is exact  # in a real run
    ledger = symacct.derive(
        model=lambda: Casting(getattr(torch, there)),
        inputs=lambda B: torch.ones(B, 3, dtype=getattr(torch, own)),
        dims={"B": 4},
        mode="forward",
        device="cpu",
    )
    assert [c.rule for c in copies(ledger)] == ["round trip"] * (2 * exact)  # there and back


# What is written into


def forward(name):
    """A model that does what the function does, to a hidden tensor and its copy."""

    class Model(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.a = nn.Linear(d, d)
            self.register_buffer("table", torch.ones(d))

        def forward(self, x):
            return CASES[name](self.a(x), self, torch.clone)

    return Model


def copy_written(z, model, clone):
    w = clone(z)
    w[:, 0] = 0
    return w + z


def source_written(z, model, clone):
    w = clone(z)
    z.mul_(2)
    return w * z


def view_written(z, model, clone):
    w = clone(z)
    w.view(-1)[0] = 3
    return w + z.cos()


def buffer_written(z, model, clone):
    w = clone(model.table)
    w.add_(1)
    return w * z


def input_of_backward(z, model, clone):
    z = z.exp()  # whose derivative is z itself
    w = clone(z)
    return w.mul_(2)


def returned(z, model, clone):
    w = clone(z)
    return z, w.add_(1)


def repeated(z, model, clone):
    w = clone(z[:, None].expand(-1, 2, -1))
    w[:, 0] = 0
    return w.sin()


def written_from_the_source(z, model, clone):
    z = z + 1
    w = clone(z)
    w[1:].add_(z[:-1] * z[:-1])
    return w.mul(2)


def one_copy_for_each_turn(z, model, clone):
    for _ in range(3):
        w = clone(z)
        z.add_(1)
        z = z * w
    return z


def written_before(z, model, clone):
    z = z + 1
    z.mul_(2)
    return clone(z) * z


def written_while_the_source_is_read(z, model, clone):
    z = z + 1
    w = clone(z)
    w[1:].add_(z[:-1])
    return w.mul(2)


def source_not_used_again(z, model, clone):
    w = clone(z + 1)
    return w.mul_(2).sin()


def not_written(z, model, clone):
    return clone(z) * z


WRITTEN = {f.__name__: f for f in (copy_written, source_written, view_written, buffer_written, input_of_backward, returned, repeated, written_from_the_source, written_while_the_source_is_read, one_copy_for_each_turn)}
IDLE = {f.__name__: f for f in (written_before, source_not_used_again, not_written)}
CASES = WRITTEN | IDLE


def outcome(name, clone):
    """The output and the gradient of a real run with copies made by `clone`; None where autograd refuses it."""
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    made = forward(name)(6)
    z = made.a(x)
    try:
        got = CASES[name](z, made, clone)
        parts = got if isinstance(got, tuple) else (got,)
        sum(part.sum() for part in parts).backward()
    except RuntimeError:
        return None
    return [*(part.detach() for part in parts), made.a.weight.grad, made.table]


@pytest.mark.parametrize("name", CASES)
def test_a_clone_is_avoidable_where_a_real_run_without_it_gives_the_same(name):
    with_it, without = outcome(name, torch.clone), outcome(name, lambda t: t)
    equal = without is not None and all(map(torch.equal, with_it, without))
    assert equal is (name in IDLE)
    ledger = symacct.derive(model=forward(name), inputs=lambda B, d: torch.randn(B, d), dims={"B": 4, "d": 6}, device="cpu", loss=total)
    assert [c.rule for c in copies(ledger)] == ["clone"] * equal


def total(output):
    return sum(part.sum() for part in output) if isinstance(output, tuple) else output.sum()


class Deep(nn.Module):
    """Layers that write into a tensor before they copy it: their own, or one from before them."""

    def __init__(self, L, d, shared):
        super().__init__()
        self.layers, self.shared = nn.ModuleList(nn.Linear(d, d) for _ in range(L)), shared

    def forward(self, x, clone=torch.clone):
        s = h = self.layers[0](x) * 2
        for layer in self.layers:
            own = s if self.shared else layer(h) + 1
            own.add_(1)
            h = h + layer(clone(own))
        return h


@pytest.mark.parametrize("shared", [False, True])
def test_a_write_before_a_copy_is_one_after_that_of_the_layer_before(shared):
    made, x = Deep(3, 4, shared), torch.randn(2, 4)
    made(x).sum().backward()
    if shared:  # without the copy, a layer's input changes before backward reads it
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made(x, lambda t: t).sum().backward()
    else:
        assert torch.equal(made(x), made(x, lambda t: t))
    ledger = symacct.derive(
        model=lambda L, d: Deep(L, d, shared), inputs=lambda B, d: torch.randn(B, d), dims={"B": 3, "L": 3, "d": 4}, device="cpu"
    )
    assert [(c.rule, str(c.entry.place.times)) for c in copies(ledger)] == ([] if shared else [("clone", "L")])


CODE = """
import torch
from torch import nn
dims = {"B": 3, "d": 8}
class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
    def forward(self, x):
        y = self.a(x).to(torch.bfloat16).to(torch.float32)
        y = y.to(torch.float64).to(torch.float32)
        z = self.b(y)
        w = z.clone()
        w[:, 0] = 0
        return w * z.clone()
def model(d): return M(d)
def inputs(B, d): return torch.randn(B, d)
"""


def test_together_adds_up_what_is_listed(tmp_path, capsys):
    """By hand: the casts to float64 and back (8 + 4 bytes an element each) and the second clone (4 + 4) can go, and no other."""
    file = tmp_path / "casts.py"
    file.write_text(CODE, encoding="utf-8")
    assert main(["explain", str(file), "--copies", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "float32 to float64 and back" in said and "bfloat16" not in said
    assert said.count("\nclone  ") == 1 and "together   32·B·d bytes moved" in said
    assert main(["explain", str(file), "--copies", "--device", "cpu", "--format", "json"]) == 0
    assert [row["moved"] for row in json.loads(capsys.readouterr().out)["copies"]] == ["12*B*d", "12*B*d", "8*B*d"]
    ledger = symacct.derive(str(file), device="cpu")
    assert sum(c.moved for c in copies(ledger)) == 32 * symbol("B") * symbol("d")
