"""The QM7 benchmark: broken data, planted molecules, a run that goes on where it was."""

import importlib
import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from bids_gevnet.errors import InputError
from bids_gevnet.learn.train.distributed import Processes, StopRequest, TrainingInterrupted

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*arguments: str | Path, processes: int = 1) -> subprocess.CompletedProcess[str]:
    start = ["-W", "error"]
    if processes > 1:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *start, str(BENCHMARKS / "qm7.py"), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BIDS_GEVNET_DEVICE": "cpu"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def molecules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("molecules.data")


@pytest.fixture
def training(molecules: ModuleType) -> ModuleType:
    return importlib.import_module("molecules.training")


@pytest.fixture
def tiny(molecules: ModuleType) -> Any:
    """Options of a training that takes a second."""
    return molecules.Options(
        architecture="5-2v-2", phi=(8,), psi=(4,), epochs=2, set_epochs=3, batch=8
    )


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
    assert done.returncode == 0, done.stderr
    folds = [json.loads((tmp_path / f"fold-{k}.json").read_text()) for k in range(1, 6)]
    rmse = np.array([fold["rmse"] for fold in folds])
    baseline = np.array([fold["baseline_rmse"] for fold in folds])
    assert rmse.mean() < 0.7 * baseline.mean()
    assert f"{rmse.mean():.2f} ± {rmse.std(ddof=1):.2f} (folds 1, 2, 3, 4, 5)" in done.stdout
    figure = (tmp_path / "qm7.svg").read_text()
    assert all(f"fold {k}" in figure for k in range(1, 6))


def test_a_run_goes_on_where_it_was_and_finished_folds_stay(
    tmp_path, molecules, training, tiny, caplog
):
    caplog.set_level(logging.INFO)

    def train(options: Any, folder: Path) -> tuple[dict[str, Any], str]:
        caplog.clear()
        data = molecules.plant_molecules(30)
        found = training.train_fold(data, 1, options, folder, Processes(), StopRequest())
        return found, caplog.text

    class StopAfter(StopRequest):
        """Asked to stop after some epochs."""

        left = 1

        def agreed(self, _processes: Processes) -> bool:
            self.left -= 1
            return self.left == 0

    whole, _ = train(tiny, tmp_path / "whole")
    parts = tmp_path / "parts"
    with pytest.raises(TrainingInterrupted, match="after epoch 1 of fold-2, together"):
        training.train_fold(
            molecules.plant_molecules(30), 1, tiny, parts, Processes(), StopAfter()
        )
    again, text = train(tiny, parts)
    assert "together, epoch 1/2" not in text
    assert "together, epoch 2/2" in text
    assert again["rmse"] == whole["rmse"]
    assert "done before" in train(tiny, parts)[1]
    longer = train(replace(tiny, set_epochs=4), parts)[1]
    assert "together" not in longer
    assert "set, epoch 1/4" in longer
    assert "together, epoch 1/1" in train(replace(tiny, epochs=1), parts)[1]  # another training


def test_two_processes_train_what_one_does(tmp_path, molecules, training, tiny):
    changes = ["--architecture", tiny.architecture, "--phi", "8", "--psi", "4", "--epochs", "1"]
    changes += ["--set-epochs", "2", "--folds", "2"]
    done = run("--quick", *changes, "--folder", tmp_path / "two", processes=2)
    assert done.returncode == 0, done.stderr
    two = json.loads((tmp_path / "two" / "fold-2.json").read_text())
    quick = importlib.import_module("qm7").QUICK
    options = replace(
        quick, architecture=tiny.architecture, phi=(8,), psi=(4,), epochs=1, set_epochs=2
    )
    data = molecules.plant_molecules(120)
    one = training.train_fold(data, 1, options, tmp_path, Processes(), StopRequest())
    for stage in ("together", "set"):
        curves = [[row["train_rmse"] for row in r["curves"][stage]] for r in (one, two)]
        np.testing.assert_allclose(*curves, rtol=1e-3)
    assert two["rmse"] == pytest.approx(one["rmse"], rel=1e-3)


def test_kept_atoms_are_those_of_the_chosen_molecules(molecules, training):
    """Picked from what was kept, a molecule has the same atoms as when its spheres are made."""
    options = molecules.Options(architecture="5-2v-2", phi=(4,), psi=(4,), orientations=1)
    data = molecules.plant_molecules(9)
    network, spheres = training.make_network(options), molecules.Spheres(data, options)
    kept = molecules.KeptAtoms(network, spheres, options)
    chosen = torch.tensor([7, 0, 3])
    turn = molecules.random_rotation(torch.Generator().manual_seed(options.seed))
    potentials, elements, molecule, count = spheres.turned(chosen, turn)
    with torch.no_grad():
        expected = network.atoms(potentials, elements)
    found = kept.pick(chosen, 0)
    torch.testing.assert_close(found[0], expected)
    assert found[1].tolist() == molecule.tolist()
    assert found[2] == count == 3


def test_rotations_are_rotations(molecules):
    turn = molecules.random_rotation(torch.Generator().manual_seed(0))
    torch.testing.assert_close(turn @ turn.T, torch.eye(3))
    assert torch.linalg.det(turn) == pytest.approx(1, abs=1e-5)


def test_planted_energies_are_the_compositions_and_the_pairs(molecules):
    data = molecules.plant_molecules(20)
    r, z, t = data.positions[3], data.charges[3], data.energies[3]
    atoms = int((z > 0).sum())
    away = torch.pdist(r[:atoms])
    assert away.min() > 1.83  # no sphere of radius 1 touches an atom
    expected = -3 * z.sum() - 40 * atoms - (20 / away**2).sum()
    torch.testing.assert_close(t, expected)
    assert sorted(torch.cat(data.folds).tolist()) == list(range(20))


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
def test_broken_molecules_get_a_sentence(tmp_path, molecules, arrays, change, sentence):
    np.savez(tmp_path / "good.npz", **arrays)
    assert molecules.read_qm7(tmp_path / "good.npz").charges.shape == (10, 4)
    content = {k: v for k, v in (arrays | change).items() if v is not None}
    np.savez(tmp_path / "qm7.npz", **content)
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        molecules.read_qm7(tmp_path / "qm7.npz")
    assert "quantum-machine.org" in caught.value.remedy


def test_missing_and_unreadable_files_get_a_sentence(tmp_path, molecules):
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 not the rest of it")
    (tmp_path / "text.npz").write_text("R Z T P")
    for name in ("none.npz", "torn.npz", "text.npz"):
        with pytest.raises(InputError, match=f"the QM7 molecules in .*{name}; found .+ What to"):
            molecules.read_qm7(tmp_path / name)


def test_no_data_is_said_and_not_a_traceback():
    done = run()
    assert done.returncode == 2
    assert "try --quick" in done.stderr
    assert "Traceback" not in done.stderr
