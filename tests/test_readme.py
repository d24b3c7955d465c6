"""The README: its sessions are run, its code is the code, its picture is the package's."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from layers import sources, unit
from test_layers import ORDER

import symacct
from symacct import cli
from symacct.conventions import CHOICES, NAMED
from symacct.targets import catalogue

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 110


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README.read_text(encoding="utf-8")) if found == language]


def order() -> str:
    """The modules that there are, in their order, as a paragraph; a family such as `verify_…` as `verify*`."""
    there = [word for word in ORDER if word in {unit(name) for name in sources()}]
    heads = [word.partition("_")[0] for word in there]
    words = [f"{head}*" if head and heads.count(head) > 1 else word for word, head in zip(there, heads, strict=True)]
    lines = [""]
    for word in dict.fromkeys(words):
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f"{word} "
    return "".join(f"{line.rstrip()}\n" for line in lines)


@pytest.fixture
def same(request):
    """`same(block, now)` compares a block with what it should be; under --update-golden it becomes that."""

    def check(block: str, now: str) -> None:
        if request.config.getoption("--update-golden"):
            text = README.read_text(encoding="utf-8")
            README.write_text(text.replace(f"\n{block}```", f"\n{now}```"), encoding="utf-8")
            return
        assert block == now, "README.md differs; if meant, run pytest --update-golden and review the diff"

    return check


def ran(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *words = shlex.split(command)
    assert program == "symacct"
    assert cli.main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("number", range(len(blocks("console"))))
def test_sessions_print_what_they_say(number, same, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "124")
    block = blocks("console")[number]
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    assert commands
    same(block, "".join(f"$ {command}\n{ran(command, capsys)}" for command in commands))


def test_python_sessions_print_what_they_say(tmp_path, monkeypatch):
    name = re.search(r"Save this as `(\w+\.py)`", README.read_text(encoding="utf-8"))
    assert name
    (tmp_path / name[1]).write_text(blocks("python")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    session = doctest.DocTestParser().get_doctest("".join(blocks("pycon")), {}, "README.md", "README.md", 0)
    assert len(session.examples) >= 4
    found: list[str] = []
    assert not doctest.DocTestRunner().run(session, out=found.append).failed, "".join(found)


def test_the_rule_and_its_row_are_the_real_ones():
    rule, row = blocks("python")[1].split("\n\n")
    row = row.partition("   #")[0]
    assert rule in (ROOT / "symacct" / "rules" / "contraction.py").read_text(encoding="utf-8")
    assert row in (ROOT / "tests" / "rule_rows_products.py").read_text(encoding="utf-8")


def test_the_import_order_is_the_one_that_is_tested(same):
    (block,) = blocks("text")
    flow, _, _ = block.partition("\n\n")
    same(block, f"{flow}\n\n{order()}")


def test_every_stored_graph_and_switch_is_named():
    text = README.read_text(encoding="utf-8")
    words = {word.strip(".") for word in re.findall(r"[\w.-]+", text)}
    assert set(catalogue()) <= words
    assert {f"--{switch}" for switch in CHOICES} <= words
    assert {value for values in CHOICES.values() for value in values} <= words
    assert set(NAMED) - {"symacct"} <= words


def test_files_that_it_names_exist():
    text = README.read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:examples|symacct|graphs|tests)/[\w./*-]*", text):
        assert list(ROOT.glob(path.rstrip("./"))), path


def test_what_it_does_not_do_is_not_done():
    formulas = symacct.derive("gpt2").formulas
    missing = README.read_text(encoding="utf-8").partition("## What it does not do")[2].lower()
    done = {"bytes.saved": "kept for backward", "bytes.peak": "peak memory", "bytes.kv_cache": "kv cache"}
    assert not [words for key, words in done.items() if key in formulas and words in missing]
