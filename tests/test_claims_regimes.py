"""The leading order is that of a regime that a field means: no inner width grows while all others stay.

By hand: k of Mixtral's E experts work on a token, 3·d·f each, and d·d_h beside them is no larger.
"""

from functools import cache

import pytest

from symacct import derive


@cache
def ledger(name):
    return derive(name)


@pytest.mark.parametrize(
    ("target", "claim"),
    [
        ("mixtral", "params.active = params.total"),  # k of E experts are not all
        ("llama", "params = 2 L d d_h (h + h_kv)"),  # no MLP, which has 3·d·f a layer
        ("gpt2", "forward = 4 B L T d f"),  # no projections: 8·d² where f = 4·d, a third of a layer
        ("gpt2", "params = 2 L d f"),
        ("vit", "forward = 6 B n^2 p^2 d"),  # the patches' embedding alone
        ("bert", "params = P d"),  # the position table alone
        ("deepseek-mla", "params = L d d_q"),
        ("mamba", "params = 2 L d N"),  # A_log alone
    ],
)
def test_one_inner_size_does_not_grow_alone(target, claim):
    assert ledger(target).check(claim).verdict == "refuted"


@pytest.mark.parametrize(
    ("target", "claim", "grown"),
    [
        ("gpt2", "forward = 4 B L T^2 d", "T"),  # attention rules long inputs
        ("llama", "forward = 4 B L T^2 h d_h", "T"),
        ("vit", "forward = 4 B L n^4 d", "n"),  # n² patches
        ("gpt2", "params = L (4 d^2 + 2 d f)", "d, f"),  # wide
        ("llama", "params = L (2 d d_h (h + h_kv) + 3 d f)", "d, d_h, f"),
        ("mixtral", "params.active = L (2 d d_h (h + h_kv) + 3 d f k)", "d, d_h, f"),
    ],
)
def test_regimes_that_are_meant(target, claim, grown):
    found = ledger(target).check(claim)
    assert found.verdict == "leading-order"
    assert found.conditions[-1] == f"{grown} → ∞, the other sizes fixed"


def test_of_a_model_in_letters_of_its_own_all_widths_grow_and_no_kernel(tmp_path):
    """MobileNet's separable block (Howard et al. 2017, section 3.1): k·k·m a pixel, then m·n."""
    path = tmp_path / "separable.py"
    path.write_text(
        "import torch\nfrom torch import nn\ndims = {'B': 2, 'm': 4, 'n': 6, 'k': 3, 's': 8}\n"
        "def model(m, n, k):\n"
        "    return nn.Sequential(nn.Conv2d(m, m, k, groups=m, bias=False), nn.Conv2d(m, n, 1, bias=False))\n"
        "def inputs(B, m, k, s):\n    return torch.randn(B, m, s + k - 1, s + k - 1)\n"
    )
    made = derive(str(path))
    assert made.check("forward = 2 B s^2 m (k^2 + n)").verdict == "equal"
    wide = made.check("forward = 2 B s^2 m n")
    assert (wide.verdict, wide.conditions) == ("leading-order", ("m, n → ∞, the other sizes fixed",))
    assert made.check("forward = 2 B s^2 m k^2").verdict == "refuted"  # as the kernel alone would have it


@pytest.mark.parametrize(
    ("target", "claim", "verdict"),
    [
        ("mixtral", "N = N_{active}", "refuted"),  # E experts are stored, k of them work
        ("mixtral", "6 N D = 6 N_{active} D", "refuted"),
        ("mixtral", "params.active = N", "refuted"),
        ("gpt2", "N = N_{matmul}", "leading-order"),  # norms, biases and the position table are in N alone
        ("gpt2", "N = N_{active}", "equal"),  # dense: all parameters work on every token
        ("gpt2", "N = L (4 d^2 + 2 d f) + V d", "equal-under"),  # those of products, written out
    ],
)
def test_a_choice_of_n_is_no_proof_that_two_counts_are_equal(target, claim, verdict):
    found = ledger(target).check(claim)
    assert found.verdict == verdict
    assert not any("with N =" in note for note in found.notes)
