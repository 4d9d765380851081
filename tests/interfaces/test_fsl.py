"""FSL's interfaces against stand-ins that check their arguments and write what FSL would."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from fsl_stubs import write_stub
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import CorrectionFacts, MaskFacts, ScanFacts
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.confounds import read_confounds
from bids_gevnet.interfaces.fsl import Bet, Eddy
from bids_gevnet.interfaces.fsl_programs import run_program
from bids_gevnet.interfaces.series import (
    Series,
    read_facts,
    read_gradients,
    read_mask,
    write_series,
)
from bids_gevnet.interfaces.topup import Topup
from bids_gevnet.phantom import simulate
from bids_gevnet.report.alerts import collect_alerts
from bids_gevnet.report.scan_files import ScanFiles


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
            images=[conformed.image],
            gradients=[conformed.gradients],
            mask=mask,
            raw_images=[str(dataset.dwi(".nii.gz"))],
            directions=["j-"],
            readout_s=[0.05],
            num_threads=2,
        )
        .run()
        .outputs
    )
    bvals, bvecs_ras = read_gradients(outputs.rotated[0])
    before = read_gradients(conformed.gradients)
    np.testing.assert_array_equal(bvals, before[0])
    np.testing.assert_allclose(bvecs_ras, before[1], atol=1e-6)
    table = read_confounds(outputs.confounds[0])
    assert table["outlier_slices"].tolist() == [0] * 9 + [2]
    np.testing.assert_allclose(table["framewise_displacement"][1:], 0.1, atol=1e-6)
    assert np.isnan(table["framewise_displacement"][0])
    (call,) = calls(stub)
    assert call["acqp"] == [[0, -1, 0, 0.05]]
    assert call["given"]["nthr"] == "2"
    assert "topup" not in call["given"]
    assert read_facts(outputs.facts[0], CorrectionFacts).susceptibility == "no_opposite_b0"


def test_motion_of_eddy_agrees_with_its_own_rotation_of_gradients(
    dataset, conformed, mask, tmp_path
):
    stub = write_stub(tmp_path / "fsl", "eddy", "eddy")
    np.savetxt(stub.parent / "turns.txt", np.linspace(-0.3, 0.4, 30).reshape(10, 3))
    _, before = read_gradients(conformed.gradients)  # eddy writes into the same folder here
    outputs = (
        Eddy(
            program=str(stub),
            images=[conformed.image],
            gradients=[conformed.gradients],
            mask=mask,
            raw_images=[str(dataset.dwi(".nii.gz"))],
            directions=["j"],
            readout_s=[0.05],
        )
        .run()
        .outputs
    )
    table = read_confounds(outputs.confounds[0])
    # The table holds what leads from a volume to the reference: gradients turn along.
    angles = table[["rot_x", "rot_y", "rot_z"]].to_numpy()
    turns = Rotation.from_euler("xyz", angles)
    _, after = read_gradients(outputs.rotated[0])
    np.testing.assert_allclose(turns.apply(before), after, atol=1e-5)
    assert np.abs(after - before).max() > 0.1


@pytest.fixture
def second_run(dataset, conformed, folder):
    """The same run once more, three times as bright and with other directions."""
    image = nib.load(conformed.image)
    data = np.asarray(image.dataobj).astype(np.float32) * 3
    bvals, bvecs_ras = read_gradients(conformed.gradients)
    bright = folder / "second"
    bright.mkdir()
    return write_series(bright, Series(data, image.affine, bvals, -bvecs_ras[:, [1, 0, 2]]))


def test_all_runs_go_into_one_call(dataset, conformed, second_run, mask, tmp_path):
    stub = write_stub(tmp_path / "fsl", "eddy", "eddy")
    first = read_gradients(conformed.gradients)[1]  # eddy writes into the same folder here
    outputs = (
        Eddy(
            program=str(stub),
            images=[conformed.image, str(second_run[0])],
            gradients=[conformed.gradients, str(second_run[1])],
            mask=mask,
            raw_images=[str(dataset.dwi(".nii.gz"))] * 2,
            directions=["j-", "j"],
            readout_s=[0.05, 0.03],
        )
        .run()
        .outputs
    )
    (call,) = calls(stub)
    assert call["acqp"] == [[0, -1, 0, 0.05], [0, 1, 0, 0.03]]
    assert call["index"] == [1] * 10 + [2] * 10
    for path, bvecs_ras in zip(outputs.rotated, (first, -first[:, [1, 0, 2]]), strict=True):
        np.testing.assert_allclose(read_gradients(path)[1], bvecs_ras, atol=1e-6)
    # The stand-in gives back what it got: both runs, equally bright.
    one, other = (np.asarray(nib.load(path).dataobj) for path in outputs.corrected)
    np.testing.assert_allclose(other, one, rtol=1e-5)
    assert [len(read_confounds(path)) for path in outputs.confounds] == [10, 10]
    facts = [read_facts(path, CorrectionFacts) for path in outputs.facts]
    # It moves volume k by 0.1 k mm and replaces two slices of the last one.
    assert [fact.largest_displacement_mm for fact in facts] == pytest.approx([0.9, 1.9])
    assert [fact.outlier_slices for fact in facts] == [0, 2]


@pytest.mark.parametrize("kind", ["eddy", "diverging eddy"])
def test_an_eddy_that_diverges_is_found_out(kind, folder, tmp_path):
    scan = simulate(voxel_mm=5, directions=12, seed=3)
    raw = folder / "raw.nii.gz"
    nib.save(nib.Nifti1Image(scan.data, scan.affine), raw)
    conformed = conform(scan.data, scan.affine, scan.bvecs_ras)
    (folder / "conformed").mkdir()
    image, gradients = write_series(
        folder / "conformed",
        Series(conformed.data, conformed.affine, scan.bvals, conformed.bvecs_ras),
    )
    write_image(
        folder / "mask.nii", brain_mask(conformed.data[..., 0], conformed.affine), conformed.affine
    )
    outputs = (
        Eddy(
            program=str(write_stub(tmp_path / "fsl", "eddy", kind)),
            images=[str(image)],
            gradients=[str(gradients)],
            mask=str(folder / "mask.nii"),
            raw_images=[str(raw)],
            directions=["j"],
            readout_s=[0.05],
        )
        .run()
        .outputs
    )
    facts = ScanFacts(correction=(read_facts(outputs.facts[0], CorrectionFacts),))
    errors = [
        alert.text
        for alert in collect_alerts(ScanFiles(tmp_path, "sub-01", facts), None)
        if alert.level == "error" and "eddy" in alert.text
    ]
    assert len(errors) == (kind != "eddy")
    assert all("--correction model" in text for text in errors)


def test_gpu_build_gets_one_thread(dataset, conformed, mask, tmp_path):
    stub = write_stub(tmp_path / "fsl", "eddy_cuda11.0", "eddy")
    Eddy(
        program=str(stub),
        use_gpu=True,
        images=[conformed.image],
        gradients=[conformed.gradients],
        mask=mask,
        raw_images=[str(dataset.dwi(".nii.gz"))],
        directions=["j"],
        readout_s=[0.05],
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
        images=[conformed.image],
        gradients=[conformed.gradients],
        mask=mask,
        raw_images=[str(dataset.dwi(".nii.gz"))],
        directions=["j"],
        readout_s=[0.05],
        topup_base=field.base,
        field=field.field,
        num_threads=2,
    ).run().outputs  # fmt: skip
    facts = read_facts(corrected.facts[0], CorrectionFacts)
    assert facts.susceptibility == "corrected"
    # 20 Hz are one voxel of 2 mm at 50 ms.
    assert facts.field.largest_mm == pytest.approx(2.0)
    first, second = calls(topup)
    assert first["acqp"] == [[0, 1, 0, 0.05], [0, -1, 0, 0.05]]
    # 7 and 5 voxels cannot be halved: no subsampling, in whichever way the release can.
    assert first["given"]["config"] == config
    assert second["given"]["topup"] == field.base
    assert [call["given"].get("nthr") for call in (first, second)] == [threads, threads]


@pytest.mark.parametrize("opposite", [True, False])
def test_topup_runs_where_an_unknown_encoding_turns_out_to_be_opposite(opposite, folder, tmp_path):
    stub = write_stub(tmp_path / "fsl" / "bin", "topup", "topup")
    scan = simulate(directions=6, voxel_mm=8, reverse_b0=True, seed=5)
    b0 = scan.data[..., 0]
    noise = np.random.default_rng(0).normal(0, 0.02 * b0.max(), b0.shape)
    other = scan.reverse_b0 if opposite else np.abs(b0 + noise)
    for name, image in (("one", b0), ("other", other)):
        nib.save(nib.Nifti1Image(image, scan.affine), folder / f"{name}.nii.gz")
    outputs = (
        Topup(
            program=str(stub),
            images=[str(folder / "one.nii.gz"), str(folder / "other.nii.gz")],
            bvals=["", ""],
            directions=["j", "j"],  # the axis is known, the signs are not
            certain=[True, False],
            readout_s=[0.05, 0.05],
        )
        .run()
        .outputs
    )
    assert [trial["opposite"] for trial in outputs.trials] == [opposite]
    assert bool(outputs.base) == opposite
    assert nib.load(outputs.unwarped).shape[3] == 1 + opposite
    if opposite:
        one, two = calls(stub)[0]["acqp"]
        assert [-x for x in one[:3]] == two[:3]
    else:
        assert not (stub.parent / "calls.jsonl").exists()


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
