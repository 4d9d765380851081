"""The benchmarks of the group level in their quick setting: a tiny phantom cohort."""

import importlib
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.learn.evaluate.scoring import read_predictions
from bids_gevnet.nn.registry import scan_networks

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
    assert len(lines) == 2 + len(scan_networks())
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
    assert len(weights) == len(scan_networks()) * options.folds
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
    """The region that truly differs tells groups apart; groups that mix them it does not.

    In every fold one person of each group changes sides. The four ways to do so come in pairs
    with all labels exchanged, so over all ways half of the predictions of a fold are right, as
    long as they know nothing of the labels of the fold itself.
    """
    options, _ = quick
    output = options.folder / options.networks[0]
    table = read_predictions(output / "group_predictions.tsv")
    planted = right(ablation, output, table)
    names = ablation.learning.REFERENCES
    assert planted[names["degrees 2 and 4, region"]] == 1.0
    assert planted[names["direction mean, brain"]] < 0.8
    people = table[table["kind"] == "network"].groupby(["fold", "label"])["scan"].apply(sorted)
    found = []
    for chosen in product(*people):
        mixed = table.copy()
        other = mixed["label"].map({"AD": "DLB", "DLB": "AD"})
        mixed["label"] = mixed["label"].where(~mixed["scan"].isin(chosen), other)
        found.append(right(ablation, output, mixed)[names["degrees 2 and 4, region"]])
    assert len(found) == 16
    assert np.mean(found) == pytest.approx(0.5)


def right(ablation: ModuleType, output: Path, table: pd.DataFrame) -> dict[str, float]:
    """Share of right predictions of every reference."""
    return {
        rows["model"].iloc[0]: float(np.mean((rows["prob_DLB"] > 0.5) == (rows["label"] == "DLB")))
        for rows in ablation.learning.references(output, table)
    }
