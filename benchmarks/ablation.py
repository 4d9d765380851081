"""Table 3's six networks on a phantom cohort, with the group level's own code.

    python benchmarks/ablation.py --folder FOLDER --write
    python benchmarks/ablation.py --quick                    # a minute: shows that it runs

The cohort and the options are those of learning.py, which can share the folder: networks that
were trained there are not trained again, and a run that was stopped goes on where it was. The
paper's figures are for patients, ours for phantoms that differ in the crossing angle alone: they
stand side by side to show the same table, and cannot be compared in height.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import learning
from pages import RESULTS, write_page

from bids_gevnet.nn.registry import networks

QUICK = {
    "strength": 2.0,
    "per_group": 4,
    "voxel_mm": 12.0,
    "resolution": 20.0,
    "folds": 2,
    "epochs": 1,
    "samples_per_class": 4,
}
REMARK = (
    "Mean test accuracy over folds, with its standard deviation over folds for ours. The paper "
    "tells patients apart, we tell phantoms apart: figures of one row are not comparable. CKN1 is "
    "linear from end to end but for its batch normalisation, so what the rows with CKN1 find out "
    "beyond averages is the spherical network's work; CKN2 alone averages over directions after "
    "its quadratic kernels."
)


def show(table: dict[str, Any]) -> Iterator[str]:
    """Write the ablation of group_metrics.json as lines of Markdown."""
    tasks = list(dict.fromkeys(task for row in table["rows"] for task in row["ours"]))
    paper = table["paper"]["tasks"]
    heads = ["network", "parameters", *(f"paper, patients: {task}" for task in paper)]
    heads += [f"ours, phantoms: {task}" for task in tasks]
    yield f"| {' | '.join(heads)} |"
    yield "|---|" + "---:|" * (len(heads) - 1)
    for row in table["rows"]:
        total = networks()[row["network"]].count_parameters()["total"]
        cells = [row["title"], f"{total:,}"]
        cells += [f"{100 * row['paper'][task]:.2f}" for task in paper]
        cells += [_percent(row["ours"].get(task)) for task in tasks]
        yield f"| {' | '.join(cells)} |"


def _percent(summary: dict[str, Any] | None) -> str:
    if summary is None or summary["mean"] is None:
        return "-"
    spread = f" ± {100 * summary['sd']:.1f}" if summary["sd"] is not None else ""
    return f"{100 * summary['mean']:.1f}{spread}"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; --quick replaces the sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    learning.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="a tiny cohort, hardly any training")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return options


def main() -> None:
    """Measure and print."""
    options = parse()
    content = learning.run(options)
    if content["ablation"] is None:
        raise SystemExit("an ablation needs at least two --networks")
    lines = [learning.describe(options), "", REMARK, "", *show(content["ablation"]), ""]
    text = "\n".join(lines)
    print(text)
    if options.write:
        title = "# Ablation: the networks of Table 3 on phantoms\n\n"
        write_page(RESULTS / "ablation.md", title + text)


if __name__ == "__main__":
    main()
