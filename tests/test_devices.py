"""The table of devices against the figures its sources publish, and cards of the user's own."""

from __future__ import annotations

from fractions import Fraction

import pytest

from symacct.amounts import amount, whole
from symacct.devices import DTYPES, card, device, precision_of, table
from symacct.errors import DeviceError, SizeError

# Dense TFLOP/s in fp32, tf32, fp16, bf16, fp8, int8; GB; GB/s; GB/s of all links. Datasheets of the vendors,
# Lightning's
# throughput.py, torchtitan, llm.c's mfu.h, Google Cloud's pages of TPUs and the scaling book, as `source`
# says in the table.
PUBLISHED = """
A100-40GB-SXM   19.5   156    312     312     -       624     40   1555  600
A100-80GB-SXM   19.5   156    312     312     -       624     80   2039  600
A100-80GB-PCIe  19.5   156    312     312     -       624     80   1935  -
H100-SXM        67     494.5  989.5   989.5   1979    1979    80   3350  900
H100-PCIe       51.2   378    756     756     1513    1513    80   2000  600
H100-NVL        60     417.5  835.5   835.5   1670.5  1670.5  94   3900  600
H200-SXM        67     494.5  989.5   989.5   1979    1979    141  4800  900
B200-SXM        80     1125   2250    2250    4500    4500    180  8000  1800
GB200-per-GPU   80     1250   2500    2500    5000    5000    186  8000  1800
MI300X          163.4  653.7  1307.4  1307.4  2614.9  2614.9  192  5300  896
TPU-v4          -      -      -       275     -       275     32   1228  -
TPU-v5e         -      -      -       197     -       393     16   819   400
TPU-v5p         -      -      -       459     -       918     95   2765  1200
TPU-v6e         -      -      -       918     918     1836    32   1638  800
RTX-4090        82.6   82.6   165.2   165.2   330.3   660.6   24   1008  -
L4              30.3   60     121     121     242.5   242.5   24   300   -
A10             31.2   62.5   125     125     -       250     24   600   -
T4              8.1    -      65      -       -       130     16   320   -
V100-SXM2       15.7   -      125     -       -       -       16   900   300
""".strip().splitlines()


@pytest.mark.parametrize("row", [row.split() for row in PUBLISHED], ids=lambda row: row[0])
def test_published_figures(row):
    name, *figures = row
    found = device(name)
    tera = [None if f == "-" else int(Fraction(f) * 10**12) for f in figures[:6]]
    giga = [None if f == "-" else int(f) * 10**9 for f in figures[6:]]
    assert [found.peaks.get(dtype) for dtype in DTYPES] == tera
    assert [found.memory, found.bandwidth, found.link] == giga
    assert all(type(peak) is int for peak in found.peaks.values())
    assert found.source


def test_the_table_has_no_other_rows():
    assert list(table()) == [row.split()[0] for row in PUBLISHED]


def test_ridge_points():
    """kipply (A100), CS336 lecture 10 (H100), the scaling book (TPU v5e), each with the figures that it
    rounds to.
    """
    assert card("peak=312e12,bandwidth=1.5e12").ridge("bf16") == 208
    assert float(card("bf16=989e12,bandwidth=3.35e12").ridge("bf16")) == pytest.approx(295.22, abs=0.005)
    assert float(card("peak=1.97e14,bandwidth=8.1e11").ridge("bf16")) == pytest.approx(243.2, abs=0.01)
    assert device("h100").ridge("bf16") == Fraction(9895, 10) / Fraction(335, 100)  # the table's own figures


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("h100", "H100-SXM"), ("H100 SXM", "H100-SXM"), ("a100", "A100-80GB-SXM"),
        ("a100_40gb", "A100-40GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"), ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H200", "H200-SXM"),
        ("v5p", "TPU-v5p"), ("4090", "RTX-4090"), ("Tesla T4", "T4"), ("tpu-v4", "TPU-v4"),
        ("mi300x", "MI300X"),
    ],
)  # fmt: skip
def test_common_names(word, name):
    assert device(word).name == name
    assert device(word).asked == word


