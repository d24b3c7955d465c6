"""All that `latex --standalone` writes compiles, with no line more than 20 pt too wide. Needs pdflatex."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import symacct
from symacct.account import Ledger
from symacct.graph import SymbolInfo
from symacct.latex import document, short_tex
from symacct.report.answer import answer
from symacct.targets import catalogue, graph_of

pytestmark = pytest.mark.skipif(
    not shutil.which("pdflatex"),
    reason="no pdflatex here: apt-get install texlive-latex-base texlive-latex-recommended",
)
WIDEST = 20.0
HOSTILE = (
    r"50% of_a\b {c}^~ #1 & $x$ <y> |z| `q' ``r'' --- λ é 中 \write18{x} \end{document}" + "\n\n\t\x00\u202e"
)
PAPER = r"""\documentclass{article}
\usepackage{amsmath,array,booktabs,longtable}
\begin{document}
\appendix
\input{fragment}
\end{document}
"""


def compiled(folder: Path, text: str) -> str:
    """The log of a run over a document. Fails where TeX does; makes no PDF, so that no font is drawn."""
    (folder / "paper.tex").write_text(text, encoding="utf-8")
    words = [
        "pdflatex",
        "-draftmode",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "paper.tex",
    ]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-1500:]
    return done.stdout


def overfull(log: str) -> list[float]:
    return [float(points) for points in re.findall(r"Overfull \\hbox \(([0-9.]+)pt", log)]


@pytest.mark.parametrize("name", catalogue())
def test_the_appendix_compiles(name, tmp_path):
    log = compiled(tmp_path, document(answer(Ledger(graph_of(name))), standalone=True))
    assert max(overfull(log), default=0) <= WIDEST
    assert "Missing character" not in log


def test_a_fragment_with_hostile_texts_compiles_in_a_paper(tmp_path):
    graph = graph_of("mlp")
    symbols = {**graph.symbols, "d": SymbolInfo(HOSTILE, 4), "f": SymbolInfo("", 4)}
    found = answer(Ledger(replace(graph, target=HOSTILE, symbols=symbols)), ["B=1,d=2,f=3,c=4"])
    (tmp_path / "fragment.tex").write_text(document(found), encoding="utf-8")
    compiled(tmp_path, PAPER)


def test_what_derive_writes_compiles_in_a_paper(tmp_path):
    found = answer(Ledger(graph_of("mixtral")))
    (tmp_path / "fragment.tex").write_text(
        short_tex(found, ("module", "op", "phase", "kind")), encoding="utf-8"
    )
    assert max(overfull(compiled(tmp_path, PAPER)), default=0) <= WIDEST


def test_formulas_to_leading_order_compile(tmp_path):
    text = symacct.derive("mixtral").latex(given=["T << d", "V << L*d"], standalone=True)
    assert r"$T \ll d$" in text
    assert max(overfull(compiled(tmp_path, text)), default=0) <= WIDEST
