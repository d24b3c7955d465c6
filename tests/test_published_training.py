"""What papers print of training a language model, judged under their authors' conventions."""

from __future__ import annotations

import published_language_models as gpt
import published_variants as other
import pytest
import sympy as sp
from published_language_models import decoder, forward_of, number, parameters_of, published, same, under

from symacct.symbols import symbol

B, T, V, L, d, h, f = map(symbol, "BTVLdhf")
MEGATRON = {"s": "T", "h": "d", "l": "L", "v": "V", "a": "h"}


def kaplan():
    """Heads of their own width, no biases; the norms have no parameters, so that N has none either."""
    return under(decoder(bias=False, norm=gpt.BARE, fused=True, wide=True, mode="forward"), "kaplan")


# Kaplan et al. 2020 (arXiv 2001.08361), table 1: parameters and forward FLOPs a token, row by row.


@pytest.mark.parametrize(
    ("modules", "parameters", "flops"),
    [
        (("blocks.*.attn.qkv",), "n_layer d_model (3 d_attn)", "2 n_layer d_model (3 d_attn)"),
        (("blocks.*.attn.core",), "0", "2 n_layer n_ctx d_attn"),  # "Mask": the causal half of two products
        (("blocks.*.attn.proj",), "n_layer d_attn d_model", "2 n_layer d_attn d_model"),
        (("blocks.*.mlp",), "n_layer (2 d_model d_ff)", "2 n_layer (2 d_model d_ff)"),
        (("head",), "0", "2 d_model n_vocab"),
        (
            ("wte", "wpe"),
            "(n_vocab + n_ctx) d_model",
            "0",
        ),  # "Embed"; the 4·d_model printed for it is no product
    ],
)
def test_kaplans_table_row_by_row(modules, parameters, flops):
    ledger = kaplan()
    assert same(parameters_of(ledger, *modules), published(ledger, parameters, d_attn="h*d_h"))
    assert same(forward_of(ledger, *modules), B * T * published(ledger, flops, d_attn="h*d_h"))


def test_kaplans_totals():
    ledger, attn = kaplan(), {"d_attn": "h*d_h"}
    assert ledger.check("N = 2 d_model n_layer (2 d_attn + d_ff)", map=attn).verdict == "equal"
    standard = ["f = 4*d", "d = h*d_h"]
    assert ledger.check("N = 12 n_layer d_model^2", standard).verdict == "equal-under"
    forward = "forward / D = 2N + 2 n_layer n_ctx d_attn"
    assert ledger.check(f"{forward} + 2 d_model n_vocab", map=attn).verdict == "equal"
    # Table 1 leaves the de-embedding out of its total, which is right where N holds the head as well.
    found = ledger.check(forward, map=attn)
    assert (found.verdict, found.conditions[0][:31]) == ("equal-under", "N = parameters used in products")


def test_kaplans_numbers_at_the_shape_of_gpt2_xl():
    ledger = kaplan()
    sizes = {"V": 50257, "L": 48, "d": 1600, "h": 25, "d_h": 64, "f": 6400}
    body = sp.expand(forward_of(ledger, "blocks") / (B * T))
    assert number(parameters_of(ledger, "blocks"), **sizes) == 1_474_560_000
    assert number(body, T=1024, **sizes) == 3_106_406_400


# Hoffmann et al. 2022 (Chinchilla), appendix F: forward FLOPs of a sequence, and table A4. Its
# figures leave out the embedding and the logits that the text counts (karpathy/nanoGPT,
# scaling_laws.ipynb prints the same integers); both leave out what Transformer-XL's relative keys
# cost, whose weights N counts.

TEXT = {
    "wte": "2 seq_len V d",
    "blocks.*.qkv": "L (2*3 seq_len d (k H))",
    "blocks.*.scores.near": "L (2 seq_len seq_len (k H))",
    "blocks.*": "L (3 H seq_len seq_len)",
    "blocks.*.mix": "L (2 seq_len seq_len (k H))",
    "blocks.*.proj": "L (2 seq_len (k H) d)",
    "blocks.*.mlp": "L (2 seq_len (d f + d f))",
    "head": "2 seq_len d V",
}
RATIOS = {
    "73M": (10, 640, 10, 64, 1.025036),
    "305M": (20, 1024, 16, 64, 1.100817),
    "552M": (24, 1280, 10, 128, 1.082919),
    "1.1B": (26, 1792, 14, 128, 1.044094),
    "1.6B": (28, 2048, 16, 128, 1.032902),
}


def chinchilla():
    return under(other.chinchilla(), "chinchilla")