def test_no_name_means_two_devices():
    import tomllib
    from importlib import resources

    rows = tomllib.loads((resources.files("symacct") / "devices.toml").read_text("utf-8"))["device"]
    words = [word.lower() for row in rows for word in {row["name"].lower(), *row.get("aliases", ())}]
    assert len(words) == len(set(words))


def test_an_unknown_name_has_near_ones():
    with pytest.raises(DeviceError, match="no card 'h1000'; did you mean H100-SXM"):
        card("h1000")
    with pytest.raises(DeviceError, match=r"known: A100-40GB-SXM, .*V100-SXM2"):
        card("abacus")


def test_a_dtype_that_a_device_lacks():
    with pytest.raises(
        DeviceError, match="A100-80GB-SXM has no peak for fp8, it has fp32, tf32, fp16, bf16, int8"
    ):
        device("a100").peak("fp8")
    with pytest.raises(DeviceError, match="no peak for bf16, it has fp32, fp16"):
        device("v100").peak("bf16")
    with pytest.raises(DeviceError, match="no figure for link"):
        device("l4").needed("link")


def test_a_card_in_a_line():
    found = card("peak=312e12, memory=80e9, bandwidth=1.5e12")
    assert (found.peak("bf16"), found.peak("fp8"), found.memory, found.bandwidth) == (
        312 * 10**12, 312 * 10**12, 80 * 10**9, 15 * 10**11,
    )  # fmt: skip
    assert card("bf16=9.895e14,memory=80e9").peaks == {"bf16": 989_500_000_000_000}


def test_a_card_in_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "Mine"\npeaks = { bf16 = 123.4e12, fp32 = 1_000 }\nmemory = 48_000_000_000\n'
        'bandwidth = 9.6e11\nsource = "the box"\n'
    )
    found = card(str(file))
    assert (found.name, found.peak("bf16"), found.peak("fp32"), found.memory) == (
        "Mine",
        123_400_000_000_000,
        1000,
        48 * 10**9,
    )
    assert (found.bandwidth, found.link, found.source) == (960 * 10**9, None, "the box")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("peak=-3", "peak = -3: it must be more than 0"), ("peak=0,memory=1", "must be more than 0"),
        ("peek=3", "did you mean peak?"), ("peak=fast", "write a number"), ("peak=1.5", "whole number"),
        ("peak=3,peak=4", "gives peak twice"), ("peak=3,bf16=4", "not both"),
        ("memory", "no card 'memory'"),
        ("name=x", "no figures"), ("peak=", "write figures by name"),
        ("nowhere.toml", "cannot read the card"),
    ],
)  # fmt: skip
def test_cards_that_cannot_be(text, says):
    with pytest.raises(DeviceError) as error:
        card(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["memory = [1]", "memory = nan", "peaks = 3", "peaks = { fp7 = 1 }", "= 3", "memory = true"]
)
def test_files_that_cannot_be(tmp_path, text):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(DeviceError):
        card(str(file))


def test_amounts_are_exact():
    assert amount("0.1", "x") == Fraction(1, 10)
    assert amount("15e12", "x") == 15 * 10**12
    assert amount("9.895e14", "x") == 989_500_000_000_000
    assert whole("80e9", "x") == 80 * 10**9
    for text in ("1e999999999", "nan", "0x10", "1/3", "", "1e5e5", "٣", "1" * 100):
        with pytest.raises(SizeError, match="--tokens"):
            amount(text, "--tokens")
    with pytest.raises(SizeError, match="at most 1"):
        amount("1.01", "--mfu", most=1)


def test_the_peak_of_a_dtype_of_torch():
    assert [precision_of(d) for d in ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8")] == [
        "fp32", "bf16", "fp16", "fp8", "int8",
    ]  # fmt: skip
