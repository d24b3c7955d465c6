"""`symacct graphs`: the catalogue of stored graphs; `graphs build` makes it from the examples."""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from pathlib import Path

import click

from symacct.cli.options import debug, formats, say
from symacct.errors import ModelFileError, Unsupported

_CHECKOUT = Path(__file__).parents[2]
_RENAMED = {"gpt": "gpt2"}


@click.group(invoke_without_command=True)
@formats("text", "json", "markdown")
@debug
@click.pass_context
def graphs(ctx: click.Context, form: str) -> int:
    """List the stored graphs, show one, or build them from the examples."""
    if ctx.invoked_subcommand is not None:
        return 0
    from symacct.report import listed
    from symacct.report.grids import Page, markdown
    from symacct.targets import catalogue, graph_of

    found = [graph_of(name) for name in catalogue()]
    if form == "text":
        with Page() as page:
            page.grid(listed.grid(found))
    else:
        click.echo(listed.as_json(found) if form == "json" else markdown(listed.grid(found)))
    return 0


@graphs.command()
@click.argument("name")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write it.",
)
@debug
def show(name: str, form: str) -> int:
    """Show the stored graph NAME as a program, or its JSON as it is stored."""
    from symacct.report import listed
    from symacct.report.grids import Page
    from symacct.targets import catalogue, graph_of

    stored = catalogue()
    if name not in stored:
        raise _no_such(name, list(stored))
    if form == "json":
        click.echo(stored[name].read_text(encoding="utf-8"), nl=False)
        return 0
    with Page() as page:
        listed.listing(graph_of(name), page)
    return 0


@graphs.command()
@click.argument("names", nargs=-1)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to, instead of graphs/.",
)
@debug
def build(names: tuple[str, ...], into: Path | None) -> int:
    """Trace the examples NAMES, or all of them, into the catalogue. Needs a checkout."""
    files = _examples()
    for name in names:
        if name not in files:
            raise _no_such(name, list(files))
    folder = (into or _CHECKOUT / "graphs").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    from symacct.storage import dumps
    from symacct.targets import source_of
    from symacct.tracing.build import Builder

    with contextlib.chdir(_CHECKOUT):
        for name in names or files:
            say(f"tracing {files[name]} …")
            text = dumps(Builder(source_of(files[name]), "train", "cuda").graph(name))
            path = folder / f"{name}.json"
            _write(path, text)
            click.echo(path.relative_to(_CHECKOUT) if path.is_relative_to(_CHECKOUT) else path)
    return 0


def _examples() -> dict[str, str]:
    """The examples' paths in the checkout by the names of their graphs."""
    folder = _CHECKOUT / "examples"
    if not folder.is_dir():
        raise Unsupported(
            "graphs build traces the model files in examples/, which only a checkout of symacct has"
        )
    files = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return {_RENAMED.get(stem, stem.replace("_", "-")): f"examples/{stem}.py" for stem in files}


def _write(path: Path, text: str) -> None:
    """Put the text in place at once, so that an interrupted build leaves no half of a graph."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _no_such(name: str, known: list[str]) -> ModelFileError:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ModelFileError(f"{name}: no such graph; {hint}there are {', '.join(known) or 'none'}")