@pytest.mark.parametrize("module", TEXT)
def test_chinchillas_appendix_line_by_line(module):
    ledger = chinchilla()
    found = ledger.by("module", phases=("forward",))
    inside = [v for (name,), v in found.items() if name == module or ("mlp" in module and "mlp" in name)]
    assert same(sp.Add(*inside), B * published(ledger, TEXT[module], H="h", k="k"))


def table_a4(ledger):
    """(F of a sequence, N) as table A4 has them."""
    lines = [module for module in TEXT if module.startswith("blocks")]
    spared = forward_of(ledger, "blocks.*.relative", "blocks.*.scores.far")
    forward = forward_of(ledger, "blocks") - spared
    assert same(forward, B * sp.Add(*(published(ledger, TEXT[line], H="h", k="k") for line in lines)))
    return 3 * forward.xreplace({B: sp.Integer(1)}), ledger.formulas["params.total"]


@pytest.mark.parametrize("name", RATIOS)
def test_chinchillas_table_a4(name):
    layers, d_model, heads, width, ratio = RATIOS[name]
    sizes = {"L": layers, "d": d_model, "f": 4 * d_model, "h": heads, "k": width, "V": 32_000}
    flops, parameters = (number(part, **sizes, T=2048) for part in table_a4(chinchilla()))
    if name == "73M":
        assert (flops, parameters) == (929_877_196_800, 73_825_280)
    assert flops / (6 * parameters * 2048) == pytest.approx(ratio, abs=5e-7)


def test_chinchillas_n_has_a_fifth_square_matrix():
    claim = "N = L(5d^2 + 2 d f + 11 d + f) + V d + 2d"
    assert chinchilla().check(claim, ["d = h*k"]).verdict == "equal-under"


# Chowdhery et al. 2022 (PaLM), appendix B.


def test_palms_flops_a_token():
    ledger = under(other.palm(), "palm")
    found = ledger.check("flops.step / D = 6N + 12LHQT", map={"H": "h"})
    assert found.verdict == "equal-under"  # the norms' scales are no part of a product
    assert found.conditions[0].startswith("N = parameters used in products")
    sizes = {"V": 256_000, "L": 118, "d": 18_432, "h": 48, "Q": 256, "f": 4 * 18_432}
    assert number(ledger.formulas["params.total"], **sizes) / 1e9 == pytest.approx(540.35, abs=0.01)
    token = number(ledger.formulas["flops.step"], **sizes, B=1, T=2048) / 2048
    assert 238_300 * token / (6144 * 275e12) == pytest.approx(
        0.4623, abs=5e-4
    )  # table 3: 46.2 % with attention


def test_palms_formula_on_a_gpt():
    assert under(decoder(bias=False, norm=gpt.norm(bias=False)), "palm").check(
        "C / D = 6 N_matmul + 12 L H Q T"
    ).verdict == "equal"  # fmt: skip


# Narayanan et al. 2021 (Megatron-LM), equations 2 and 3. Eq. 3 is of training with full recomputation.
# There a dropout ends each block, so that torch repeats the block whole; without one it stops before the
# last product.

EQ3 = r"F = 96 B s l h^{2}\left(1 + \frac{s}{6h} + \frac{V}{16 l h}\right)".replace("F", "flops.hardware")


def test_narayanans_parameters_leave_out_the_last_norm():
    found = decoder(dropout=0.1, kept="block").check(
        "P = 12lh^2(1 + 13/(12h) + (V+s)/(12lh))".replace("P", "params"), map=MEGATRON
    )
    assert (found.verdict, found.difference) == ("leading-order", 2 * d)
    assert {term.module for term in found.terms} == {"ln_f"}


@pytest.mark.parametrize(
    ("layers", "width", "expected"),
    [(24, 2304, 1_652_226_048), (80, 12_288, 145_622_237_184), (128, 25_600, 1_008_038_707_200)],
)
def test_narayanans_table_of_parameters(layers, width, expected):
    formula = decoder(dropout=0.1, kept="block").formulas["params.total"]
    assert number(formula, L=layers, d=width, V=51_200, T=2048) - 2 * width == expected


def test_narayanans_flops_of_an_iteration():
    ledger = under(decoder(dropout=0.1, kept="block"), "megatron")
    assert ledger.check(EQ3, map=MEGATRON).verdict == "equal"
    hardware = ledger.formulas["flops.hardware"]
    assert number(hardware, B=512, T=2048, V=51_200, L=24, d=2304) == 15_466_830_067_924_992
    assert number(hardware, B=2304, T=2048, V=51_200, L=80, d=12_288) == 5_641_682_123_048_878_080


def test_a_checkpoint_that_stops_early_repeats_all_but_the_last_product():
    found = under(decoder(kept="block"), "megatron").check(EQ3, map=MEGATRON)
    assert found.verdict == "refuted"
    (term,) = found.terms
    assert (term.term, term.module) == (-8 * B * L * T * d**2, "blocks.*.mlp.down")
    assert "the checkpoint stops before it" in term.meaning


