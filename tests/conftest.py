"""What every test shares: goldens, no network, the same random examples in every run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read as transformers is imported: a test that would download fails
os.environ["NO_COLOR"] = "1"

settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("reproducible")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="expect what this run outputs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers must collect alike: a set in the name of a test is written in another order by each."""
    if unordered := [item.nodeid for item in items if re.search(r"[\[(-](frozenset\(|\{'[^':]*'[,}])", item.nodeid)]:
        raise pytest.UsageError(f"a set names a test, in no fixed order: give it ids or a list ({', '.join(unordered)})")


def golden_path(module: str, test: str, suffix: str) -> Path:
    """`golden/<test module>/<test name>.<suffix>`; characters not for file names become `-`."""
    return GOLDEN / module / f"{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', test).strip('-')}.{suffix}"


@pytest.fixture(autouse=True)
def plain_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as wide as that of a pipe, whatever terminal the suite is run from."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text)` compares with the file named after the test; `suffix` tells two of one test apart."""

    def check(text: str, suffix: str = "txt") -> None:
        path = golden_path(request.path.stem, request.node.name, suffix)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        shown = path.relative_to(GOLDEN.parent.parent)
        advice = "run pytest --update-golden and review the diff"
        if not path.exists():
            pytest.fail(f"no {shown} to compare with; {advice}", pytrace=False)
        assert text == path.read_text(encoding="utf-8"), f"differs from {shown}; if meant, {advice}"

    return check


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, stdout, stderr."""
    from symacct import cli

    def call(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call
