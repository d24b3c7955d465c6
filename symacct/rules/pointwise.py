"""One value for each element: a row per family, its operations spelled out by the formula in its law."""

from __future__ import annotations

from typing import Any

from symacct.graph import Tensor
from symacct.rules.table import Cost, first, given, is_number, numel, rule

COUNTS: dict[str, tuple[int, int]] = {}  # op: (elementwise, transcendental) per element
GELU_ERF, GELU_TANH = (4, 1), (8, 1)
GELU_ERF_BACKWARD, GELU_TANH_BACKWARD = (9, 2), (17, 1)


def per_element(out: Any, elementwise: int, transcendental: int = 0) -> Cost:
    """So many operations of each kind for every element of the first output."""
    n = numel(first(out))
    return Cost(elementwise=elementwise * n, transcendental=transcendental * n)


def pointwise(law: str, elementwise: int, transcendental: int, names: str) -> None:
    """Declare ops that make the same number of operations for each element of the first output."""
    COUNTS.update(dict.fromkeys(names.split(), (elementwise, transcendental)))

    def price(out: Any) -> Cost:
        return per_element(out, elementwise, transcendental)

    price.__doc__ = law
    rule(*(f"aten.{name}" for name in names.split()))(price)


pointwise("One arithmetic operation per element.", 1, 0, "mul reciprocal deg2rad rad2deg")
pointwise(
    "One change of sign or rounding per element.",
    1,
    0,
    "abs neg sign sgn floor ceil round trunc copysign nextafter positive",
)
pointwise(
    "One comparison per element.",
    1,
    0,
    "maximum minimum fmax fmin clamp_min clamp_max relu threshold eq ne lt le gt ge isnan isinf isposinf "
    "isneginf signbit threshold_backward",
)
pointwise(
    "One logical operation per element.",
    1,
    0,
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not "
    "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__ __and__ __or__ "
    "__xor__",
)
pointwise("x - trunc(x): two operations.", 2, 0, "frac")
pointwise("floor(x / y): a division and a rounding.", 2, 0, "floor_divide")
pointwise("x - y * floor(x / y): four operations.", 4, 0, "remainder fmod")
pointwise(
    "x < 0, x = 0: two comparisons.",
    2,
    0,
    "heaviside hardtanh hardtanh_backward hardshrink hardshrink_backward softshrink_backward",
)
pointwise(
    "x > 0, else a multiple of x: a comparison and a multiplication.",
    2,
    0,
    "leaky_relu leaky_relu_backward _prelu_kernel rrelu_with_noise "
    "rrelu_with_noise_backward",
)
pointwise("Three comparisons per element.", 3, 0, "nan_to_num")
pointwise("|x| > c, then x - c or x + c: two comparisons and an addition.", 3, 0, "softshrink")
pointwise("x + w * (y - x): three operations.", 3, 0, "lerp")
pointwise("a * b' - a' * b: three operations.", 3, 0, "linalg_cross")
pointwise("One call of exp, a logarithm or a root.", 0, 1, "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt")
pointwise(
    "One call of a circular or hyperbolic function.",
    0,
    1,
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh angle sigmoid",
)
pointwise(
    "One call of a special function.",
    0,
    1,
    "erf erfc erfinv lgamma digamma polygamma mvlgamma igamma igammac gcd lcm i0 special_i0e special_i1 "
    "special_i1e special_erfcx special_log_ndtr special_ndtri special_zeta special_bessel_j0 "
    "special_bessel_j1",
)
pointwise("x * log(y): a call and a multiplication.", 1, 1, "xlogy")
pointwise("x * log1p(y): a call and a multiplication.", 1, 1, "special_xlog1py")
pointwise("-x * log(x): a call, a multiplication, a sign.", 2, 1, "special_entr")
pointwise("x * 2**y: a call and a multiplication.", 1, 1, "ldexp")
pointwise("sin(pi x) / (pi x): a call, a multiplication, a division.", 2, 1, "sinc")
pointwise("sqrt(x x + y y): three operations and a root.", 3, 1, "hypot")
pointwise("r cos(t) + i r sin(t): two calls and two multiplications.", 2, 2, "polar")
pointwise("log(x / (1 - x)): a call, a subtraction, a division.", 2, 1, "logit")
pointwise("g / (x (1 - x)): three operations.", 3, 0, "logit_backward")
pointwise("max(x, y) + log1p(exp(-|x - y|)): five operations and two calls.", 5, 2, "logaddexp logaddexp2")
pointwise("x * sigmoid(x): a call and a multiplication.", 1, 1, "silu")
pointwise("g s (1 + x (1 - s)), s = sigmoid(x): five operations and a call.", 5, 1, "silu_backward")
pointwise("g y (1 - y): three operations.", 3, 0, "sigmoid_backward")
pointwise("g (1 - y y): three operations.", 3, 0, "tanh_backward")
pointwise(
    "x > 0, else alpha (exp(x / alpha) - 1): a comparison, two scalings, a call.", 3, 1, "elu celu selu"
)
pointwise("log1p(exp(b x)) / b below a threshold: three operations and two calls.", 3, 2, "softplus")
pointwise(
    "g z / (z + 1), z = exp(b x), below a threshold: five operations and a call.", 5, 1, "softplus_backward"
)
pointwise("min(0, x) - log1p(exp(-|x|)): four operations and two calls.", 4, 2, "log_sigmoid_forward")
pointwise("g (m - s z / (1 + z)), z = exp(-|x|): eight operations and a call.", 8, 1, "log_sigmoid_backward")
pointwise("x tanh(log1p(exp(x))): a multiplication and three calls.", 1, 3, "mish")
pointwise("g (t + x s (1 - t t)), t and s from x: six operations and four calls.", 6, 4, "mish_backward")
pointwise("min(max(x + 3, 0), 6) / 6: four operations.", 4, 0, "hardsigmoid")
pointwise("g / 6 inside two bounds: three operations.", 3, 0, "hardsigmoid_backward")
pointwise("x min(max(x + 3, 0), 6) / 6: five operations.", 5, 0, "hardswish")
pointwise("g (x / 3 + 1/2) inside two bounds: five operations.", 5, 0, "hardswish_backward")
pointwise("a * sigmoid(b), the operand's two halves: a call and a multiplication.", 1, 1, "glu")
pointwise("1/2 - cos(2 pi i / n) / 2: three operations and a call.", 3, 1, "hann_window hamming_window")