# Korthikanti et al. 2022, equations 1, 7 and 8. Selective recomputation repeats the attention core.

EQ7 = "C = 72 B L s h^2 (1 + s/6h + v/12hL)"
EQ8 = "flops.hardware = 72 B L s h^2 (1 + s/3h + v/12hL)"
LARGE = {"B": 64, "T": 2048, "V": 51_200, "L": 96, "d": 12_288}


def selective():
    return under(decoder(dropout=0.1, kept="core", early_stop=False), "megatron")


def test_a_blocks_inventory_tensor_by_tensor():
    """Section 4.1: what each operation of a block keeps, two bytes an element, one for a mask."""
    kept = gpt.kept_of(other.korthikanti_block(False))
    s, b, a, width = map(symbol, "sbah")
    sbh, squares = s * b * width, a * s**2 * b
    norms = 8 * s * b  # mean and deviation in float32, which the paper leaves out
    attention = {
        "ln1": 2 * sbh + norms,  # the shared input of query, key and value
        "attn.core.scores": 4 * sbh,  # query and key
        "attn.core": 2 * squares,  # the softmax's output
        "attn.core.drop": squares + 2 * squares,  # its mask, its output
        "attn.core.mix": 2 * sbh,  # the values
        "attn": 2 * sbh,  # the input of the linear projection
        "drop1": sbh,  # a mask
    }
    assert {name: kept[name] for name in attention} == attention
    assert same(sp.Add(*attention.values()), 11 * sbh + 5 * squares + norms)
    mlp = {"ln2": 2 * sbh + norms, "mlp.up": 8 * sbh, "mlp.act": 8 * sbh, "drop2": sbh}
    assert {name: kept[name] for name in mlp} == mlp
    assert same(sp.Add(*mlp.values()), 19 * sbh + norms)
    norm_inputs = {name: size for name, size in kept.items() if name not in attention | mlp}
    assert same(sp.Add(*norm_inputs.values()), 4 * sbh)


def test_korthikantis_equation_1_up_to_the_norms_statistics():
    found = other.korthikanti_block(False).check(
        "bytes.saved = s b h (34 + 5 a s / h)", map={n: n for n in "sbah"}
    )
    assert found.verdict == "leading-order"
    assert {(term.kind, term.module) for term in found.terms} == {("missing", "ln1"), ("missing", "ln2")}
    b, s = symbol("b"), symbol("s")
    assert found.difference == 16 * b * s


def test_korthikantis_model_flops():
    ledger = selective()
    assert ledger.check(EQ7, map=MEGATRON).verdict == "equal"
    assert number(ledger.formulas["flops.step"], **LARGE) == 141_091_531_099_471_872


def test_korthikantis_hardware_flops_as_printed_count_one_forward_three_times():
    """Erratum: the text repeats the attention core once, 4BLs²h; equation 8 adds three times as much."""
    ledger = selective()
    found = ledger.check(EQ8, map=MEGATRON)
    assert (found.verdict, found.difference) == ("refuted", -8 * B * L * T**2 * d)
    assert {term.module for term in found.terms} == {"blocks.*.attn.core.scores", "blocks.*.attn.core.mix"}
    assert number(found.read_as, **LARGE) == 144_891_443_285_065_728  # what Table 5's utilisation follows
    described = "flops.hardware = 72 B L s h^2 (1 + s/6h + s/18h + v/12hL)"
    assert ledger.check(described, map=MEGATRON).verdict == "equal"


@pytest.mark.parametrize(
    ("layers", "width", "heads", "saved", "printed", "true"),
    [(96, 12_288, 96, 0.702, 0.02693, 0.008977), (105, 20_480, 128, 0.653, 0.01636, 0.005454)],
)
def test_what_selective_recomputation_saves_and_costs(layers, width, heads, saved, printed, true):
    """Section 5: 70 % and 65 % of the memory for 2.7 % and 1.6 % of the FLOPs, as printed."""
    sizes = {"s": 2048, "b": 1, "h": width, "a": heads}
    whole, core = (
        number(other.korthikanti_block(again).formulas["bytes.saved"], **sizes) for again in (False, True)
    )
    assert (whole - core) / whole == pytest.approx(saved, abs=5e-4)
    at = {"B": 1, "T": 2048, "V": 51_200, "L": layers, "d": width}
    ledger = selective()
    model, hardware = (number(ledger.formulas[key], **at) for key in ("flops.step", "flops.hardware"))
    assert hardware / model - 1 == pytest.approx(true, abs=5e-6)
    wrong = number(ledger.check(EQ8, map=MEGATRON).read_as, **at)
    assert wrong / model - 1 == pytest.approx(printed, abs=5e-6)
