import os
from pathlib import Path

import numpy as np
import pytest

from bids_gevnet.dwi.fsl import (
    EddyBinary,
    ProgramOptions,
    bet_arguments,
    covers_half_a_sphere,
    eddy_arguments,
    find_eddy,
    find_tool,
    fsl_environment,
    parse_eddy,
    parse_help,
    schedule_folder,
    topup_arguments,
    wants_subcommand,
)
from bids_gevnet.dwi.motion import rigid_parameters
from bids_gevnet.errors import ParticipantError


@pytest.fixture
def make_path(tmp_path):
    """Return a function that writes executables into folders and gives the PATH of them."""

    def make(*folders):
        for number, names in enumerate(folders):
            (tmp_path / str(number)).mkdir()
            for name in names:
                program = tmp_path / str(number) / name
                program.write_text("#!/bin/sh\n")
                program.chmod(0o755)
        return os.pathsep.join(str(tmp_path / str(n)) for n in range(len(folders)))

    return make


class TestFindEddy:
    @pytest.mark.parametrize("name", ["eddy", "eddy_cpu", "eddy_openmp"])
    def test_any_name(self, make_path, name):
        found = find_eddy(make_path([], [name]))
        assert found is not None
        assert found.path.name == name
        assert not found.uses_gpu

    def test_newest_cuda_when_there_is_a_gpu(self, make_path):
        path = make_path(["eddy", "eddy_cuda9.1", "eddy_cuda11.0", "eddy_cuda10.2", "eddy_cpu"])
        assert find_eddy(path, gpu=True) == EddyBinary(Path(path) / "eddy_cuda11.0", uses_gpu=True)

    def test_no_cuda_without_a_gpu(self, make_path):
        path = make_path(["eddy_cuda11.0", "eddy", "eddy_cpu"])
        found = find_eddy(path)
        assert found is not None
        assert found.path.name == "eddy_cpu"

    def test_only_cuda_without_a_gpu_is_nothing(self, make_path):
        assert find_eddy(make_path(["eddy_cuda11.0"])) is None

    def test_relatives_are_not_eddy(self, make_path):
        assert find_eddy(make_path(["eddy_quad", "eddy_combine", "teddy", "eddy.txt"])) is None

    def test_not_executable_or_missing_folder(self, make_path, tmp_path):
        path = make_path(["eddy"])
        (tmp_path / "0" / "eddy").chmod(0o644)
        assert find_eddy(path + os.pathsep + str(tmp_path / "nowhere")) is None

    def test_first_on_the_path_wins(self, make_path):
        found = find_eddy(make_path(["eddy_cpu"], ["eddy_cpu"]))
        assert found is not None
        assert found.path.parent.name == "0"

    def test_other_tools(self, make_path):
        path = make_path(["bet2"], ["bet"])
        assert find_tool("bet", path) == Path(path.split(os.pathsep)[1]) / "bet"
        assert find_tool("topup", path) is None


FILES = {
    name: Path(f"/data/with space/{name}")
    for name in ("data", "mask", "bvals", "bvecs", "acqp", "index", "out_base")
}


ALL = ProgramOptions(frozenset({"repol", "data_is_shelled", "initrand", "slm", "nthr"}))


class TestHelp:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("\t--imain\tFile containing all the images\n\t--nthr\n", {"imain", "nthr"}),
            ("  -v,--verbose  say more\n --out=<name>", {"verbose", "out"}),
            ("command not found", set()),
            ("dashed--word and a---b", set()),
        ],
    )
    def test_names_of_long_options(self, text, names):
        assert parse_help(text).names == names

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("Usage: eddy --monsoon\n--imain ...\n--slm for diffusion", False),
            ("eddy diffusion [options]\neddy fmri [options]\n--imain", True),
            ("First argument must be diffusion or fmri", True),
            ("", False),
        ],
    )
    def test_first_argument(self, text, wanted):
        assert wants_subcommand(text) is wanted

    def test_schedules_lie_in_fsldir_or_beside_the_program(self):
        program = Path("/opt/fsl/bin/topup")
        assert schedule_folder({}, program) == Path("/opt/fsl/etc/flirtsch")
        assert schedule_folder({"FSLDIR": "/x"}, program) == Path("/x/etc/flirtsch")


