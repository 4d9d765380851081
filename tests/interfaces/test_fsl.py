"""FSL's interfaces against stand-ins that check their arguments and write what FSL would."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from fsl_stubs import write_stub
from scipy.spatial.transform import Rotation

from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import CorrectionFacts, MaskFacts
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.confounds import read_confounds
from bids_gevnet.interfaces.fsl import Bet, Eddy, Topup, run_program
from bids_gevnet.interfaces.series import read_facts, read_gradients, read_mask


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "work dir"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def conformed(dataset, folder):
    return (
        Conform(
            image=str(dataset.dwi(".nii.gz")),
            bval=str(dataset.dwi(".bval")),
            bvec=str(dataset.dwi(".bvec")),
        )
        .run()
        .outputs
    )


@pytest.fixture
def mask(conformed, folder):
    image = nib.load(conformed.image)
    path = folder / "mask.nii"
    nib.save(nib.Nifti1Image(np.ones(image.shape[:3], np.uint8), image.affine), path)
    return str(path)


def calls(stub: Path):
    return [json.loads(line) for line in (stub.parent / "calls.jsonl").read_text().splitlines()]


def test_eddy_turns_files_into_files(dataset, conformed, mask, tmp_path):
    stub = write_stub(tmp_path / "fsl", "eddy_cpu", "eddy")
    outputs = (
        Eddy(
            program=str(stub),
            image=conformed.image,
            gradients=conformed.gradients,
            mask=mask,
            raw_image=str(dataset.dwi(".nii.gz")),
            direction="j-",
            readout_s=0.05,
            num_threads=2,
        )
        .run()
        .outputs
    )
    bvals, bvecs_ras = read_gradients(outputs.gradients)
    before = read_gradients(conformed.gradients)
    np.testing.assert_array_equal(bvals, before[0])
    np.testing.assert_allclose(bvecs_ras, before[1], atol=1e-6)
    table = read_confounds(outputs.confounds)
    assert table["outlier_slices"].tolist() == [0] * 9 + [2]
    np.testing.assert_allclose(table["framewise_displacement"][1:], 0.1, atol=1e-6)
    assert np.isnan(table["framewise_displacement"][0])
    (call,) = calls(stub)
    assert call["acqp"] == [[0, -1, 0, 0.05]]
    assert call["given"]["nthr"] == "2"
    assert "topup" not in call["given"]
    assert read_facts(outputs.facts, CorrectionFacts).susceptibility == "no_opposite_b0"


def test_motion_of_eddy_agrees_with_its_own_rotation_of_gradients(
    dataset, conformed, mask, tmp_path
):
    stub = write_stub(tmp_path / "fsl", "eddy", "eddy")
    np.savetxt(stub.parent / "turns.txt", np.linspace(-0.3, 0.4, 30).reshape(10, 3))
    _, before = read_gradients(conformed.gradients)  # eddy writes into the same folder here
    outputs = (
        Eddy(
            program=str(stub),
            image=conformed.image,
            gradients=conformed.gradients,
            mask=mask,
            raw_image=str(dataset.dwi(".nii.gz")),
            direction="j",
            readout_s=0.05,
        )
        .run()
        .outputs
    )
    table = read_confounds(outputs.confounds)
    # The table holds what leads from a volume to the reference: gradients turn along.
    angles = table[["rot_x", "rot_y", "rot_z"]].to_numpy()
    turns = Rotation.from_euler("xyz", angles)
    _, after = read_gradients(outputs.gradients)
    np.testing.assert_allclose(turns.apply(before), after, atol=1e-5)
    assert np.abs(after - before).max() > 0.1


def test_gpu_build_gets_one_thread(dataset, conformed, mask, tmp_path):
    stub = write_stub(tmp_path / "fsl", "eddy_cuda11.0", "eddy")
    Eddy(
        program=str(stub),
        uses_gpu=True,
        image=conformed.image,
        gradients=conformed.gradients,
        mask=mask,
        raw_image=str(dataset.dwi(".nii.gz")),
        direction="j",
        readout_s=0.05,
        num_threads=8,
    ).run()
    assert "nthr" not in calls(stub)[0]["given"]


@pytest.mark.parametrize(
    ("release", "config", "threads"),
    [("6.0.0", "b02b0.cnf", None), ("6.0.7", "b02b0_1.cnf", "2"), ("coming", "b02b0_1.cnf", "2")],
)
def test_topup_takes_opposite_b0s_and_feeds_eddy(
    dataset, conformed, mask, tmp_path, release, config, threads
):
    topup = write_stub(tmp_path / "fsl" / "bin", "topup", "topup", release)
    eddy = write_stub(tmp_path / "fsl" / "bin", "eddy", "eddy", release)
    raw = nib.load(dataset.dwi(".nii.gz"))
    reverse = tmp_path / "reverse.nii.gz"
    nib.save(nib.Nifti1Image(np.asarray(raw.dataobj)[..., 0], raw.affine), reverse)
    field = (
        Topup(
            program=str(topup),
            images=[str(dataset.dwi(".nii.gz")), str(reverse)],
            bvals=[str(dataset.dwi(".bval")), ""],
            directions=["j", "j-"],
            readout_s=[0.05, 0.05],
            num_threads=2,
        )
        .run()
        .outputs
    )
    corrected = Eddy(
        program=str(eddy),
        image=conformed.image,
        gradients=conformed.gradients,
        mask=mask,
        raw_image=str(dataset.dwi(".nii.gz")),
        direction="j",
        readout_s=0.05,
        topup_base=field.base,
        num_threads=2,
    ).run().outputs  # fmt: skip
    assert read_facts(corrected.facts, CorrectionFacts).susceptibility == "corrected"
    first, second = calls(topup)
    assert first["acqp"] == [[0, 1, 0, 0.05], [0, -1, 0, 0.05]]
    # 7 and 5 voxels cannot be halved: no subsampling, in whichever way the release can.
    assert first["given"]["config"] == config
    assert second["given"]["topup"] == field.base
    assert [call["given"].get("nthr") for call in (first, second)] == [threads, threads]


def test_topup_refuses_b0s_on_another_grid(dataset, folder, tmp_path):
    stub = write_stub(tmp_path / "fsl", "topup", "topup")
    other = tmp_path / "other.nii.gz"
    nib.save(nib.Nifti1Image(np.ones((3, 3, 3), np.int16), np.eye(4)), other)
    interface = Topup(
        program=str(stub),
        images=[str(dataset.dwi(".nii.gz")), str(other)],
        bvals=[str(dataset.dwi(".bval")), ""],
        directions=["j", "j-"],
        readout_s=[0.05, 0.05],
    )
    with pytest.raises(ParticipantError, match="1 of 2 images"):
        interface.run()


def test_bet_gets_one_volume(conformed, tmp_path):
    stub = write_stub(tmp_path / "fsl", "bet", "bet")
    outputs = (
        Bet(program=str(stub), image=conformed.image, gradients=conformed.gradients).run().outputs
    )
    mask, _ = read_mask(outputs.mask)
    assert mask.dtype == np.bool_
    assert mask.shape == (6, 7, 5)
    # Voxels of 2 mm have 8 microlitres.
    facts = read_facts(outputs.facts, MaskFacts)
    assert facts == MaskFacts(method="bet", volume_ml=round(mask.sum() * 0.008, 1))


def test_a_program_that_fails_is_quoted_and_its_log_named(folder, tmp_path):
    stub = write_stub(tmp_path / "fsl", "eddy", "fail")
    with pytest.raises(ParticipantError, match="exit code 3: no licence") as caught:
        run_program([str(stub)], folder)
    assert "eddy.log" in str(caught.value)
    assert "no licence" in (folder / "eddy.log").read_text()
