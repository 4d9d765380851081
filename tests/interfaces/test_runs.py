"""Joining runs: those that disagree are kept apart, or refused by name where nobody can tell."""

import numpy as np
import pytest
from bundles import bundles

from bids_gevnet.dwi.conform import conform
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import JoinFacts
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.runs import JoinRuns
from bids_gevnet.interfaces.series import Series, read_facts, read_series, write_series
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
    interface = JoinRuns(
        images=images,
        gradients=gradients,
        confounds=confounds,
        names=names,
        old_to_new=[[[number]] for number in range(len(runs))],
    )
    return interface.run(cwd=str(folder)).outputs


@pytest.fixture(scope="module")
def write_bundles(tmp_path_factory):
    data, affine, bvals, gradients = bundles()

    def write(change):
        folder = tmp_path_factory.mktemp("bundles")
        write_confounds(folder / "confounds.tsv", np.zeros((len(bvals), 6)))
        paths = write_series(folder, Series(data, affine, bvals, gradients @ change))
        return *map(str, paths), str(folder / "confounds.tsv")

    return write


@pytest.mark.parametrize("wrong_first", [False, True])
def test_the_run_whose_table_fits_is_used(write_bundles, tmp_path, wrong_first):
    changes = [FLIP_Z, np.eye(3)] if wrong_first else [np.eye(3), FLIP_Z]
    runs = [write_bundles(change) for change in changes]
    outputs = join(runs, tmp_path)
    good = int(wrong_first)
    assert outputs.kept == [good]
    assert outputs.image == runs[good][0]
    assert outputs.old_to_new == [[good]]
    facts = read_facts(outputs.facts, JoinFacts)
    assert facts.runs == 1
    (left_out,) = facts.left_out
    assert left_out.name == f"sub-01_run-{2 - good}_dwi"
    assert "gradient table looks wrong" in left_out.reason
    alone = join([runs[good]], tmp_path)
    np.testing.assert_array_equal(
        read_series(outputs.native, outputs.gradients).bvecs_ras,
        read_series(alone.native, alone.gradients).bvecs_ras,
    )


def test_b0s_of_different_heads_are_not_joined(write_bundles, tmp_path):
    data, affine, bvals, gradients = bundles()
    folder = tmp_path / "other"
    folder.mkdir()
    smooth = simulate(voxel_mm=8, directions=12, seed=1)
    other = np.full(data.shape, 20.0, np.float32)
    grid = tuple(min(a, b) for a, b in zip(data.shape[:3], smooth.data.shape[:3], strict=True))
    part = tuple(slice(0, n) for n in grid)
    other[part] = smooth.data[part][..., : data.shape[3]]
    write_confounds(folder / "confounds.tsv", np.zeros((len(bvals), 6)))
    paths = write_series(folder, Series(other, affine, bvals, gradients))
    strange = (*map(str, paths), str(folder / "confounds.tsv"))
    facts = read_facts(join([strange, write_bundles(np.eye(3))], tmp_path).facts, JoinFacts)
    assert [run.name for run in facts.left_out] == ["sub-01_run-1_dwi"]
    assert "correlation" in facts.left_out[0].reason


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


def test_runs_that_eddy_has_aligned_are_not_moved(write_run, tmp_path):
    runs = [write_run(np.eye(3))[:3], write_run(-np.eye(3))[:3]]
    images, gradients, confounds = (list(column) for column in zip(*runs, strict=True))
    outputs = (
        JoinRuns(
            images=images,
            gradients=gradients,
            confounds=confounds,
            names=["sub-01_run-1_dwi", "sub-01_run-2_dwi"],
            aligned=True,
        )
        .run(cwd=str(tmp_path))
        .outputs
    )
    facts = read_facts(outputs.facts, JoinFacts)
    assert (facts.runs, facts.apart_mm) == (2, ())
    assert facts.angles_deg[0] < 5
    whole = np.concatenate([read_series(*run[:2]).data for run in runs], axis=3)
    np.testing.assert_array_equal(read_series(outputs.native, outputs.gradients).data, whole)
