"""What is cleaned follows from the settings, the size of a run and its sidecar."""

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.records import DiffusionRun
from bids_gevnet.dwi.phase_encoding import PhaseEncoding
from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.report.cleaning_methods import describe_denoising, describe_unringing
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.cleaning_plan import plan_bias, plan_cleaning
from bids_gevnet.workflows.tools import choose_tools


@pytest.fixture
def make_run(tmp_path):
    def make(shape=(8, 8, 8, 20), entities=None, **metadata):
        path = tmp_path / "sub-1_dwi.nii"
        nib.save(nib.Nifti1Image(np.zeros(shape, np.uint8), np.eye(4)), path)
        return DiffusionRun(
            subject="1",
            session=None,
            entities={"sub": "1"} | (entities or {}),
            image=path,
            bval=path,
            bvec=path,
            metadata=metadata,
            encoding=PhaseEncoding("j", source="stated", is_guess=False),
        )

    return make


def test_enough_volumes_are_denoised(make_run):
    plan = plan_cleaning(make_run(PartialFourier=0.75), PreprocessingSettings())
    assert plan.denoising == "mppca"
    assert plan.partial_fourier == 0.75


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": (8, 8, 8, 7)}, "7 volumes"),
        ({"shape": (8, 8, 2, 20)}, "does not fit into 2"),
        ({"AcquisitionMatrixPE": 110, "ReconMatrixPE": 128}, "from 110 to 128"),
        ({"entities": {"part": "phase"}}, "part-phase"),
    ],
)
def test_what_does_not_fit_is_left_out_with_a_reason(make_run, changes, reason):
    plan = plan_cleaning(make_run(**changes), PreprocessingSettings())
    assert plan.denoising == "none"
    assert reason in plan.denoising_reason


def test_ringing_stays_where_the_scanner_interpolated_or_mppca_ran(make_run):
    interpolated = make_run(AcquisitionMatrixPE=110, ReconMatrixPE=128)
    assert not plan_cleaning(interpolated, PreprocessingSettings()).unringing
    run = make_run(AcquisitionMatrixPE=128, ReconMatrixPE=128)
    assert not plan_cleaning(run, PreprocessingSettings()).unringing
    assert plan_cleaning(run, PreprocessingSettings(denoise="none")).unringing
    partial = plan_cleaning(make_run(PartialFourier=0.75), PreprocessingSettings(denoise="none"))
    assert "75%" in partial.unringing_reason
    assert not partial.unringing
    assert plan_cleaning(run, PreprocessingSettings(unring="on")).unringing
    assert not plan_cleaning(run, PreprocessingSettings(denoise="none", unring="none")).unringing


def test_what_was_switched_off_says_by_which_option(make_run):
    off = PreprocessingSettings(denoise="none", unring="none", bias_correct="none")
    plan = plan_cleaning(make_run(PartialFourier=0.75), off)
    assert describe_denoising(plan) == "none: --denoise none"
    assert describe_unringing(plan) == "not removed: --unring none"
    assert plan_bias(make_run(), off).reason == "--bias-correct none"


def test_the_bias_field_is_corrected_where_that_is_asked_for(make_run):
    plan = plan_bias(make_run(), PreprocessingSettings())
    assert plan.corrected is False
    assert "S/b0 and tensors stay the same" in plan.reason
    asked = plan_bias(make_run(), PreprocessingSettings(bias_correct="on"))
    assert (asked.corrected, asked.reason) == (True, "")


@pytest.mark.parametrize("value", ["often", None, True, float("nan"), [0.75], -1])
def test_sidecars_may_hold_anything(make_run, value):
    run = make_run(PartialFourier=value, AcquisitionMatrixPE=value, ReconMatrixPE=value)
    assert plan_cleaning(run, PreprocessingSettings()).partial_fourier is None


def test_mppca_that_cannot_run_is_refused(make_run):
    with pytest.raises(ParticipantError, match="--denoise patch2self or none"):
        plan_cleaning(make_run(shape=(8, 8, 2, 20)), PreprocessingSettings(denoise="mppca"))


def test_a_field_from_the_t1w_needs_the_model_based_correction():
    with pytest.raises(InputError, match="--correction model"):
        choose_tools(PreprocessingSettings(correction="ants", use_syn_sdc=True))
