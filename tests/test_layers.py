"""The package's structure: imports point one way, torch stays behind its door, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from layers import ROOT, calls, imported, mentions, misplaced, own_imports, private_torch, sources, tree, unit

# A module imports only what stands to the left of it.
ORDER = """
    errors amounts dtypes symbols
    domination formula_text formula_reader canonical integer_program evaluation vectorised expressions
    records outliers folding graph comparisons regions domain lifting located lowering deaths peak storage unfolding smallest limits liveness widths quantised
    rules charges conventions variants counting saved routing account ledger memory copying closed_forms catalogue
    oracles_flops oracles_memory oracles oracles_styles oracles_parallel oracles_pipeline oracles_stages oracles_context oracles_experts tracing targets
    derive paths certificate verify_memory verify_shapes verify_points verify_runs verify_blame verify_lifting
    parallel verify_findings verify_sent verify_tensor verify_sharded verify_stages verify_context verify_experts verify_stage_ranks verify_parallel verify check devices plan explain diff tables report latex
    claims measure api testing cli __main__
""".split()

# The modules that import torch at all; no other imports one of these before it is asked to trace or to run.
RUNS_TORCH = ("symacct.tracing", "symacct.oracles", "symacct.verify", "symacct.measure")
# An oracle shares no code with the trace, so it has a door of its own.
PRIVATE_TORCH = {"symacct.tracing.private", "symacct.oracles_flops", "symacct.oracles_parallel"}
LONGEST = {"symacct": 350, "tests": 460}  # a test's table of figures may be long

MODULES = sources()
LIGHT = [name for name in MODULES if not name.startswith(RUNS_TORCH) and not name.endswith("__main__")]
FOLDERS = ("symacct", "tests", "examples", "benchmarks")
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def loaded_after(statement: str) -> set[str]:
    """The top-level modules in `sys.modules` of a fresh interpreter that has run `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


# Imports point one way


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_left(name):
    if unit(name):
        assert unit(name) in ORDER, f"{name} has no place in ORDER of tests/test_layers.py"
        wrong = misplaced(name, own_imports(name, MODULES), ORDER)
        assert not wrong, f"{name} may import only modules to its left in ORDER, not {', '.join(wrong)}"


def test_no_module_imports_itself_in_a_circle():
    TopologicalSorter({name: own_imports(name, MODULES) - {name} for name in MODULES}).prepare()


def test_the_order_names_each_module_once():
    assert len(set(ORDER)) == len(ORDER)


def test_a_planted_upward_import_is_caught():
    assert misplaced("symacct.graph", ["symacct.errors", "symacct.latex", "symacct.rules.views"], ORDER) == [
        "symacct.latex",
        "symacct.rules.views",
    ]
    inside = ast.parse("def f():\n    from . import run\n    from ..rules import views")
    found = list(imported(inside, "symacct.tracing"))
    assert found == [("symacct.tracing", "run"), ("symacct.rules", "views")]


# torch stays behind its door


@pytest.mark.parametrize("name", LIGHT)
def test_torch_is_imported_only_to_trace_and_to_run(name):
    assert not mentions(tree(MODULES[name]), "torch"), f"{name} is not among {', '.join(RUNS_TORCH)}"


def test_import_symacct_is_light():
    assert not loaded_after("import symacct") & {"torch", "transformers", "rich"}


def test_modules_that_answer_from_stored_graphs_leave_torch_out():
    assert not loaded_after("\n".join(f"import {name}" for name in LIGHT)) & {"torch", "transformers"}


def test_a_heavy_import_is_seen():
    assert {"torch", "rich"} <= loaded_after("import symacct, rich, torch")
    assert mentions(ast.parse("def f():\n    from torch.nn import Linear"), "torch")
    assert not mentions(ast.parse("if TYPE_CHECKING:\n    import torch"), "torch")


@pytest.mark.parametrize("name", MODULES)
def test_private_torch_has_one_home(name):
    found = private_torch(tree(MODULES[name]))
    assert not found or name in PRIVATE_TORCH, f"{', '.join(found)}: ask symacct.tracing.private"


@pytest.mark.parametrize(
    "code", ["torch._C._x()", "from torch._dynamo import y", "import torch._ops", "from torch import _VF"]
)
def test_private_torch_is_seen(code):
    assert private_torch(ast.parse(code))


def test_public_torch_is_not_private():
    source = "import torch.utils._pytree\ntorch.__version__\ntorch.nn.Linear(d, d)"
    assert not private_torch(ast.parse(source))


# What no module does


@pytest.mark.parametrize("name", MODULES)
def test_formulas_come_from_no_simplifier_and_no_text(name):
    found = calls(
        tree(MODULES[name]),
        functions={"eval", "exec", "simplify", "sympify", "parse_expr"},
        methods={"simplify", "sympify", "parse_expr"},
    )
    assert not found, f"{name}: {', '.join(found)}"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "symacct.symbols"])
def test_symbols_are_made_in_one_place(name):
    found = calls(tree(MODULES[name]), functions={"Symbol"}, methods={"Symbol"})
    assert not found, f"{name}: {', '.join(found)}: ask symacct.symbols"


def test_forbidden_calls_are_seen():
    source = ast.parse("sp.simplify(x)\nmodel.eval()\neval('x')\nsp.Symbol('d')")
    assert calls(source, {"eval"}, {"simplify", "Symbol"}) == [
        "sp.simplify( in line 1",
        "eval( in line 3",
        "sp.Symbol( in line 4",
    ]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_are_short(path):
    longest = LONGEST.get(path.relative_to(ROOT).parts[0], 350)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= longest
