"""Joining runs: those with other main directions are refused by name."""

import numpy as np
import pytest

from bids_gevnet.dwi.conform import conform
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import JoinFacts
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.runs import JoinRuns
from bids_gevnet.interfaces.series import Series, read_facts, write_series
from bids_gevnet.phantom import simulate

FLIP_Z = np.diag([1.0, 1.0, -1.0])


@pytest.fixture(scope="module")
def write_run(tmp_path_factory):
    scan = simulate(voxel_mm=5, directions=12, seed=3)
    image = conform(scan.data, scan.affine, scan.bvecs_ras)

    def write(change):
        folder = tmp_path_factory.mktemp("run")
        bvecs = image.bvecs_ras @ change
        write_confounds(folder / "confounds.tsv", np.zeros((len(scan.bvals), 6)))
        paths = write_series(folder, Series(image.data, image.affine, scan.bvals, bvecs))
        return *map(str, paths), str(folder / "confounds.tsv")

    return write


def join(runs, folder):
    images, gradients, confounds = (list(column) for column in zip(*runs, strict=True))
    names = [f"sub-01_run-{number}_dwi" for number in range(1, len(runs) + 1)]
    interface = JoinRuns(images=images, gradients=gradients, confounds=confounds, names=names)
    return interface.run(cwd=str(folder)).outputs


def test_a_flipped_run_is_refused_by_name(write_run, tmp_path):
    right, wrong = write_run(np.eye(3)), write_run(FLIP_Z)
    with pytest.raises(ParticipantError, match="run-1_dwi and sub-01_run-3_dwi") as caught:
        join([right, right, wrong], tmp_path)
    assert "--bids-filter-file" in str(caught.value)


def test_runs_that_agree_are_joined_whatever_their_sign(write_run, tmp_path):
    facts = read_facts(
        join([write_run(np.eye(3)), write_run(-np.eye(3))], tmp_path).facts, JoinFacts
    )
    assert facts.runs == 2
    assert len(facts.angles_deg) == 1
    assert facts.angles_deg[0] < 5
