"""Matrix products and convolutions: a multiply-add for each element of the output and each summed index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.pointwise import GELU_TANH, scaled
from symacct.rules.table import Cost, Expr, given, is_number, moved, numel, rule


@rule("aten.mm", "aten.bmm", "aten._int_mm", "aten.matmul")
def product(self: Tensor, out: Tensor) -> Cost:
    """(…,m,k) by (…,k,n): one multiply-add for each (…,m,k,n)."""
    return Cost(product=2 * numel(out) * self.shape[-1])


@rule("aten.mv", "aten.dot", "aten.vdot")
def vector_product(self: Tensor) -> Cost:
    """(m,k) by (k,), or (k,) by (k,): one multiply-add for each element of the first operand."""
    return Cost(product=2 * numel(self))


@rule("aten.linear")
def linear(input: Tensor, bias: Tensor | None, out: Tensor) -> Cost:
    """(…,k) by (n,k): one multiply-add for each (…,k,n), one addition of the bias for each (…,n)."""
    return Cost(product=2 * numel(out) * input.shape[-1], elementwise=given(bias) * numel(out))


def blended(out: Tensor, beta: Any, alpha: Any) -> Expr:
    """beta * addend + alpha * product: an operation per element for the sum and each factor that is not 1."""
    addend = 0 if is_number(beta, 0) else 1 + scaled(beta)
    return (addend + scaled(alpha)) * numel(out)


@rule("aten.addmm")
def addmm(mat1: Tensor, beta: Any, alpha: Any, out: Tensor) -> Cost:
    """(m,k) by (k,n) plus an addend: one multiply-add for each (m,k,n), one addition for each (m,n)."""
    return Cost(product=2 * numel(out) * mat1.shape[-1], elementwise=blended(out, beta, alpha))


@rule("aten._addmm_activation")
def addmm_activation(mat1: Tensor, beta: Any, alpha: Any, use_gelu: Any, out: Tensor) -> Cost:
    """(m,k) by (k,n) plus an addend, then relu or gelu: a multiply-add for each (m,k,n), more per (m,n)."""
    elementwise, calls = GELU_TANH if use_gelu else (1, 0)
    return addmm(mat1, beta, alpha, out) + Cost(
        elementwise=elementwise * numel(out), transcendental=calls * numel(out)
    )


@rule("aten.baddbmm")
def baddbmm(batch1: Tensor, beta: Any, alpha: Any, out: Tensor) -> Cost:
    """(b,m,k) by (b,k,n) plus an addend: one multiply-add for each (b,m,k,n), one addition per (b,m,n)."""
    return Cost(product=2 * numel(out) * batch1.shape[-1], elementwise=blended(out, beta, alpha))


@rule("aten.addbmm")
def addbmm(batch1: Tensor, beta: Any, alpha: Any, out: Tensor) -> Cost:
    """(b,m,k) by (b,k,n), summed over b: one multiply-add for each (b,m,k,n), one addition for each (m,n)."""
    b, _, k = batch1.shape
    return Cost(product=2 * numel(out) * b * k, elementwise=blended(out, beta, alpha))


@rule("aten.addmv")
def addmv(mat: Tensor, beta: Any, alpha: Any, out: Tensor) -> Cost:
    """(m,k) by (k,) plus an addend: one multiply-add for each (m,k), one addition for each m."""
    return Cost(product=2 * numel(mat), elementwise=blended(out, beta, alpha))


@rule("aten.addr")
def addr(beta: Any, alpha: Any, out: Tensor) -> Cost:
    """(m,) by (n,) plus an addend: nothing is summed, so a multiplication and an addition for each (m,n)."""
    return Cost(elementwise=numel(out) + blended(out, beta, alpha))


@rule("aten._grouped_mm")
def grouped_mm(self: Tensor, mat2: Tensor, bias: Tensor | None, out: Tensor) -> Cost:
    """(m,k) by (g,k,n), (g,m,k) by (k,n) or (m,k) by (k,n): each row, column or k is in one of g groups."""
    return Cost(product=2 * numel(self) * mat2.shape[-1], elementwise=given(bias) * numel(out))


@rule("aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2")
def scaled_grouped_mm(self: Tensor, mat2: Tensor, bias: Tensor | None, out: Tensor) -> Cost:
    """A grouped product of scaled operands: a multiply-add for each (m,k,n), two scalings for each output."""
    return grouped_mm(self, mat2, bias, out) + Cost(elementwise=2 * numel(out))


@rule("aten._scaled_mm", "aten._scaled_mm_v2")
def scaled_mm(self: Tensor, bias: Tensor | None, out: Tensor) -> Cost:
    """(m,k) by (k,n) of scaled operands: a multiply-add for each (m,k,n), two scalings for each (m,n)."""
    return Cost(product=2 * numel(out) * self.shape[-1], elementwise=(2 + given(bias)) * numel(out))


@rule("aten._weight_int8pack_mm")
def int8_weight_mm(self: Tensor, out: Tensor) -> Cost:
    """(m,k) by (n,k) in 8 bits: a multiply-add for each (m,k,n), one scaling for each (m,n)."""
    return Cost(product=2 * numel(out) * self.shape[-1], elementwise=numel(out))


@rule("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu")
def int4_weight_mm(self: Tensor, out: Tensor) -> Cost:
    """(m,k) by (n,k) in 4 bits: a multiply-add for each (m,k,n), a scaling and a shift for each (n,k)."""
    return Cost(product=2 * numel(out) * self.shape[-1], elementwise=2 * self.shape[-1] * out.shape[-1])


@rule("aten._foreach_mm")
def foreach_mm(self: Sequence[Tensor], out: Sequence[Tensor]) -> Cost:
    """A list of (m,k) by (k,n): one multiply-add for each (m,k,n) of each pair."""
    return Cost(product=sp.Add(*(2 * numel(o) * a.shape[-1] for a, o in zip(self, out, strict=True))))


@rule("aten._trilinear")
def trilinear(i1: Tensor, i2: Tensor, out: Tensor) -> Cost:
    """(b,i), (o,i,j), (b,j): one multiply-add for each (b,o,i,j) over i, then one for each (b,o,j) over j."""
    i, j = i2.shape[-2:]
    return Cost(product=2 * numel(out) * i * j + 2 * numel(out) * j)


@rule("aten.linalg_solve_triangular")
def solve_triangular(self: Tensor, unitriangular: Any, out: Tensor) -> Cost:
    """(n,n) against n unknowns: (n-1)/2 multiply-adds an unknown, a division unless the diagonal is 1."""
    n = self.shape[-1]
    return Cost(elementwise=numel(out) * (n - 1 + int(not unitriangular)))


def taps(weight: Tensor) -> Expr:
    """Multiply-adds that one position of one leading channel of a kernel makes: the rest of its elements."""
    return sp.Mul(*weight.shape[1:])


def sweep(positions: Tensor, weight: Tensor) -> Expr:
    """A kernel at each position of each channel of `positions`, the kernel's first dimension."""
    return 2 * numel(positions) * taps(weight)


@rule("aten.convolution")
def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, transposed: Any, out: Tensor) -> Cost:
    """(c,c'/g,taps): a multiply-add for each output (transposed: input) position, c, c'/g and tap."""
    return Cost(
        product=sweep(input if transposed else out, weight),
        elementwise=given(bias) * numel(out),
    )


@rule("aten.convolution_backward")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, transposed: Any, output_mask: Sequence[Any]
) -> Cost:
    """The forward's multiply-adds for the input's gradient, and for the weight's; a sum for the bias's."""
    to_input, to_weight, to_bias = (int(bool(wanted)) for wanted in output_mask)
    operands = (grad_output, weight if to_input else None, input if to_weight else None)
    return Cost(
        product=(to_input + to_weight) * sweep(input if transposed else grad_output, weight),
        reduction=to_bias * numel(grad_output),
        read=moved(operands),
    )


@rule("aten.affine_grid_generator")
def affine_grid(theta: Tensor, out: Tensor) -> Cost:
    """(n,d,d+1) by the (d+1,) of each position: one multiply-add for each (n,position,d,d+1)."""
    return Cost(product=2 * numel(out) * theta.shape[-1])
