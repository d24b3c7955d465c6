"""Where a wrong formula is wrong: the places of its terms, counted by hand from the model files."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
from torch import nn

from symacct.api import derive
from symacct.claims.rounding import rounded_up
from symacct.expressions import evaluate, parse

LLAMA = "2Vd + d + L(2d + 2d·d_h(h + h_kv) + 3df)"  # the weights of examples/llama.py, no biases
PRODUCTS = "2BTVd + 4BLT²h·d_h + 4BLTd·d_h(h + h_kv) + 6BLTdf"


@cache
def ledger(name):
    return derive(name)


def check(target, claim, **options):
    return ledger(target).check(claim, **options)


def places(found, kind=""):
    return {term.module for term in found.terms if kind in ("", term.kind)}


def test_the_claims_that_are_made_wrong_here_are_right():
    assert check("llama", f"params = {LLAMA}").verdict == "equal"
    assert check("llama", f"forward = {PRODUCTS}").verdict == "equal"


# The width of the model for that of all heads: the places are those of heads, never an MLP or a norm.


@pytest.mark.parametrize(
    ("claim", "missing", "extra"),
    [
        (PRODUCTS.replace("4BLT²h·d_h", "4BLT²d"), {"blocks.*.attn"}, set()),
        (
            PRODUCTS.replace("4BLTd·d_h(h + h_kv)", "4BLTd² + 4BLTd·d_h·h_kv"),
            {"blocks.*.attn.q", "blocks.*.attn.o"},
            set(),
        ),
    ],
)
def test_a_width_put_for_heads_is_told_with_the_heads(claim, missing, extra):
    found = check("llama", f"forward = {claim}")
    assert (found.verdict, places(found, "missing"), places(found, "extra")) == ("refuted", missing, extra)
    assert all("the claim has" in term.meaning for term in found.terms)


def test_a_width_put_for_heads_beside_n_is_told_with_the_heads():
    found = check("llama", "C = 6ND + 12LBT²d")
    assert places(found, "missing") == {"blocks.*.attn"}
    # What N counts and no product uses: the norms, and the table that is only looked up.
    norms = {"blocks.*.norm1", "blocks.*.norm2", "norm"}
    assert places(found) == {"blocks.*.attn", "embed", *norms}


def test_a_square_of_the_width_belongs_to_matrices():
    found = check("llama", "params = 12 L d^2")
    square = parse("L*d**2")
    at = {term.module for term in found.terms if sp.cancel(term.term / square).is_number}
    attention = {f"blocks.*.attn.{name}" for name in "qkvo"}
    assert at == attention | {f"blocks.*.mlp.{name}" for name in ("gate", "up", "down")}


def test_a_bias_too_many_belongs_to_what_has_its_width():
    found = check("llama", f"params = {LLAMA} + 2Lf")
    assert places(found, "extra") == {"blocks.*.mlp.gate", "blocks.*.mlp.up"}  # down gives d values
    added = check("llama", f"forward = {PRODUCTS} + 2BLTf")
    assert places(added, "extra") == {"blocks.*.mlp.gate", "blocks.*.mlp.up"}
    heads = check("llama", f"params = {LLAMA} + 2L·h_kv·d_h")
    assert places(heads, "extra") == {"blocks.*.attn.k", "blocks.*.attn.v"}


def test_one_factor_on_several_terms_is_told_of_all_their_places():
    """Narayanan et al. 2021, equation 3: layers four times, logits three, 96BLTd²(1 + T/6d + V/16Ld)."""
    found = check("gpt2", "C = 96 B L T d^2 (1 + T/(6d) + V/(16 L d))", given=["f = 4*d"])
    attention = {"blocks.*.attn", "blocks.*.attn.qkv", "blocks.*.attn.proj"}
    assert places(found) == attention | {"blocks.*.mlp.up", "blocks.*.mlp.down"}
    assert {term.kind for term in found.terms} == {"wrong"}
    told = {(term.module, term.term) for term in found.terms}
    # one forward of each: 2·3d²·T, 2·d²·T, 2·4d²·T twice, 4·T²·d
    assert ("blocks.*.attn.qkv", parse("-6*B*L*T*d**2")) in told
    assert ("blocks.*.attn.proj", parse("-2*B*L*T*d**2")) in told
    assert ("blocks.*.mlp.up", parse("-8*B*L*T*d**2")) in told
    assert ("blocks.*.attn", parse("-4*B*L*T**2*d")) in told


def test_what_active_parameters_count_beyond_products_is_told():
    found = check("mixtral", "forward = 2·params.active·D + 4BLT²h·d_h")
    assert places(found) == {"blocks.*.norm1", "blocks.*.norm2", "norm", "embed"}


# Notes


@pytest.mark.parametrize(
    ("target", "claim", "note"),
    [
        ("llama", "params = 2Vd + d + L(2d + 4d² + 3df)", "equal where d = h*d_h and h_kv = h"),
        ("llama", "params = 2Vd + d + L(2d + 2d² + 2d·h_kv·d_h + 3df)", "equal where d = h*d_h,"),
        (
            "llama",
            "forward = 2Vd + 4LTh·d_h + 4Ld·d_h(h + h_kv) + 6Ldf",
            "the claim is of one token: B·T times as much is equal",
        ),
        ("gpt2", "forward = 24LTd² + 4LT²d + 2TVd", "one row of the batch"),
    ],
)
def test_what_would_make_it_right_is_noted(target, claim, note):
    found = check(target, claim, given=["f = 4d"] if target == "gpt2" else [])
    assert found.verdict == "refuted"
    assert any(note in told for told in found.notes)


def test_a_quotient_of_two_formulas_is_told_as_the_number_that_it_is():
    found = check("gpt2", "flops.step/flops.forward = 3")
    assert (found.verdict, found.derived, found.difference) == ("equal", 3, 0)


def test_what_n_counts_is_not_told_as_put_for_another_term():
    found = check("gpt2", "C = 6 N D + 6 L B T^2 d")
    assert found.verdict == "equal-under"
    assert found.names["N"] == "parameters used in products"  # as the condition says, not "all"
    assert not any("the claim has" in term.meaning for term in found.terms)
    assert ("wpe", parse("-6*B*T**2*d")) in {(term.module, term.term) for term in found.terms}
    # Asked for: whole attention, 12·B·L·T²·d, and all parameters; products use V·d + L(4d² + 2df) of them.
    idle = "T*d + L*(4*d + 3*d + d + d + f) + 2*d"
    whole = sp.expand(parse("6*B*L*T**2*d") - 6 * parse("B*T") * parse(idle))
    assert sp.expand(sum(term.term for term in found.terms) - whole) == 0


def test_a_term_that_is_taken_off_wrongly_has_a_place():
    found = check("gpt2", "forward = 2BTVd + 24BLTd² + 2BLT(T-1)d")
    (extra,) = [term for term in found.terms if term.kind == "extra"]
    assert (extra.module, extra.term) == ("blocks.*.attn", parse("2*B*L*T*d"))
    assert "subtracts" in extra.meaning
    assert places(found) == {"blocks.*.attn"}


# Another N


def test_the_note_on_another_n_speaks_of_another_number_in_the_stated_regime():
    found = check("gpt2", "C = 6ND", given=["B << T"])  # long inputs: attention leads, whatever N is
    assert found.verdict == "refuted"
    assert not any("leading order" in note for note in found.notes)
    # Of gpt2 all parameters are trainable and active, so no note may tell them apart.
    assert not any("with N = trainable" in n for n in check("gpt2", "C = 7ND").notes)
    active = check("mixtral", "C = 6ND")
    assert any("work on one token" in n for n in (*active.notes, *active.conditions))


# Rounded sizes

STEM = parse("294*B*w*ceiling(H/2)*ceiling(W/2)")  # 7 × 7 × 3 taps, 2 FLOPs each, stride 2


@pytest.mark.parametrize(
    ("claim", "off"),
    [
        ("flops.step = 3·flops.forward - 2·294·B·w·⌈H/2⌉·⌈W/2⌉", STEM),  # the images need no gradient
        ("flops.step = 3·flops.forward - 294·B·w·⌊(H+1)/2⌋·(⌊(W-1)/2⌋ + 1)", sp.Integer(0)),
        ("forward = flops.forward - 294·B·w·⌈H/2⌉·⌈W/2⌉ + 294·B·w·H·W", STEM - parse("294*B*w*H*W")),
        ("flops.step = 3·flops.forward - 294·B·w·(H - ⌊H/2⌋)·⌈W/2⌉", sp.Integer(0)),
        ("flops.step = 3·flops.forward - 588·B·w·(H - ⌊H/2⌋)·(W - ⌊W/2⌋)", STEM),
    ],
)
def test_roundings_of_two_spellings_cancel(claim, off):
    found = check("resnet50", claim)
    assert found.difference == off
    assert places(found) == ({"stem.0"} if off else set())
    assert len(found.terms) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "floor((H + 1)/2)",
        "floor((floor((H - 1)/2) + 1)/2) + 1",
        "ceiling(ceiling(H/2)/3)",
        "floor((5*H - 1)/3)*Mod(H + 2, 3)",
        "H - 2*floor(H/2) - ceiling((H - 3)/2)",
    ],
)
def test_the_form_of_rounded_sizes_has_the_same_values(text):
    given = parse(text, ["H"])
    one_form = rounded_up(given)
    assert [evaluate(one_form, {"H": n}) for n in range(1, 60)] == [
        evaluate(given, {"H": n}) for n in range(1, 60)
    ]


def test_equal_roundings_have_one_form():
    same = [
        "ceiling(H/2)",
        "floor((H + 1)/2)",
        "floor((H - 1)/2) + 1",
        "floor((H - 3)/2) + 2",
    ]
    assert {rounded_up(parse(text, ["H"])) for text in same} == {parse("ceiling(H/2)", ["H"])}


def test_nothing_is_supposed_where_the_claim_leaves_no_size():
    found = check("gpt2", "bytes.grads = 2 params")  # gradients in float32
    assert (found.verdict, found.conditions) == ("refuted", ())
    assert any("derived = 2 × claim" in note for note in found.notes)
    assert sp.expand(sum(term.term for term in found.terms) - found.difference) == 0


# A term that the model does not have belongs to what has its rarest size, or nowhere.


def test_a_head_at_each_patch_is_told_with_the_head():
    # examples/vit.py gives only the class token to the head, and nothing else knows of C classes.
    layers = "2BL(n^2+1)(4d^2+2df) + 4BL(n^2+1)^2 d"
    found = check("vit", f"forward = {layers} + 6Bn^2p^2d + 2BCd(n^2+1)")
    assert [(term.module, term.term) for term in found.terms] == [("head", parse("-2*B*C*d*n**2"))]


def test_a_product_that_no_place_could_make_is_told_with_none():
    # examples/bert.py ends in its pooler: the vocabulary is looked up, never multiplied with.
    found = check("bert", "forward = 24BLTd^2 + 4BLT^2 d + 2Bd^2 + 2BTVd", given=["f = 4*d"])
    (extra,) = found.terms
    assert (extra.module, extra.meaning) == ("", "no place of the model costs this")
    (batch,) = check("gpt2", "params = Vd + Td + L(4d^2 + 2df + 9d + f) + 2d + 2Bd").terms
    assert batch.meaning == "no place of the model costs this"  # no weight has a batch


def test_all_that_may_have_been_left_out_is_named():
    # 4·L·d of examples/gpt.py: the bias of up, or both norms (2d each), or qkv's bias (3d) and proj's (d).
    found = check("gpt2", "params = V d + T d + L (12 d^2 + 9 d) + 2 d", given=["f = 4*d"])
    lacking = {"mlp.up": 4, "ln1": 2, "ln2": 2, "attn.qkv": 3, "attn.proj": 1}
    told = {name: sum(t.term for t in found.terms if t.module == name) for name in places(found)}
    assert told == {f"blocks.*.{name}": many * parse("L*d") for name, many in lacking.items()}
    assert all(term.meaning.startswith("one of these") for term in found.terms)
    assert any("together with blocks.*.ln2: blocks.*.ln1.bias" in term.meaning for term in found.terms)
    (bias,) = check("gpt2", "params = V d + T d + L(4d^2 + 2df + 9d) + 2 d").terms
    assert (bias.module, bias.term) == ("blocks.*.mlp.up", parse("L*f"))


def test_places_of_one_term_that_fit_only_in_proportion_are_all_wrong(tmp_path):
    """Three products of 2·B·T·d·f each, taken for a step of 6 each: 4 too much at every one of them."""
    path = tmp_path / "gated.py"
    path.write_text(
        "import torch\nfrom torch import nn\ndims = {'B': 2, 'T': 3, 'd': 4, 'f': 5}\n"
        "class Gated(nn.Module):\n    def __init__(self, d, f):\n        super().__init__()\n"
        "        self.g, self.u, self.w = (nn.Linear(*s, bias=False) for s in ((d, f), (d, f), (f, d)))\n"
        "    def forward(self, x):\n        return self.w(torch.sigmoid(self.g(x)) * self.u(x))\n"
        "def model(d, f):\n    return Gated(d, f)\ndef inputs(B, T, d):\n    return torch.randn(B, T, d)\n"
    )
    found = derive(str(path)).check("forward = 18 B T d f")
    assert [(t.kind, t.module, str(t.term)) for t in found.terms] == [
        ("wrong", module, "-4*B*T*d*f") for module in "guw"
    ]
    assert not any("one of these" in term.meaning for term in found.terms)


class Attending(nn.Module):
    """Biases of 3·d, d, f and d elements, and a norm of d."""

    def __init__(self, V, L, d, h, f):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(L))
        self.mixing = nn.ModuleList(nn.MultiheadAttention(d, h, batch_first=True) for _ in range(L))
        self.up = nn.ModuleList(nn.Linear(d, f) for _ in range(L))
        self.down = nn.ModuleList(nn.Linear(f, d) for _ in range(L))
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, mixing, up, down in zip(self.norms, self.mixing, self.up, self.down, strict=True):
            y = norm(x)
            x = x + mixing(y, y, y, need_weights=False)[0]
            x = x + down(up(x).relu())
        return self.head(x)


def test_all_that_n_counts_too_much_is_told_though_one_bias_is_half_of_it():
    """6·(3d + d + d + d) of biases and norms: three of six are the bias of the projections, counted once, not twice."""
    made = derive(model=Attending, inputs=lambda B, T, V: torch.zeros(B, T, dtype=torch.long), dims={"B": 2, "T": 8, "V": 50, "L": 3, "d": 16, "h": 4, "f": 40})
    found = made.check("flops.step = 6*N*D")
    told = {term.module: term.term for term in found.terms if term.kind == "extra"}
    tokens = parse("B*L*T")
    one = -6 * tokens * parse("d")
    assert told == {"norms.*": one, "mixing.*": 3 * one, "mixing.*.out_proj": one, "down.*": one, "up.*": -6 * tokens * parse("f")}
