"""Reference pages that follow from the code: the command line, every output file, every network.

The parser, the typed facts and the tables are the only sources; `tests/test_docs.py` fails where
one of them has something that the page lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import typing
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from numpydoc.docscrape import ClassDoc

from bids_gevnet.bids import derivatives
from bids_gevnet.cli.docker import build_wrapper_parser
from bids_gevnet.cli.parser import build_parser
from bids_gevnet.cli.phantom import build_parser as phantom_parser
from bids_gevnet.facts.json_form import Facts
from bids_gevnet.facts.saliency import SaliencyFacts
from bids_gevnet.facts.scan import ScanFacts
from bids_gevnet.layout import OutputLayout
from bids_gevnet.learn.models.files import ModelCard
from bids_gevnet.learn.train.jobs import TrainOptions
from bids_gevnet.nn.registry import scan_networks
from bids_gevnet.nn.zoo import table as table_of_networks
from bids_gevnet.report.references import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_COMMAND_LINE_INTRODUCTION = """\
# Command line

For everybody who runs the app. This page is made from the program's own parser;
`bids_gevnet --help` prints the same.

```sh
bids_gevnet BIDS_DIR OUTPUT_DIR {participant,group} [options]
```
"""
_PHANTOM = "Writes a simulated BIDS dataset: `bids_gevnet_phantom OUT [options]`."
_WRAPPER = """\
Runs the app in a container: `bids_gevnet-docker BIDS_DIR OUTPUT_DIR LEVEL [options]` takes the
options above and these.
"""
_FACTS_INTRODUCTION = """\
# Facts of a scan

For whoever reads `*_desc-report_facts.json` with a program. The file holds what each stage did;
this page is made from the classes that write it. A key whose value is not known is left out.
"""
_MODEL_INTRODUCTION = """\
# model.json

For whoever publishes or reads a model folder. `model.json` says what the model is and what it was
trained on; the weights stand beside it in `model.safetensors`, never as pickled code.
"""
_OPTIONS_INTRODUCTION = """
## Each of `options`

`files` has a sha256 for each of `model.safetensors`, `harmonisation.npz` and `MODEL_CARD.md` that
is there; `format` is the name and version of this form. `options` says how the model was trained:
"""
_SALIENCY_INTRODUCTION = """\
# saliency.json

For whoever reads what a network's predictions rest on. `models/<task>[/<network>]` holds, beside
the models of the folds,

| file | holds |
| --- | --- |
| `saliency.nii.gz` | z of every voxel: how far its contributions go with the true class |
| `saliency_p.nii.gz` | p of z, one-sided and corrected over voxels; 1 outside the brain |
| `sensitivity.nii.gz` | mean gradient, 1 its root mean square: anatomy, not diagnosis |
| `saliency_regions.tsv` | the rows of `regions` below, one per region of the atlas |
| `saliency.json` | everything else; this page is made from the classes that write it |

A key whose value is not known is left out.
"""
_FILES_INTRODUCTION = """\
# Files of a run

For whoever looks into OUTPUT_DIR. Names follow BIDS; the page is made from the modules that name
the files.

## For each scan, in `sub-<label>[/ses-<label>]/dwi`

A name begins with the entities of the scan; in template space `space-<template>_res-<mm>` follows.
"""
_NETWORKS_INTRODUCTION = """\
# Networks

For whoever chooses `--network` or builds a network by name. Parameter counts are those of the
code; where the paper states one, it is the same.
"""

_REFERENCES_INTRODUCTION = """\
# References

For authors. These are the papers that the methods text of a run may cite; each run lists those
that apply to it in `OUTPUT_DIR/CITATION.md`.
"""

API = ("phantom", "dwi", "sphere", "harmonisation", "nn", "learn", "testing", "errors")
"""Packages and modules whose names are public, in the order in which a scan meets them."""


def write_reference_pages(folder: Path) -> None:
    """Write all generated pages, each only if its text changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("command_line.md", command_line_page()),
        ("facts.md", facts_page()),
        ("model_card.md", model_card_page()),
        ("saliency.md", saliency_page()),
        ("files.md", files_page()),
        ("networks.md", networks_page()),
        ("references.md", references_page()),
        *((f"api_{name}.md", api_page(name)) for name in API),
    ):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def command_line_page() -> str:
    """List every option of the three programs, those of the app by group."""
    lines = [_COMMAND_LINE_INTRODUCTION, *_options(build_parser(), "## {title}")]
    for parser, about in ((phantom_parser(), _PHANTOM), (build_wrapper_parser(), _WRAPPER)):
        lines += [f"## {parser.prog}", "", about, "", *_options(parser, "### {title}")]
    return "\n".join(lines) + "\n"


def _options(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    for group in parser._action_groups:  # noqa: SLF001
        actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]  # noqa: SLF001
        if not actions:
            continue
        yield from (heading.format(title=str(group.title).capitalize()), "")
        for action in actions:
            text = (action.help or "") % {"default": action.default, "prog": parser.prog}
            yield from (_term(action), f": {_cell(text)}", "")


def _term(action: argparse.Action) -> str:
    names = " ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar}`"
    if not action.option_strings or action.nargs == 0:
        return names
    if action.choices is not None:
        return f"{names} `{{{','.join(map(str, action.choices))}}}`"
    metavar = action.metavar
    repeated = " ..." if action.nargs in ("+", "*") else ""
    return f"{names} `{metavar}{repeated}`" if isinstance(metavar, str) else names


