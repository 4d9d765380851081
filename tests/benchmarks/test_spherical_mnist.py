"""Spherical MNIST: the files, the trainings that go on after a kill, the tables and plots."""

import gzip
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import spherical_mnist
import torch
from mnist import figures, report
from mnist.data import FILES, load_digits, read_idx
from mnist.networks import LARGER, build
from mnist.schedule import one_cycle
from mnist.training import Options, Trainer, make_job, train
from safetensors.torch import load_file

from bids_gevnet.errors import InputError
from bids_gevnet.learn.train.distributed import Processes, StopRequest
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.nn.gevnet import count_parameters
from bids_gevnet.nn.registry import networks
from bids_gevnet.sphere.icosphere_grid import icosphere

SCRIPT = Path(spherical_mnist.__file__)
SMALL = "gevnet-mnist-2layer"


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes(), 1))


def draw(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Discs whose size is the label's, with some noise: invariant under rotation."""
    rows, columns = np.mgrid[:28, :28] - 13.5
    discs = np.hypot(rows, columns)[None] < 2 + labels[:, None, None]
    return np.clip(200 * discs + rng.integers(0, 55, (len(labels), 28, 28)), 0, 255)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnist")
    rng = np.random.default_rng(0)
    for split, n in (("train", 320), ("test", 100)):
        labels = rng.permutation(np.arange(n) % 10)
        for name, values in zip(FILES[split], (draw(labels, rng), labels), strict=True):
            write_idx(folder / f"{name}.gz", values)
    return folder


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def run(*arguments: object) -> int:
    return spherical_mnist.main(["--threads", "1", *map(str, arguments)])


def train_here(options: Options, files: Path, folder: Path) -> dict:
    progress = TrainingProgress(1, active=False)
    return train(make_job(options, files, folder), Processes(), StopRequest(), progress)


def test_quick_mode_trains_both_networks_and_an_ablation_pair(
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = ["--data", files, "--folder", tmp_path, "--quick"]
    assert run(*command) == 0
    printed = capsys.readouterr().out
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    counts = {r["options"]["network"]: r["parameters"] for r in results}
    assert counts == {
        "gevnet-mnist": 31_336,
        "genet-mnist": 45_532,
        "gevnet-mnist-2layer": 804,
        "genet-mnist-2layer": 824,
    }
    # NR is tested twice, R once; the table has all three columns and the paper's beside them.
    rows = re.findall(r"\| gevnet-mnist \| 31,336 \|.*", printed)
    assert len(rows) == 1
    assert "not run" not in rows[0]
    assert "| gevnet-mnist | 31k | the paper | 98.02 | 96.91 | 97.43 |" in printed
    assert "[6/6]" in caplog.text
    assert run(*command) == 0
    assert capsys.readouterr().out == printed
    assert caplog.text.count("already trained") == 6


def test_killed_training_ends_with_the_same_weights(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kill -9 between two checkpoints: what was lost is done again, bit by bit."""
    command = ["--data", files, "--networks", SMALL, "--train", "R", "--batch-size", 4]
    command += ["--train-images", 320, "--test-images", 20, "--epochs", 2]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(*command, "--folder", whole) == 0
    arguments = [sys.executable, SCRIPT, "--threads", 1, *command, "--folder", broken]
    with subprocess.Popen([*map(str, arguments)], stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 300
        while not list(broken.glob("*/checkpoint.safetensors")):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not list(broken.glob("*/result.json"))
    assert run(*command, "--folder", broken) == 0
    assert "resumed at step" in caplog.text
    one, other = (load_file(next(f.glob("*/model.safetensors"))) for f in (whole, broken))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    results = [json.loads(next(f.glob("*/result.json")).read_text()) for f in (whole, broken)]
    for what in ("accuracy", "curve", "trace"):
        assert results[0][what] == results[1][what]


def test_two_processes_train_the_same_network(files: Path, tmp_path: Path) -> None:
    options = ["--data", files, "--networks", SMALL, "--train", "NR"]
    options += ["--train-images", 64, "--test-images", 20, "--batch-size", 16, "--epochs", 1]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(*options, "--folder", one) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr"]
    command += ["127.0.0.1", "--nproc-per-node", "2", str(SCRIPT), "--threads", "1"]
    done = subprocess.run(
        [*command, *map(str, options), "--folder", str(two)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "BIDS_GEVNET_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [load_file(next(folder.glob("*/model.safetensors"))) for folder in (one, two)]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-3, atol=1e-4)
    assert json.loads(next(two.glob("*/result.json")).read_text())["processes"] == 2


def test_it_learns_and_shuffled_labels_do_not(files: Path, tmp_path: Path) -> None:
    """Discs of ten sizes, rotated or not, are told apart; with random labels nothing is."""
    options = Options(network=SMALL, epochs=8, batch_size=16, test_images=100, rotated=True)
    assert train_here(options, files, tmp_path / "true")["accuracy"]["R"] > 0.5
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    for names in FILES.values():
        for name in names:
            (shuffled / f"{name}.gz").write_bytes((files / f"{name}.gz").read_bytes())
    labels = read_idx(files, FILES["train"][1])
    write_idx(shuffled / f"{FILES['train'][1]}.gz", np.random.default_rng(1).permutation(labels))
    assert train_here(options, shuffled, tmp_path / "control")["accuracy"]["R"] < 0.3


@pytest.mark.parametrize("name", LARGER)
def test_larger_networks_are_larger_and_keep_to_58000_parameters(name: str) -> None:
    network = build(name, level=3, samples=7)
    paper = build("gevnet-mnist", level=3, samples=7)
    assert count_parameters(paper) < count_parameters(network) <= 58_000
    assert network(torch.zeros(2, 1, icosphere(3).n_points)).shape == (2, 10)


def test_epochs_are_permutations_that_follow_from_the_seed(files: Path, tmp_path: Path) -> None:
    job = make_job(Options(network=SMALL, train_images=50), files, tmp_path)
    trainer = Trainer(job, Processes())
    first, second = trainer.plan(0), trainer.plan(1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert trainer.plan(0) == first


def test_rate_of_one_cycle() -> None:
    rates = [one_cycle(t) for t in np.linspace(0, 1, 101)]
    assert rates[0] == pytest.approx(0.04)
    assert max(rates) == rates[25] == 1
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert np.all(np.diff(rates[:26]) > 0)
    assert np.all(np.diff(rates[25:]) < 0)


def test_rotated_digits_keep_their_rotation_and_their_mass(files: Path) -> None:
    digits = load_digits(files, "test", level=3, edge=110, blur=0.8)
    some = digits.first(7)
    np.testing.assert_array_equal(
        some.signals([2, 5], rotated=True), digits.signals([2, 5], rotated=True)
    )
    still, turned = (digits.signals(range(20), rotated=r)[:, 0] for r in (False, True))
    assert still.shape == (20, icosphere(3).n_points)
    # A rotation moves the signal: its integral over the sphere stays, to the grid's precision.
    weights = icosphere(3).areas
    np.testing.assert_allclose(turned @ weights, still @ weights, rtol=0.03)
    assert np.abs(turned - still).max() > 1
    # The file of the other split has other rotations.
    other = load_digits(files, "train", level=3, edge=110, blur=0.8)
    assert np.abs(other.rotations[:20] - digits.rotations[:20]).max() > 0.1


def test_missing_files_are_asked_for_by_name_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--data", tmp_path, "--folder", tmp_path / "runs", "--quick") == 2
    said = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in said
    assert "https://" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"not gzip at all", "gzip"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"), "00 00 0d"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"), "3 values for the shape"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abcde")[:-9], "Compressed|end-of-stream"),
        (b"", "nothing|gzip"),
    ],
    # Named, since gzip writes the time into its header and every process must see the same tests.
    ids=["plain text", "a type of value", "too few values", "cut short", "empty"],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "labels.gz").write_bytes(content)
    with pytest.raises(InputError, match=found):
        read_idx(tmp_path, "labels")


def test_images_and_labels_must_fit(files: Path, tmp_path: Path) -> None:
    for name in FILES["train"]:
        (tmp_path / f"{name}.gz").write_bytes((files / f"{name}.gz").read_bytes())
    write_idx(tmp_path / f"{FILES['train'][1]}.gz", np.zeros(7))
    with pytest.raises(InputError, match="as many labels"):
        load_digits(tmp_path, "train", level=3, edge=110, blur=0)


def result(network: str, accuracy: dict[str, float], **options: object) -> dict:
    row = {"epoch": 1, "train_loss": 0.5, "held_out_accuracy": 0.9}
    return {
        "accuracy": accuracy,
        "commit": "abc1234",
        "curve": [row, row | {"epoch": 2, "train_loss": 0.1}],
        "options": asdict(Options(network=network, **options)),
        "parameters": networks()[network].count_parameters()["total"],
        "trace": [
            [0, 50, 100.0, 20.0, 50.0],
            [0, 80, 115.0, 45.0, 80.0],
            [1, 50, 5.0, 49.0, 50.0],
        ],
        "testing_seconds": 60.0,
        "training_seconds": 600.0,
    }


@pytest.fixture
def groups(tmp_path: Path) -> list[report.Group]:
    found = [
        result("gevnet-mnist", {"NR": 0.97, "R": 0.96}, seed=0),
        result("gevnet-mnist", {"NR": 0.99, "R": 0.98}, seed=1),
        result("gevnet-mnist-2layer", {"NR": 0.75, "R": 0.7}),
        result("genet-mnist-2layer", {"NR": 0.5, "R": 0.4}),
    ]
    for number, one in enumerate(found):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_text(json.dumps(one))
    return report.collect(tmp_path)


def test_tables_have_means_spreads_and_gaps(groups: list[report.Group]) -> None:
    text = "\n".join(report.tables(groups))
    row = re.search(r"\| gevnet-mnist \| 31,336 \|.*", text).group()
    assert "98.00 ± 1.41 (2) | 97.00 ± 1.41 (2) | not run |" in row
    assert "| 2 | 1 | 1-2v-2 | 804 | 25.00 | 1-2v-4 | 824 | 50.00 |" in text
    assert text.count("| 10.0 + 1.0 min |") == 2
    assert "--networks gevnet-mnist --train NR --seeds 0 1" in text


def test_curve_is_of_what_came_between_checkpoints() -> None:
    trace = result("gevnet-mnist-2layer", {})["trace"]
    expected = [(0.05, 2.0, 60.0), (0.08, 0.5, 100 / 6), (0.13, 0.1, 2.0)]
    np.testing.assert_allclose(figures.between_checkpoints(trace), expected)


def test_figures_are_the_same_bytes_every_time(groups: list[report.Group], tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        figures.draw_ablation(report.ablation_points(groups[1:]), tmp_path / f"{name}.svg")
        figures.draw_curves({"gevnet": groups[0].results}, tmp_path / f"{name}2.svg")
        contents.append([(tmp_path / f"{name}{k}.svg").read_bytes() for k in ("", "2")])
    assert contents[0] == contents[1]
    assert b"second order" in contents[0][0]