class TestHalfASphere:
    def test_opposite_directions_make_it_whole(self):
        rng = np.random.default_rng(7)
        half = rng.normal(size=(30, 3))
        half[:, 2] = np.abs(half[:, 2])
        assert covers_half_a_sphere(half)
        assert not covers_half_a_sphere(np.concatenate([half, -half]))

    def test_turning_changes_nothing_and_b0s_do_not_count(self):
        rng = np.random.default_rng(7)
        half = rng.normal(size=(30, 3))
        half[:, 2] = np.abs(half[:, 2])
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        assert covers_half_a_sphere(np.concatenate([half @ turn, np.zeros((200, 3))]))
        assert not covers_half_a_sphere(np.zeros((5, 3)))


class TestArguments:
    def test_eddy(self):
        arguments = eddy_arguments(
            EddyBinary(Path("/fsl/eddy_cpu"), uses_gpu=False),
            **FILES,
            options=ALL,
            topup_base=Path("/tp"),
            threads=4,
        )
        assert arguments[0] == "/fsl/eddy_cpu"
        assert "--imain=/data/with space/data" in arguments
        assert {"--repol", "--data_is_shelled", "--topup=/tp", "--nthr=4"} <= set(arguments)
        assert any(argument.startswith("--initrand=") for argument in arguments)

    def test_gpu_builds_take_one_thread(self):
        gpu = EddyBinary(Path("/fsl/eddy_cuda11.0"), uses_gpu=True)
        arguments = eddy_arguments(gpu, **FILES, options=ALL, threads=8)
        assert not any(argument.startswith("--nthr") for argument in arguments)
        assert gpu.threads(8) == 1

    def test_nothing_that_was_not_asked_for(self):
        arguments = eddy_arguments(EddyBinary(Path("/e"), uses_gpu=False), **FILES, options=ALL)
        assert not any(word.startswith(("--topup", "--slm", "--nthr")) for word in arguments)

    @pytest.mark.parametrize("missing", sorted(ALL.names))
    def test_nothing_that_this_eddy_does_not_have(self, missing):
        binary = EddyBinary(Path("/e"), uses_gpu=False)
        options = ProgramOptions(ALL.names - {missing})
        settings = {"threads": 2, "linear_second_level": True}
        full = eddy_arguments(binary, **FILES, **settings, options=ALL)
        less = eddy_arguments(binary, **FILES, **settings, options=options)
        assert [word for word in full if not word.startswith(f"--{missing}")] == less
        assert len(less) == len(full) - 1

    def test_subcommand_comes_first(self):
        binary = EddyBinary(Path("/e"), uses_gpu=False)
        options = ProgramOptions(ALL.names, "diffusion")
        assert eddy_arguments(binary, **FILES, options=options)[:2] == ["/e", "diffusion"]

    @pytest.mark.parametrize(
        ("shape", "has_odd_schedule", "expected"),
        [
            ((72, 72, 40), True, ["--config=b02b0.cnf"]),
            ((72, 72, 39), True, ["--config=b02b0_1.cnf"]),
            ((72, 72, 39), False, ["--config=b02b0.cnf", "--subsamp=1"]),
        ],
    )
    def test_topup_with_odd_slices(self, shape, has_odd_schedule, expected):
        arguments = topup_arguments(
            *(Path(name) for name in ("topup", "b0s", "acqp", "out")),
            shape,
            options=ALL,
            has_odd_schedule=has_odd_schedule,
        )
        assert [w for w in arguments if w.startswith(("--config", "--subsamp"))] == expected

    def test_bet_makes_a_mask_of_one_volume(self):
        arguments = bet_arguments(Path("bet"), Path("b0.nii.gz"), Path("brain"))
        assert arguments == ["bet", "b0.nii.gz", "brain", "-m", "-n", "-f", "0.3"]

    def test_environment(self):
        assert fsl_environment({"A": "b", "FSLOUTPUTTYPE": "NIFTI"}) == {
            "A": "b",
            "FSLOUTPUTTYPE": "NIFTI_GZ",
        }


