"""The command line: answers on stdout and nothing else there, exit codes, one sentence for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symacct import cli
from symacct.certificate import Certificate, Check
from symacct.expressions import parse
from symacct.targets import catalogue

ROOT = Path(__file__).parents[1]
PUBLISHED = ["--given", "f=4*d", "--at", "B=1,T=1024,V=50257,L=12,d=768,h=12"]
EVERY = "B=1,T=8,V=9,L=2,d=12,h=3,f=4"
KEYS = ["target", "mode", "symbols", "assumptions", "convention", "coverage", "formulas", "tokens"]

MODEL = """
import torch
dims = {"B": 2, "d": 8}
def model(d): return torch.nn.Linear(d, d)
def inputs(B, d): return torch.randn(B, d)
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "116")


def shell(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "symacct", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# Answers


def test_derive(run, golden):
    code, out, err = run("derive", "gpt2", *PUBLISHED)
    assert code == 0
    golden(out)
    golden(err, "err")


@pytest.mark.parametrize("key", ["module", "op", "phase", "kind", "module,phase"])
def test_derive_by(run, golden, key):
    code, out, _ = run("derive", "gpt2", *PUBLISHED, "--by", key)
    assert code == 0
    golden(out.rpartition("\n\n")[2])


def test_derive_json(run, golden):
    code, out, _ = run("derive", "gpt2", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == KEYS
    assert found["symbols"]["B"] == {"meaning": "batch size", "latex": "B", "traced_at": 2}
    assert found["assumptions"] == ["Mod(d, h) = 0"]
    assert found["coverage"]["unknown"] == []
    assert all(
        isinstance(parse(formula, found["symbols"]).free_symbols, set)
        for formula in found["formulas"].values()
    )
    golden(out, "json")


def test_derive_json_with_numbers(run):
    code, out, _ = run("derive", "gpt2", *PUBLISHED, "--format", "json", "--by", "phase")
    found = json.loads(out)
    assert code == 0
    assert list(found) == [*KEYS, "values", "by"]
    assert found["assumptions"] == ["Mod(d, h) = 0", "f = 4*d"]
    assert found["values"]["params.total"] == 124_439_808
    assert set(found["values"]) == set(found["formulas"])
    assert {row["phase"]: row["value"] for row in found["by"]} == {
        "backward": 583_296_614_400,
        "forward": 291_648_307_200,
    }


def test_switches_change_the_count(run):
    words = ("derive", "gpt2", *PUBLISHED, "--format", "json")
    plain = json.loads(run(*words)[1])["values"]["flops.forward"]
    assert 2 * json.loads(run(*words, "--unit", "mac")[1])["values"]["flops.forward"] == plain
    assert (
        json.loads(run(*words, "--attention", "half")[1])["values"]["flops.forward"]
        == plain - 2 * 12 * 1024**2 * 768
    )
    assert json.loads(run(*words, "--convention", "palm")[1])["convention"]["backward"] == "twice"


def test_explain(run, golden):
    code, out, _ = run(
        "explain", "gpt2", "--module", "attn.qkv", "--at", "B=1,T=1024,V=50257,L=12,d=768,h=12,f=3072"
    )
    assert code == 0
    golden(out)


def test_explain_json(run):
    code, out, _ = run("explain", "gpt2", "--op", "aten.addmm", "--format", "json")
    nodes = json.loads(out)["nodes"]
    assert code == 0
    assert {node["module"] for node in nodes} == {
        f"blocks.*.{part}" for part in ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")
    }
    qkv = nodes[0]
    assert (qkv["times"], qkv["flops"], qkv["source"]) == ("L", "6*B*L*T*d**2", "examples/gpt.py:30")
    assert "multiply-add" in qkv["law"]


def test_explain_covers_every_node(run):
    _, out, _ = run("explain", "mlp", "--format", "json")
    _, listed, _ = run("graphs", "show", "mlp", "--format", "json")
    assert [node["name"] for node in json.loads(out)["nodes"]] == [
        row[0] for row in json.loads(listed)["items"]
    ]


def test_rules(run):
    code, out, _ = run("rules", "aten.mm", "--format", "json")
    assert code == 0
    assert json.loads(out)[0] == {
        "op": "aten.mm",
        "file": "contraction.py",
        "view": False,
        "law": "(…,m,k) by (…,k,n): one multiply-add for each (…,m,k,n).",
    }
    assert "aten.mm" in run("rules")[1]


def test_every_rule_has_a_law(run):
    assert all(row["law"] for row in json.loads(run("rules", "--format", "json")[1]))


def test_graphs(run):
    code, out, _ = run("graphs", "--format", "json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(catalogue())
    assert "V·d + T·d" in run("graphs")[1]
    assert run("graphs", "show", "gpt2")[1].startswith("gpt2 · train")


def test_graphs_build_makes_the_stored_bytes(run, tmp_path):
    code, out, err = run("graphs", "build", "mlp", "--into", tmp_path)
    assert (code, out, err) == (0, f"{tmp_path / 'mlp.json'}\n", "tracing examples/mlp.py …\n")
    assert (tmp_path / "mlp.json").read_bytes() == (ROOT / "graphs" / "mlp.json").read_bytes()


def test_a_model_file(run, tmp_path):
    path = tmp_path / "linear.py"
    path.write_text(MODEL)
    code, out, _ = run("derive", path, "--at", "B=2,d=8", "--format", "json")
    assert code == 0
    assert json.loads(out)["values"]["params.total"] == 72


@pytest.mark.parametrize("equal", [True, False])
def test_verify_says_by_its_exit_code(run, monkeypatch, equal):
    check = Check("flops.forward", "a run", {"B": 2}, "2*B", 4 if equal else 5, 4, equal)
    made = Certificate("mlp", "train", "cuda", ({"B": 2},), (check,))
    monkeypatch.setitem(sys.modules, "symacct.verify", types.SimpleNamespace(verify=lambda *_, **__: made))
    code, out, _ = run("verify", "mlp", "--format", "json")
    assert (code, json.loads(out)["verified"]) == (0 if equal else 1, equal)


# Bad input


FILES = {
    "nodims.py": "def model(): ...",
    "typo.py": MODEL.replace("def model(d)", "def model(dd)"),
    "unequal.py": MODEL.replace("Linear(d, d)", "Linear(d + 1, d)"),
    "raises.py": MODEL.replace("return torch.nn.Linear(d, d)", "raise RuntimeError('broken')"),
    "syntax.py": "dims = {",
    "cut.json": '{"symacct": 1, "target": "x", "mo',
    "version.json": '{"symacct": 99}',
    "empty.json": '{"symacct": 1}',
    "other.json": "[1, 2]",
    "binary.json": b"\xff\xfe\x00\x01",
    "unknown.json": '{"architectures": ["FooForBar"], "model_type": "foo"}',
}


@pytest.mark.parametrize("name", FILES)
def test_bad_targets(run, tmp_path, name):
    path = tmp_path / name
    content = FILES[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(*run("derive", path), name)


def test_a_model_file_that_exits(run, tmp_path):
    path = tmp_path / "exits.py"
    path.write_text("raise SystemExit(0)")
    assert_refused(*run("derive", path), "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "B=1"], "leaves out"),
        (["--at", EVERY.replace("h=3", "h=5")], "breaks Mod(d, h) = 0"),
        (["--at", EVERY.replace("B=1", "B=-1")], "positive integer"),
        (["--at", EVERY.replace("B=1", "B=0")], "positive integer"),
        (["--at", "B"], "write whole numbers"),
        (["--at", f"{EVERY},q=7"], "not a size of gpt2"),
        (["--given", "f=4*d", "--at", EVERY], "f = 4 breaks f = 4*d"),
        (["--given", "f=4*d", "--given", "f=3*d"], "contradicts"),
        (["--given", "f=4*q"], "unknown symbol 'q'"),
        (["--given", "f=__import__('os')"], "f"),
        (["--given", "5 | d", "--at", EVERY], "breaks 5 | d"),
        (["--convention", "plam"], "did you mean 'palm'"),
        (["--by", "colour"], "choose from module, op, phase, kind"),
        (["--unit", "pounds"], "pounds"),
        (["--mode", "dream"], "dream"),
        (["--mode", "forward"], "stored graph of mode train"),
        (["--device", "cpu"], "cuda behaviour"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options(run, words, said):
    assert_refused(*run("derive", "gpt2", *words), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["derive"], "TARGET"),
        (["derive", "gtp2"], "did you mean 'gpt2'"),
        (["derive", "nowhere.py"], "no such model file"),
        (["nonsense"], "nonsense"),
        (["rules", "aten.mmm"], "aten.mm"),
        (["explain", "gpt2", "--op", "zzz"], "no node matches"),
        (["graphs", "show", "gtp2"], "did you mean 'gpt2'"),
        (["graphs", "build", "gtp2"], "did you mean 'gpt2'"),
        (["verify", "nowhere.py"], "no such model file"),
    ],
)
def test_bad_words(run, words, said):
    assert_refused(*run(*words), said)


def assert_refused(code: int, out: str, err: str, said: str) -> None:
    last = [line for line in err.splitlines() if not line.startswith(("note: ", "running ", "tracing "))]
    assert code == 2
    assert out == ""
    assert last[0].startswith("error: ")
    assert "internal" not in last[0]
    assert said in err
    assert "Traceback" not in err


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["derive", "explain", "mlp", "--at", "--given", "--by", "B=1", "f=d"]),
        ),
        max_size=5,
    )
)
def test_no_words_bring_a_traceback(run, words):
    code, _, err = run(*[word for word in words if word not in ("--debug", "build", "verify")])
    assert code in (0, 2)
    assert "Traceback" not in err
    assert "internal" not in err


def test_an_unexpected_error_is_one_sentence(run, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("symacct.targets.graph_of", fail)
    assert run("derive", "gpt2") == (
        2,
        "",
        "error: internal KeyError: 'lost'; run with --debug for the traceback\n",
    )
    with pytest.raises(KeyError):
        cli.main(["derive", "gpt2", "--debug"])


# In a process of its own


def test_stored_graphs_answer_without_torch():
    code = (
        "import sys; from symacct.cli import main; assert main(['derive', 'gpt2']) == 0; "
        "assert not {'torch', 'transformers', 'networkx'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_same_bytes_under_any_hash_seed(form):
    one, other = (
        shell("derive", "llama", "--format", form, "--by", "op", PYTHONHASHSEED=seed).stdout
        for seed in ("1", "2")
    )
    assert one == other != ""


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m symacct rules | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("op")
    assert done.stderr == ""


def test_a_terminal_without_unicode_still_gets_an_answer():
    done = shell("derive", "mlp", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "parameters" in done.stdout
