"""The benchmarks of the group level in their quick setting: a tiny phantom cohort."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.learn.evaluate import evaluate_table, read_predictions
from bids_gevnet.learn.model_files import NETWORKS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ablation() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("ablation")


@pytest.fixture(scope="module")
def quick(ablation: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Options and figures of a quick run."""
    folder = tmp_path_factory.mktemp("ablation")
    options = ablation.parse(["--quick", "--folder", str(folder)])
    return options, ablation.learning.run(options)


def test_all_six_networks_stand_beside_the_papers(ablation: ModuleType, quick: Any) -> None:
    options, content = quick
    lines = list(ablation.show(content["ablation"]))
    assert len(lines) == 2 + len(NETWORKS)
    assert lines[-1].startswith("| CKN2 + GEVNet | 16,340 | 92.86 | 98.36 | 98.27 |")
    assert "patients" in lines[0]
    assert "phantoms: AD v. DLB" in lines[0]
    for row in content["ablation"]["rows"]:
        assert 0 <= row["ours"]["AD v. DLB"]["mean"] <= 1
        assert row["ours"]["AD v. DLB"]["folds"] == options.folds
    about = ablation.learning.describe(options)
    assert "Phantoms, not patients" in about
    assert "nside 2" in about


def test_a_second_run_trains_nothing_again(ablation: ModuleType, quick: Any) -> None:
    options, content = quick
    weights = sorted(options.folder.glob("*/models/*/*/model.safetensors"))
    assert len(weights) == len(NETWORKS) * options.folds
    before = [path.stat().st_mtime_ns for path in weights]
    again = ablation.learning.run(options)
    assert [path.stat().st_mtime_ns for path in weights] == before
    assert again["ablation"] == content["ablation"]


def test_another_cohort_in_the_folder_is_refused(ablation: ModuleType, quick: Any) -> None:
    options, _ = quick
    other = ablation.parse(["--quick", "--effect", "none", "--folder", str(options.folder)])
    with pytest.raises(InputError, match="other settings"):
        ablation.learning.run(other)


def test_references_find_the_planted_effect_and_no_other(ablation: ModuleType, quick: Any) -> None:
    """The region that truly differs tells groups apart; groups drawn by lot it does not."""
    options, _ = quick
    output = options.folder / options.networks[0]
    table = read_predictions(output / "group_predictions.tsv")

    def accuracy(rows: pd.DataFrame) -> dict[str, float]:
        found = pd.concat(ablation.learning.references(output, rows))
        (task,) = evaluate_table(found, resamples=10, permutations=10)["tasks"]
        return {
            model["model"]: model["schemes"]["folds"]["pooled"]["balanced_accuracy"]["value"]
            for model in task["models"]
        }

    planted = accuracy(table)
    names = ablation.learning.REFERENCES
    assert planted[names["degrees 2 and 4, region"]] == 1.0
    assert planted[names["direction mean, brain"]] < 0.8
    # Half of each group changes sides, in each fold: the effect is the same on both sides.
    swapped = table.copy()
    for _, rows in table[table["kind"] == "network"].groupby(["fold", "label"]):
        for scan in sorted(rows["scan"])[::2]:
            other = {"AD": "DLB", "DLB": "AD"}[rows["label"].iloc[0]]
            swapped.loc[table["scan"] == scan, "label"] = other
    assert accuracy(swapped)[names["degrees 2 and 4, region"]] <= 0.75
