"""The QM7 benchmark: broken data, planted molecules, a run that goes on where it was."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = ["--quick", "--architecture", "5-2v-2", "--phi", "8", "--psi", "4", "--folds", "2"]


def run(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(BENCHMARKS / "qm7.py"), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "R": rng.normal(size=(10, 4, 3)),
        "Z": np.tile([6.0, 1.0, 8.0, 0.0], (10, 1)),
        "T": rng.normal(size=(1, 10)),
        "P": np.arange(10).reshape(5, 2),
    }


def test_quick_learns_more_than_the_composition(tmp_path):
    done = run("--quick", "--folder", tmp_path)
    folds = [json.loads((tmp_path / f"fold-{k}.json").read_text()) for k in range(1, 6)]
    rmse = np.array([fold["rmse"] for fold in folds])
    baseline = np.array([fold["baseline_rmse"] for fold in folds])
    assert rmse.mean() < 0.7 * baseline.mean()
    assert f"{rmse.mean():.2f} ± {rmse.std(ddof=1):.2f} (folds 1, 2, 3, 4, 5)" in done.stdout
    assert (tmp_path / "qm7.svg").read_text().count("fold ") == 5


def test_a_run_goes_on_where_it_was(tmp_path):
    """The same numbers in one go and after a stop; a finished fold is not trained again."""
    stages = ["--epochs", "2", "--set-epochs", "3", "--score-every", "1"]
    run(*TINY, *stages, "--folder", tmp_path / "whole")
    run(*TINY, *stages, "--folder", tmp_path / "parts")
    parts = tmp_path / "parts"
    whole = json.loads((tmp_path / "whole" / "fold-2.json").read_text())
    (parts / "fold-2.json").unlink()
    (parts / "fold-2_set.safetensors").unlink()  # as if stopped between the stages
    again = run(*TINY, *stages, "--folder", parts)
    assert "together" not in again.stderr
    assert json.loads((parts / "fold-2.json").read_text())["rmse"] == whole["rmse"]
    assert "done before" in run(*TINY, *stages, "--folder", parts).stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"Z": np.full((10, 4), 9.0)}, "charges [9.0] besides those of H, C, N, O and S"),
        ({"P": np.zeros((5, 2), int)}, "folds P that do not hold each of 10 molecules once"),
        ({"T": np.zeros((1, 9))}, "which do not fit together"),
        ({"R": np.full((10, 4, 3), np.nan)}, "numbers that are not finite"),
        ({"P": None}, "P is not a file in the archive"),
    ],
)
def test_broken_molecules_get_a_sentence(tmp_path, arrays, change, sentence):
    content = {k: v for k, v in (arrays | change).items() if v is not None}
    np.savez(tmp_path / "qm7.npz", **content)
    done = run("--data", tmp_path / "qm7.npz", check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "quantum-machine.org" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_and_unreadable_files_get_a_sentence(tmp_path):
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 not the rest of it")
    for path in (tmp_path / "none.npz", tmp_path / "torn.npz"):
        done = run("--data", path, check=False)
        assert done.returncode == 2
        assert re.search(
            rf"Expected the QM7 molecules in {path}; found .+ What to do", done.stderr
        )
    assert "try --quick" in run(check=False).stderr
