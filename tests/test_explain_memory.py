"""What `explain` says of memory: when tensors die, copies that can be avoided, and what is alive at the peak.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import sympy as sp

import symacct
from symacct.cli import main
from symacct.copying import copies
from symacct.report.alive import Peak
from symacct.report.answer import answer
from symacct.symbols import symbol

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

AT = "B=8,T=1024,V=50257,L=12,d=768,h=12,f=3072"


def shown(capsys, *words):
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


# Copies: which rule, and bytes counted by hand


class Attention(nn.Module):
    """Grouped heads, repeated for each query head, in one of two spellings; then a layout copy on the way
    out."""

    def __init__(self, d, h, spelling):
        super().__init__()
        self.h, self.spelling = h, spelling
        self.q, self.kv, self.o = (
            nn.Linear(d, d, bias=False),
            nn.Linear(d, d // 2, bias=False),
            nn.Linear(d, d, bias=False),
        )

    def forward(self, x):
        B, T, d = x.shape
        heads = lambda t, n: t.view(B, T, n, d // self.h).transpose(1, 2)  # noqa: E731
        q, kv = heads(self.q(x), self.h), heads(self.kv(x), self.h // 2)
        if self.spelling == "repeat_interleave":
            kv = kv.repeat_interleave(2, dim=1)
        else:
            kv = kv[:, :, None].expand(B, self.h // 2, 2, T, d // self.h).reshape(B, self.h, T, d // self.h)
        a = (q @ kv.transpose(2, 3)).softmax(-1)
        return self.o((a @ kv).transpose(1, 2).reshape(B, T, d))


@pytest.mark.parametrize("spelling", ["repeat_interleave", "expand"])
def test_expanded_key_heads_and_the_layout_of_the_output_are_copies(spelling):
    ledger = symacct.derive(
        model=lambda d, h: Attention(d, h, spelling),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        dims={"B": 2, "T": 5, "d": 16, "h": 4},
        mode="forward",
    )
    found = {(c.rule, "shared heads" in c.advice): c for c in copies(ledger)}
    B, T, d = map(symbol, "BTd")
    repeated = found["repeated", True]
    assert sp.expand(repeated.entry.written - 4 * B * T * d) == 0
    assert ("layout", False) in found
    assert all(sp.expand(c.moved - 8 * B * T * d) == 0 for c in found.values() if c.rule == "layout")


class Casting(nn.Module):
    def forward(self, x):
        back = x.to(torch.float32).view(-1).to(x.dtype)
        needed = x.to(torch.float32).square().to(x.dtype)
        return back.clone() + needed.view(-1)


def test_a_round_trip_of_casts_and_a_clone_are_copies_and_a_cast_for_arithmetic_is_none():
    ledger = symacct.derive(
        model=lambda: Casting(),
        inputs=lambda B: torch.randn(B, 3, dtype=torch.bfloat16),
        dims={"B": 4},
        mode="forward",
    )
    found = copies(ledger)
    assert [c.rule for c in found] == ["round trip", "round trip", "clone"]
    assert [c.moved for c in found[:2]] == [(4 + 2) * 3 * symbol("B")] * 2  # there and back
    assert "only casts back" in found[0].advice and "bfloat16 to float32" in found[1].advice


class Dropping(torch.nn.Module):
    """Casts that change values, a cast whose result is written into before it is cast back, and a plain clone."""

    def __init__(self, d):
        super().__init__()
        self.a = torch.nn.Linear(d, d)

    def forward(self, x):
        y = self.a(x)
        whole, signs = y.detach().long().float(), y.detach().bool().float()
        doubled = y.bfloat16().mul_(2).float()
        return whole + signs + doubled + y.clone(memory_format=torch.preserve_format)


def test_casts_that_drop_something_or_are_written_into_are_no_round_trips():
    """By hand: (0.7).long().float() is 0, and doubling stands between the other two; the clone alone can go."""
    ledger = symacct.derive(model=Dropping, inputs=lambda B, d: torch.ones(B, d), dims={"B": 4, "d": 16})
    assert [c.rule for c in copies(ledger)] == ["clone"]


def test_explain_lists_copies_with_their_bytes(capsys):
    said = shown(capsys, "llama", "--copies")
    assert "layout  aten.clone  blocks.*.attn" in said and "8·B·L·T·h·d_h bytes" in said
    data = json.loads(shown(capsys, "llama", "--copies", "--format", "json"))
    assert data["copies"][0]["rule"] == "layout"


# When tensors die


def test_each_tensor_says_when_it_dies(capsys):
    said = shown(capsys, "gpt2", "--module", "blocks.*.mlp", "--op", "gelu")
    assert (
        "dies     after aten.view (backward, blocks.*.mlp.down, examples/gpt.py:42), on the way back"
        in " ".join(said.split("\n           "))
    )
    assert "dies     not before the step ends" in shown(
        capsys, "gpt2", "--module", "blocks.*.mlp.down", "--op", "aten.mm"
    )


def test_ops_that_could_be_one_kernel_stand_together(capsys):
    said = shown(capsys, "llama", "--fusable")
    assert "silu, mul" in said
    json.loads(shown(capsys, "llama", "--fusable", "--format", "json"))


# The peak


@pytest.fixture(scope="module")
def peak():
    ledger = symacct.derive("gpt2")
    return Peak(answer(ledger, [AT]))


def test_what_is_alive_at_the_peak_adds_up_to_it(peak):
    best = peak.forms[0]
    rows = peak.alive(best)
    total = sp.expand(sum(live for values in rows.values() for _, live in values))
    assert sp.expand(total - best.bytes) == 0
    values = peak.answer.values
    here = {symbol(name): value for name, value in peak.here.items()}
    assert sum(live.xreplace(here) for _, live in rows["parameters"]) == values["bytes.params"]
    assert sum(live.xreplace(here) for _, live in rows["optimizer state"]) == values["bytes.optimizer"]
    assert best.bytes.xreplace(here) == values["bytes.peak"]


def test_the_leading_form_changes_where_said(peak):
    """Each turn along T is one: the form before it is overtaken there, by whole steps of the size."""
    turns = peak.along("T")
    assert len(turns) > 1
    forms = {form.number: form.bytes for form in peak.forms}

    def at(form, tokens):
        return forms[form].xreplace({symbol(k): sp.Integer(v) for k, v in {**peak.here, "T": tokens}.items()})

    for (_, before), (start, after) in pairwise(turns):
        assert at(after, start) > at(before, start) and at(before, start - 1) >= at(after, start - 1)


def test_sizes_at_which_a_form_is_said_to_lead_make_it_lead(peak):
    led = [form for form in peak.forms if form.leads is not None]
    assert len(led) >= 3
    for form in led:
        now = {symbol(k): sp.Integer(v) for k, v in form.leads.items()}
        assert form.bytes.xreplace(now) == max(other.bytes.xreplace(now) for other in peak.forms)


def test_explain_shows_the_peak_by_kind_and_the_first_step(capsys):
    said = shown(capsys, "gpt2", "--peak", "--at", AT)
    assert (
        "form 1 of" in said
        and "kept activations" in said
        and "the first step, with no optimizer state before it" in said
    )
    data = json.loads(shown(capsys, "gpt2", "--peak", "--at", AT, "--format", "json"))
    assert data["sizes"]["d"] == 768 and data["alive"]["parameters"] and data["first_step"]


def test_sizes_at_which_a_form_leads_meet_the_relations(capsys):
    at = "B=1,T=64,V=97,L=2,d=24,h=4"
    words = ("gpt2", "--peak", "--given", "f=4*d", "--at", at, "--format", "json")
    out = json.loads(shown(capsys, *words))
    leads = [form["leads_at"] for form in out["forms"] if form["leads_at"]]
    assert len(leads) > 1 and all(at["f"] == 4 * at["d"] and at["d"] % at["h"] == 0 for at in leads)
    assert "f" not in out["along"]
    assert all(row["from"] <= 24 for row in out["along"]["h"])  # heads divide the width
