"""The Boutiques descriptor of the app, from its parser: how CBRAIN, Nipoppy and others run it.

``python -m bids_gevnet.cli.boutiques > containers/boutiques.json``; a test keeps the file true.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bids_gevnet.cli.docker import DEFAULT_IMAGE
from bids_gevnet.cli.parser import build_parser
from bids_gevnet.versions import __version__

_NOT_INPUTS = ("help", "version")
"""Options that print something and run nothing."""
_MADE_BY_THE_RUN = ("output_dir", "work_dir", "bids_database_dir")


def describe_app(*, image: str = DEFAULT_IMAGE) -> dict[str, Any]:
    """Describe the command line for Boutiques, schema 0.5."""
    parser = build_parser()
    actions = [action for action in parser._actions if action.dest not in _NOT_INPUTS]  # noqa: SLF001
    inputs = [entry for action in actions for entry in _inputs_of(action)]
    return {
        "schema-version": "0.5",
        "name": "bids_gevnet",
        "tool-version": __version__,
        "author": "The bids_gevnet developers",
        "description": "Learn from diffusion MRI in a way that respects its geometry: correction, "
        "MNI space, spherical sampling, harmonisation, and CKN + GEVNet networks.",
        "command-line": " ".join(["bids_gevnet", *(entry["value-key"] for entry in inputs)]),
        "container-image": {"type": "docker", "image": image, "entrypoint": True},
        "inputs": inputs,
        "groups": _exclusive_groups(parser),
        "output-files": [
            {
                "id": "output",
                "name": "Derivatives, reports and models",
                "path-template": "[OUTPUT_DIR]",
                "list": False,
                "optional": False,
            }
        ],
        "error-codes": [
            {"code": 1, "description": "Something failed, each failure named."},
            {"code": 2, "description": "Wrong usage or unusable input."},
            {"code": 70, "description": "The workflow could not be built."},
        ],
        "tags": {"domain": ["neuroinformatics", "diffusion MRI"], "app-type": ["bids"]},
    }


def _inputs_of(action: argparse.Action) -> list[dict[str, Any]]:
    """Describe an option; one that can be switched both ways is two flags."""
    if not action.option_strings:
        return [_positional(action)]
    if isinstance(action, argparse.BooleanOptionalAction):
        return [_option(action, flag) for flag in action.option_strings]
    flags = [flag for flag in action.option_strings if flag.startswith("--")]
    return [_option(action, flags[0])]


def _positional(action: argparse.Action) -> dict[str, Any]:
    return {
        "id": action.dest,
        "name": action.dest,
        "value-key": f"[{action.dest.upper()}]",
        "optional": False,
        **_kind(action),
    }


def _option(action: argparse.Action, flag: str) -> dict[str, Any]:
    name = flag.removeprefix("--").replace("-", "_")
    return {
        "id": name,
        "name": name,
        "value-key": f"[{name.upper()}]",
        "command-line-flag": flag,
        "optional": True,
        **_kind(action),
    }


def _kind(action: argparse.Action) -> dict[str, Any]:
    """Say which values an argument takes."""
    kind: dict[str, Any] = {"description": (action.help or "").replace("%%", "%")}
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return kind | {"type": "Flag"}
    if action.type is Path:
        # A file of Boutiques is one that exists; what the run makes is a name.
        kind["type"] = "String" if action.dest in _MADE_BY_THE_RUN else "File"
    elif action.type in (int, float):
        kind |= {"type": "Number", "integer": action.type is int}
    else:
        kind["type"] = "String"
    if action.choices is not None:
        kind["value-choices"] = list(action.choices)
    if action.nargs is not None:
        kind["list"] = True
        kind |= {} if action.nargs == "*" else {"min-list-entries": 1}
        if isinstance(action.nargs, int):
            kind |= {"min-list-entries": action.nargs, "max-list-entries": action.nargs}
    return kind


def _exclusive_groups(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Name the options that cannot be given together."""
    together = [list(group._group_actions) for group in parser._mutually_exclusive_groups]  # noqa: SLF001
    switches: list[argparse.Action] = [
        action
        for action in parser._actions  # noqa: SLF001
        if isinstance(action, argparse.BooleanOptionalAction)
    ]
    together.extend([action] for action in switches)
    members = [[entry["id"] for a in actions for entry in _inputs_of(a)] for actions in together]
    return [
        {
            "id": f"one_of_{'_'.join(names)}",
            "name": f"At most one of {', '.join(names)}",
            "members": names,
            "mutually-exclusive": True,
        }
        for names in members
    ]


if __name__ == "__main__":
    print(json.dumps(describe_app(), indent=2, ensure_ascii=False))
