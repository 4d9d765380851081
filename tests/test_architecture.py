"""The walk of a scan in docs/architecture.md: every file and function that it names is there."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|sbatch))`")


def path_of(name: str) -> Path:
    inside = ROOT / "bids_gevnet" / name
    return inside if inside.exists() else ROOT / name


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_file_is_there() -> None:
    names = set(FILE.findall(TEXT))
    assert len(names) > 40
    assert [name for name in sorted(names) if not path_of(name).exists()] == []


def test_every_function_is_in_its_file() -> None:
    named = re.findall(FILE.pattern + r"((?:,? `[A-Za-z_]+`)+)", TEXT)
    pairs = [(file, name) for file, names in named for name in re.findall(r"`(\w+)`", names)]
    assert len(pairs) > 30
    assert [(f, n) for f, n in pairs if n not in defined(path_of(f))] == []


def test_rooms_are_those_of_the_contract() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = tools["importlinter"]["contracts"][0]["layers"]
    known = {name.strip() for layer in layers for name in layer.split("|")}
    table = TEXT.split("## The rooms", 1)[1].split("##", 1)[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    rooms = [room for cell in cells for room in re.findall(r"`([a-z]+)`", cell)]
    assert len(rooms) > 12
    assert {f"bids_gevnet.{room}" for room in rooms} <= known