class TestParse:
    parameters = "1 2 3 0.01 0.02 0.03 7 8\n4 5 6 0.04 0.05 0.06 7 8\n"
    bvecs = "0 1\n0 0\n0 0\n"

    def test_numbers(self):
        outliers = "One row per scan, one column per slice. Outlier: 1\n0 0 0\n1 0 1\n"
        found = parse_eddy(self.parameters, self.bvecs, outliers, 2)
        np.testing.assert_allclose(found.translations_mm, [[1, 2, 3], [4, 5, 6]])
        np.testing.assert_allclose(found.rotations_rad[1], [0.04, 0.05, 0.06])
        np.testing.assert_allclose(found.bvecs_fsl, [[0, 0, 0], [1, 0, 0]])
        assert found.outlier_slices.tolist() == [0, 2]

    def test_shift_without_turn_is_undone_and_x_runs_to_the_right(self):
        found = parse_eddy("1 2 3 0 0 0\n0 0 0 0 0 0\n", self.bvecs, None, 2)
        np.testing.assert_allclose(found.transforms[0, :3, 3], [1, -2, -3])
        np.testing.assert_array_equal(found.transforms[1], np.eye(4))

    def test_motion_that_eddy_found_on_a_phantom_is_undone(self):
        """What eddy of FSL 6 wrote for b0s of which each was moved by 2 mm or turned by 2.5 deg.

        The head was moved along, and turned counterclockwise about, x, y and z of world RAS, in
        voxels of 8 mm. Confounds lead from the volume back to the reference.
        """
        written = """\
            -1.928  0.031 -0.007  0.0004 -0.0022 -0.0007
             0.001  1.913 -0.020 -0.0014  0.0003 -0.0004
            -0.008  0.054  1.961  0.0018  0.0004  0.0004
            -0.005  0.114  0.033 -0.0372 -0.0003  0.0000
             0.089 -0.008 -0.077  0.0006  0.0343 -0.0019
             0.044  0.087  0.001 -0.0007 -0.0019  0.0344
        """
        bvecs = "\n".join(["0 " * 6] * 3)
        found = rigid_parameters(parse_eddy(written, bvecs, None, 6).transforms)
        angle = np.radians(2.5)
        np.testing.assert_allclose(found[:, :3], -np.eye(6)[:, :3] * 2.0, atol=0.15)
        np.testing.assert_allclose(found[:, 3:], -np.eye(6)[:, 3:] * angle, atol=0.25 * angle)

    def test_displacement_by_eddy_currents(self):
        # 20 Hz everywhere is one voxel at 50 ms; 1 Hz/mm along x is 50 Hz at 50 mm.
        rows = np.zeros((2, 16))
        rows[0, 15], rows[1, 6] = 20, 1
        text = "\n".join(" ".join(map(str, row)) for row in rows)
        terms = parse_eddy(text, self.bvecs, None, 2).eddy_terms_mm(np.array([0.15, 0.15]))
        np.testing.assert_allclose(terms[:, :2], [[3.0, 0], [0, 50 * 0.05 * 3]])
        assert not terms[:, 2:].any()
        assert parse_eddy("0 0 0 0 0 0\n" * 2, self.bvecs, None, 2).field_hz is None

    def test_without_outlier_map(self):
        assert parse_eddy(self.parameters, self.bvecs, None, 2).outlier_slices.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("parameters", "bvecs", "count"),
        [
            (parameters, bvecs, 3),
            ("1 2 3\n4 5 6\n", bvecs, 2),
            (parameters, "0 1\n0 0\n", 2),
            ("1 2 x 4 5 6\n", bvecs, 1),
            ("1 2 3 4 5 6\n1 2\n", bvecs, 2),
            ("", bvecs, 2),
        ],
    )
    def test_broken(self, parameters, bvecs, count):
        with pytest.raises(ParticipantError, match="eddy"):
            parse_eddy(parameters, bvecs, None, count)
