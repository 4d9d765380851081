"""Model folders: what is written comes back, what is hostile is refused and never run."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.errors import InputError
from bids_gevnet.learn.models.files import build_network, load_model, read_card
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.jobs import TrainJob
from bids_gevnet.learn.train.outputs import read_held_out


@pytest.fixture
def folder(trained: TrainJob, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(trained.model_dir, copy)
    return copy


def test_loaded_model_scores_as_the_trained_one(trained: TrainJob, folder: Path) -> None:
    network, card, gains = load_model(folder)
    reader = ScanReader(trained.testing, gains)
    scores = read_held_out(folder)
    with torch.no_grad():
        for index, scan in enumerate(trained.testing):
            now = network(*reader.single(index))[0].numpy()
            np.testing.assert_allclose(now, scores[scan.scan], atol=1e-5)
    assert card.labels == ("AD", "PD")
    assert card.participants == tuple(sorted({s.participant for s in trained.training}))


def test_a_model_keeps_its_strides(make_jobs: Any, train_here: Any, tmp_path: Path) -> None:
    job = make_jobs(tmp_path, strides=(1, 1, 2, 1))[0]
    assert job.options.strides == (1, 1, 2, 1)
    train_here(job)
    network, card, gains = load_model(Path(job.model_dir))
    assert card.strides == (1, 1, 2, 1)
    assert network.stride == 2
    scan = job.testing[0]
    with torch.no_grad():
        now = network(*ScanReader(job.testing, gains).single(0))[0].numpy()
    np.testing.assert_allclose(now, read_held_out(Path(job.model_dir))[scan.scan], atol=1e-5)


def test_a_model_without_strides_has_those_of_the_paper(folder: Path) -> None:
    path = folder / "model.json"
    content = json.loads(path.read_text())
    del content["strides"], content["files"]  # as an earlier version wrote it
    path.write_text(json.dumps(content))
    assert load_model(folder)[0].stride == 4


def test_folder_has_what_the_design_lists(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "model.json", "harmonisation.npz", "environment.txt"} <= names
    assert "torch " in (folder / "environment.txt").read_text()


def vouch_for_files(folder: Path) -> None:
    """Make the card say that all files are as they were written, as a forger would."""
    path = folder / "model.json"
    content = json.loads(path.read_text())
    content["files"] = {name: hash_file(folder / name) for name in content["files"]}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["model.safetensors", "harmonisation.npz"])
def test_a_flipped_bit_or_a_missing_file_is_named(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} missing or changed"):
        load_model(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} missing or changed"):
        load_model(folder)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('code of the file was run')",))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 100, pickle.dumps(Evil()), b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"],
)
def test_hostile_weights_are_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    vouch_for_files(folder)
    with pytest.raises(InputError, match="weights of ckn2"):
        load_model(folder)


def test_pickled_weights_under_the_right_name_are_refused(folder: Path) -> None:
    torch.save({"evil": Evil()}, folder / "model.safetensors")
    vouch_for_files(folder)
    with pytest.raises(InputError, match="weights of ckn2"):
        load_model(folder)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["head.0.weight"] = torch.zeros(3, 3)
    save_file(weights, folder / "model.safetensors")
    vouch_for_files(folder)
    with pytest.raises(InputError, match="size mismatch"):
        load_model(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"network": "os.system"},
        {"network": "gevnet-mnist"},
        {"network": ["ckn2"]},
        {"labels": ["one"]},
        {"labels": "AD"},
        {"labels": [1, 2]},
        {"nside": 2**40},
        {"nside": True},
        {"shape": [10**9] * 3},
        {"shape": [8, 9]},
        {"temperature": 0},
        {"temperature": float("nan")},
        {"affine": [[1.0]]},
        {"participants": [["nested"]]},
        {"rish_low": []},
        {"harmonised": "yes"},
        {"strides": [2, 1]},
        {"strides": [2, 1, 10**9, 1]},
        {"unknown": 1},
        {"files": {"../../secret": ""}},
        {"files": {"model.safetensors": 1}},
    ],
)
def test_impossible_cards_are_refused(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match="a model written by bids_gevnet"):
        load_model(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"format": "bids_gevnet model 1"}']
)
def test_broken_cards_are_refused(folder: Path, text: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(InputError, match="a model written by bids_gevnet"):
        read_card(folder)


def test_missing_folder_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="models/<task>/final"):
        load_model(tmp_path / "nowhere")


def test_hostile_harmonisation_is_refused(folder: Path) -> None:
    (folder / "harmonisation.npz").write_bytes(pickle.dumps(Evil()))
    vouch_for_files(folder)
    with pytest.raises(InputError, match="gains written by bids_gevnet"):
        load_model(folder)


def test_unknown_network_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"ckn2\+gevnet"):
        build_network("transformer", 2, 4)