@rule("aten.add", "aten.sub", "aten.rsub")
def add(alpha: Any, out: Tensor) -> Cost:
    """x + alpha * y: one addition per element, and one multiplication unless alpha is 1."""
    return per_element(out, 1 + scaled(alpha))


@rule("aten.addcmul", "aten.addcdiv")
def addcmul(value: Any, out: Tensor) -> Cost:
    """x + value * y * z: two operations per element, and a third unless the value is 1."""
    return per_element(out, 2 + scaled(value))


def scaled(factor: Any) -> int:
    """The one multiplication by a factor that was given and is not 1."""
    return int(factor is not None and not is_number(factor, 1))


@rule("aten.div")
def div(rounding_mode: Any, out: Tensor) -> Cost:
    """x / y: one division per element, and a rounding when asked for."""
    return per_element(out, 1 + given(rounding_mode))


@rule("aten.clamp")
def clamp(min: Any, max: Any, out: Tensor) -> Cost:
    """min(max(x, lo), hi): one comparison per element for each bound that is given."""
    return per_element(out, given(min, max))


def power_counts(exponent: Any) -> tuple[int, int]:
    """Operations of x ** exponent: one product for 2, two for 3, a division for -1, else one call."""
    multiplications = {2: 1, 3: 2, -1: 1, -2: 2, 1: 0}
    return next(((n, 0) for power, n in multiplications.items() if is_number(exponent, power)), (0, 1))


@rule("aten.pow")
def pow(exponent: Any, out: Tensor) -> Cost:
    """x ** y: multiplications for the exponents 2, 3, -1 and -2, else one call per element."""
    return per_element(out, *power_counts(exponent))


@rule("aten.gelu")
def gelu(approximate: Any, out: Tensor) -> Cost:
    """x (1 + erf(x / sqrt 2)) / 2: four operations and a call; eight and a call in the tanh form."""
    return per_element(out, *(GELU_TANH if approximate == "tanh" else GELU_ERF))


@rule("aten.gelu_backward")
def gelu_backward(approximate: Any, out: Tensor) -> Cost:
    """g (cdf(x) + x pdf(x)): nine operations, erf and exp; seventeen and a call in the tanh form."""
    return per_element(out, *(GELU_TANH_BACKWARD if approximate == "tanh" else GELU_ERF_BACKWARD))


@rule("aten.elu_backward")
def elu_backward(is_result: Any, out: Tensor) -> Cost:
    """g alpha exp(x) where x < 0: four operations, and a call unless the forward's result was kept."""
    return per_element(out, 4, 0 if is_result else 1)


@rule("aten.glu_backward")
def glu_backward(grad_output: Tensor) -> Cost:
    """g s and g a s (1 - s), s = sigmoid(b): five operations and a call for each element of g."""
    return per_element(grad_output, 5, 1)


@rule("aten._prelu_kernel_backward")
def prelu_backward(grad_output: Tensor) -> Cost:
    """g w or g, and g x or 0: one comparison and two multiplications for each element of g."""
    return per_element(grad_output, 3)


@rule("aten.isin")
def isin(elements: Any, test_elements: Any) -> Cost:
    """One comparison for each element and each element that it is looked for among."""
    sides = [side for side in (elements, test_elements) if isinstance(side, Tensor)]
    count = numel(sides[0]) * (numel(sides[1]) if len(sides) == 2 else 1)
    return Cost(elementwise=count)