def facts_page() -> str:
    """List every key of a scan's facts."""
    return _page_of_facts(_FACTS_INTRODUCTION, ScanFacts)


def saliency_page() -> str:
    """List every key of saliency.json."""
    return _page_of_facts(_SALIENCY_INTRODUCTION, SaliencyFacts)


def _page_of_facts(introduction: str, outermost: type) -> str:
    lines = [introduction]
    for kind in _fact_classes(outermost):
        lines += [f"## {kind.__name__}", "", ClassDoc(kind)["Summary"][0], ""]
        lines += ["| key | holds |", "| --- | --- |"]
        lines += [f"| `{name}` | {text} |" for name, text in described_fields(kind)]
        lines.append("")
    return "\n".join(lines) + "\n"


def described_fields(kind: type) -> list[tuple[str, str]]:
    """Return each field of a dataclass with the sentence of its docstring."""
    document = ClassDoc(kind)
    texts = {
        name.strip(): _cell(" ".join(entry.desc))
        for entry in [*document["Attributes"], *document["Parameters"]]
        for name in entry.name.split(",")
    }
    return [(field.name, texts.get(field.name, "")) for field in dataclasses.fields(kind)]


def _fact_classes(kind: type) -> Iterator[type]:
    """Yield a class of facts and all that its fields hold, each once, from the outside in."""
    waiting, seen = [kind], set()
    while waiting:
        current = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        yield current
        hints = typing.get_type_hints(current)
        waiting += [inner for hint in hints.values() for inner in _facts_in(hint)]


def _facts_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, Facts):
        yield hint
    for part in typing.get_args(hint):
        yield from _facts_in(part)


def model_card_page() -> str:
    """List every key of model.json."""
    lines = [
        _MODEL_INTRODUCTION,
        "| key | holds |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in described_fields(ModelCard)),
        _OPTIONS_INTRODUCTION,
        "| key | holds |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in described_fields(TrainOptions)),
    ]
    return "\n".join(lines) + "\n"


def files_page() -> str:
    """List every file a run leaves, from the modules that name them."""
    lines = [
        _FILES_INTRODUCTION,
        "| name ends in | holds |",
        "| --- | --- |",
        *(f"| `{ending}` | {text} |" for ending, text in derivative_endings()),
        "",
        "## For the study, in OUTPUT_DIR",
        "",
        "| file or folder | holds |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in output_places()),
    ]
    return "\n".join(lines) + "\n"


def derivative_endings() -> list[tuple[str, str]]:
    """Return the endings that `bids/derivatives.py` has, with what it says of each."""
    source = _source_of(derivatives)
    constants = re.findall(
        r'^[A-Z0-9_]+ = "([^"]+\.[a-z.]+)"\n"""(.*?)"""', source, re.MULTILINE | re.DOTALL
    )
    functions = [
        (derivatives.rish_ending(0).replace("rish0", "rish<degree>"), derivatives.rish_ending),
        (derivatives.transform_ending("<template>"), derivatives.transform_ending),
        ("model-<network>_prediction.tsv", derivatives.prediction_ending),
    ]
    return [(name, _cell(text)) for name, text in constants] + [
        (name, _cell((function.__doc__ or "").splitlines()[0])) for name, function in functions
    ]


def output_places() -> list[tuple[str, str]]:
    """Return the files and folders of `OutputLayout`, with what it says of each."""
    layout = OutputLayout(root=_Root())
    places = []
    for name, member in vars(OutputLayout).items():
        if isinstance(member, property):
            places.append((str(getattr(layout, name)), _cell(member.__doc__ or "")))
        elif callable(member) and not name.startswith("_") and member.__doc__:
            argument = "participant" if name == "settings_file" else "<label>"
            places.append((str(member(layout, argument)), _cell(member.__doc__.splitlines()[0])))
    return places


class _Root:
    """A path that has no beginning."""

    def __truediv__(self, name: str) -> Path:
        return PurePosixPath(name)  # type: ignore[return-value]


def networks_page() -> str:
    """List every network with its number of parameters."""
    lines = [
        _NETWORKS_INTRODUCTION,
        f"`--network` takes {', '.join(f'`{name}`' for name in scan_networks())}, or `all`.",
        "",
        table_of_networks(),
    ]
    return "\n".join(lines) + "\n"


def references_page() -> str:
    """List every paper that the methods text may cite, by author."""
    entries = sorted(REFERENCES.values(), key=lambda reference: reference.text)
    lines = [_REFERENCES_INTRODUCTION, *(f"- [{r.text}]({r.url})" for r in entries)]
    return "\n".join(lines) + "\n"


def api_page(name: str) -> str:
    """Document every public name of a package, or every class and function of a module."""
    module = importlib.import_module(f"bids_gevnet.{name}")
    lines = [
        f"# bids_gevnet.{name}",
        "",
        (module.__doc__ or "").splitlines()[0],
        "",
        "```{eval-rst}",
    ]
    for public in public_names(module):
        kind = "autoclass" if inspect.isclass(getattr(module, public)) else "autofunction"
        lines += [f".. {kind}:: bids_gevnet.{name}.{public}", ""]
    return "\n".join([*lines, "```"]) + "\n"


def public_names(module: Any) -> list[str]:
    """List what a package exports, or what a module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if callable(getattr(module, name))]
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__ == module.__name__
    ]


def _source_of(module: Any) -> str:
    return inspect.getsource(module)


def _cell(text: str) -> str:
    """One line that a Markdown table takes as text; "Name the map" becomes "The map"."""
    line = re.sub(r"^Name the ", "The ", " ".join(text.split()))
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
