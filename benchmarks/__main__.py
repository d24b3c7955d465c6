"""`python -m benchmarks`: what symacct costs beside counting numerically, measured here and now in one run.

Whole cold processes, imports included. On a busy machine the clock says little, the processor's seconds more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks import evaluation, llama
from benchmarks.processes import Cost, medians, run
from symacct.report.grids import Column, Grid, Page

ROUNDS = 3
AT = "B=1,T=1024,V=50257,L=12,d=768,h=12,f=3072"
GPT2 = ["derive", "gpt2", "--at", AT]
LOADED = "import sys; from symacct.cli import main; main({}); print('torch' in sys.modules)"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        deep, shallow = (llama.write_config(Path(folder, f"llama-{n}"), n) for n in (126, 2))
        commands = {
            "derive Llama's training step, config of 126 layers": _derive(deep),
            "derive Llama's training step, config of 2 layers": _derive(shallow),
            "count it numerically: FlopCounterMode, meta, 126 layers": ["-m", "benchmarks.llama"],
            "symacct derive gpt2 --at …": ["-m", "symacct", *GPT2],
        }
        print(f"{ROUNDS} rounds of {len(commands)} cold processes …", file=sys.stderr)
        costs = medians(commands, ROUNDS)
    deep_cost, shallow_cost, numeric, stored = costs.values()
    same = json.loads(deep_cost.stdout)["values"]["flops.step"] == int(numeric.stdout)
    loaded = run(["-c", LOADED.format(GPT2)]).stdout.split()[-1] == "True"
    with Page() as page:
        page.grid(_times(costs))
        page.line()
        page.grid(
            _answers(
                ("derived / counted numerically", _ratio(deep_cost, numeric), "≤ 1.5"),
                ("both find the same FLOPs", "yes" if same else "no", "yes"),
                ("126 layers / 2 layers", _ratio(deep_cost, shallow_cost), "≤ 1.1"),
                ("derive gpt2 --at …", f"{stored.processor:.2f} s ({stored.clock:.2f} s)", "< 0.7 s"),
                ("derive gpt2 imports torch", "yes" if loaded else "no", "no"),
                ("flops.step evaluated", f"{evaluation.rate() / 1e6:.1f} million/s", "≥ 1 million/s"),
            )
        )


def _derive(config: Path) -> list[str]:
    return ["-m", "symacct", "derive", str(config), "--at", f"B={llama.B},T={llama.T}", "--format", "json"]


def _ratio(one: Cost, other: Cost) -> str:
    return f"{one.processor / other.processor:.2f} ({one.clock / other.clock:.2f})"


def _times(costs: dict[str, Cost]) -> Grid:
    columns = (Column("cold process, median"), Column("processor", "right"), Column("clock", "right"))
    rows = ((name, f"{cost.processor:.2f} s", f"{cost.clock:.2f} s") for name, cost in costs.items())
    return Grid(columns, tuple(rows))


def _answers(*rows: tuple[str, str, str]) -> Grid:
    columns = (Column("measured"), Column("processor (clock)", "right"), Column("aim", "right"))
    return Grid(columns, rows)


if __name__ == "__main__":
    main()
