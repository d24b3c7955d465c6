"""Recurrent layers and cells. G gates: four in an LSTM, three in a GRU.

A layer's kernels compute every gate of every step: its two matrices, (G·h,i) and (G·h,h), meet every row of
every sequence once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import Cost, Expr, given, numel, rule

LSTM = (8, 5)  # per hidden unit: four sums of two products, f c + i g, o tanh(c); three sigmoids, two tanh
GRU = (9, 3)  # per hidden unit: three sums, r n, (1 - z) n + z h; two sigmoids, one tanh
CELLS = {0: (2, 0), 1: (1, 1), 2: LSTM, 3: GRU}  # ATen's modes: relu, tanh, LSTM, GRU
BIASES = {0: 2, 1: 2, 2: 8, 3: 6}
BACKWARD = {0: 1, 1: 3, 2: 21, 3: 16}


def steps(input: Tensor) -> Expr:
    """Rows of all sequences: every dimension but the last."""
    return sp.Mul(*input.shape[:-1])


def layer(rows: Expr, matrices: Sequence[Tensor], hidden: Expr, mode: int, biased: bool) -> Cost:
    """Every matrix by every row, and a cell for each row and hidden unit."""
    elementwise, calls = CELLS[mode]
    units = rows * hidden
    return Cost(
        product=2 * rows * sp.Add(*map(numel, matrices)),
        elementwise=(elementwise + BIASES[mode] * biased) * units,
        transcendental=calls * units,
    )


def layer_backward(rows: Expr, matrices: Sequence[Tensor], hidden: Expr, mode: int, biased: bool) -> Cost:
    """Every matrix by every row twice: for the gradient of the row and for that of the matrix."""
    units = rows * hidden
    return Cost(
        product=4 * rows * sp.Add(*map(numel, matrices)),
        elementwise=BACKWARD[mode] * units,
        reduction=BIASES[mode] * biased * units,
    )


@rule("aten.mkldnn_rnn_layer")
def mkldnn_layer(
    input: Tensor, weight0: Tensor, weight1: Tensor, mode: Any, hidden_size: Any, has_biases: Any
) -> Cost:
    """(G·h,i) and (G·h,h) by every row of every sequence, and a cell for each row and hidden unit."""
    return layer(steps(input), (weight0, weight1), hidden_size, int(mode), bool(has_biases))


@rule("aten.mkldnn_rnn_layer_backward")
def mkldnn_layer_backward(
    input: Tensor, weight1: Tensor, weight2: Tensor, mode: Any, hidden_size: Any, has_biases: Any
) -> Cost:
    """Twice the forward's products: for the rows' gradients and for the matrices'."""
    return layer_backward(steps(input), (weight1, weight2), hidden_size, int(mode), bool(has_biases))


def matrices(weight: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The matrices among a stack's parameters."""
    return tuple(w for w in weight if len(w.shape) == 2)


@rule("aten._cudnn_rnn")
def cudnn_stack(
    input: Tensor, weight: Any, hidden_size: Any, mode: Any, num_layers: Any, bidirectional: Any
) -> Cost:
    """Every matrix of the stack by every row; a cell for each row, layer, direction and hidden unit."""
    cells = hidden_size * num_layers * (2 if bidirectional else 1)
    return layer(steps(input), matrices(weight), cells, int(mode), len(matrices(weight)) < len(weight))


@rule("aten._cudnn_rnn_backward")
def cudnn_stack_backward(
    input: Tensor, weight: Any, hidden_size: Any, mode: Any, num_layers: Any, bidirectional: Any
) -> Cost:
    """Twice the forward's products: for the rows' gradients and for the matrices'."""
    cells = hidden_size * num_layers * (2 if bidirectional else 1)
    return layer_backward(
        steps(input), matrices(weight), cells, int(mode), len(matrices(weight)) < len(weight)
    )


@rule("aten._thnn_fused_lstm_cell")
def lstm_cell(cx: Tensor, input_bias: Tensor | None) -> Cost:
    """Gates from two products: sums, 3 sigmoids, 2 tanh, f c + i g, o tanh(c) for each hidden unit."""
    elementwise, calls = LSTM
    return Cost(
        elementwise=(elementwise + 8 * given(input_bias)) * numel(cx),
        transcendental=calls * numel(cx),
    )


@rule("aten._thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(cx: Tensor, has_bias: Any) -> Cost:
    """Gradients of four gates and the cell: 21 operations and a tanh for each hidden unit; biases by sums."""
    return Cost(
        elementwise=BACKWARD[2] * numel(cx),
        reduction=4 * bool(has_bias) * numel(cx),
        transcendental=numel(cx),
    )


@rule("aten._thnn_fused_gru_cell")
def gru_cell(hx: Tensor, input_bias: Tensor | None) -> Cost:
    """Gates from two products: sums, two sigmoids, a tanh, r n and (1 - z) n + z h for each hidden unit."""
    elementwise, calls = GRU
    return Cost(
        elementwise=(elementwise + 6 * given(input_bias)) * numel(hx),
        transcendental=calls * numel(hx),
    )


@rule("aten._thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy: Tensor, has_bias: Any) -> Cost:
    """Gradients of three gates: 16 operations for each hidden unit; sums for the biases."""
    return Cost(
        elementwise=BACKWARD[3] * numel(grad_hy),
        reduction=6 * bool(has_bias) * numel(grad_hy),
    )
