"""Phantom cohorts as the participant level would leave them, for the group level's benchmarks.

Heads lie still and are brought to the template by their true pose, so that neither correction nor
registration is part of what is measured later; the samples on the sphere are made as the
participant level makes them. A cohort is kept in its folder: what is there is not made again, and
a folder with another cohort is refused.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bids_gevnet.bids.derivatives import DerivativeNames
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.sampling import sample_shells
from bids_gevnet.errors import InputError
from bids_gevnet.interfaces.sphere import SAMPLE_STEP
from bids_gevnet.interfaces.template_grid import output_grid
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.simulation import simulate_participant
from bids_gevnet.settings import ALL_SHELLS, PreprocessingSettings, ShellChoice

GROUPS = ("AD", "DLB", "PD")
"""Groups of the phantom; fibres cross at another angle in DLB, and disperse more in PD."""
SITES = "ABCD"
"""Names of scanners; a cohort has the first few of them."""
SESSION_NOISE = 0.01
"""Standard deviation of S/b0 between two scans of a person, a third of the noise of a voxel."""


def still_settings(
    *, per_group: int, voxel_mm: float, micro_effect: float, seed: int, sites: int = 2
) -> PhantomSettings:
    """Still, undistorted heads at some sites; groups differ in the microscopic effect only."""
    return PhantomSettings(
        groups=GROUPS,
        per_group=per_group,
        sites=sites,
        voxel_mm=voxel_mm,
        seed=seed,
        micro_effect=micro_effect,
        macro_effect=0.0,
        motion_mm=0.0,
        motion_deg=0.0,
        eddy=0.0,
    )


def write_cohort(
    folder: Path,
    settings: PhantomSettings,
    groups: Sequence[str],
    *,
    resolution_mm: float,
    nside: int,
    shell: ShellChoice = None,
    chosen: Callable[[ParticipantSpec], bool] = lambda _: True,
    sessions: int = 1,
    known: Callable[[ParticipantSpec], Path | None] = lambda _: None,
) -> None:
    """Write folder/raw and folder/scans, a raw dataset's tables and everybody's derivatives.

    Parameters
    ----------
    folder : Path
    settings : PhantomSettings
    groups : sequence of str
        Those of its groups that are wanted.
    resolution_mm : float
        Voxels in template space.
    nside : int
        HEALPix resolution of the samples.
    shell : tuple of float, "all" or None
        Which shells to sample, as for ``--shell``.
    chosen : callable
        Which of these people take part.
    sessions : int
        Scans of each: the first one, and the same with new noise on the samples.
    known : callable
        Folder of another cohort that has the very same scans of somebody, if there is one: they
        are linked and not made again.
    """
    specs = [s for s in plan_cohort(settings) if s.diagnosis in groups and chosen(s)]
    about = dataclasses.asdict(settings) | {"resolution_mm": resolution_mm, "nside": nside}
    about["shell"] = shell
    about["groups"] = groups
    about["people"] = [spec.label for spec in specs]
    about["sessions"] = sessions
    about = json.loads(json.dumps(about))  # as it is read back
    path = folder / "cohort.json"
    if path.is_file() and json.loads(path.read_text()) != about:
        raise InputError(
            expected=f"no cohort in {folder}, or the one that is asked for",
            found="a cohort with other settings",
            remedy="give another --folder",
        )
    write_json(path, about)
    _write_raw(folder / "raw", specs, sessions)
    for number, spec in enumerate(specs):
        there = folder / "scans" / f"sub-{spec.label}"
        same = known(spec)
        if same is not None and not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to((same / "scans" / there.name).resolve())
        place = _Place(folder / "scans", spec, resolution_mm, nside, shell)
        _write_derivatives(place, settings, sessions)
        print(f"\rphantom {number + 1} of {len(specs)}", end="", flush=True)
    print(flush=True)


def link_scans(folder: Path, name: str) -> Path:
    """Make an output folder of its own that sees the scans of a cohort; models go there."""
    output = folder / name
    output.mkdir(exist_ok=True)
    for scan in sorted((folder / "scans").iterdir()):
        link = output / scan.name
        if not link.is_symlink():
            link.symlink_to(Path("..") / "scans" / scan.name)
    return output


def sample_participant(
    settings: PhantomSettings,
    spec: ParticipantSpec,
    resolution_mm: float,
    nside: int,
    shell: ShellChoice = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scan somebody and bring the scan to the template by the true pose.

    Returns
    -------
    samples : (V, n_shells * 6 nside^2) array
        S/b0 on the sphere, in the mask, shell after shell.
    mask : (X, Y, Z) bool array
    affine : (4, 4) array
    """
    scan = simulate_participant(settings, spec)
    grid = output_grid(PreprocessingSettings(output_resolution=resolution_mm))
    to_template = np.linalg.inv(scan.truth.pose)
    data = resample_series(scan.data, scan.affine, to_template, grid.shape, grid.affine)
    head = scan.truth.mask.astype(np.float32)[..., None]
    inside = resample_series(head, scan.affine, to_template, grid.shape, grid.affine, order=1)
    mask = inside[..., 0] > 0.5
    directions = rotate_bvecs(scan.bvecs_ras, to_template)
    shells = sample_shells(data, scan.bvals, directions, mask, nside=nside, wanted=shell)
    return np.concatenate([each.samples for each in shells], axis=1), mask, grid.affine


def _write_raw(root: Path, specs: Sequence[ParticipantSpec], sessions: int) -> None:
    """Tables and sidecars of a raw dataset: all that the group level reads of it."""
    write_json(root / "dataset_description.json", {"Name": "Phantom", "BIDSVersion": "1.10.0"})
    rows = ["participant_id\tdiagnosis\tsite\tage\tsex"]
    for spec in specs:
        cells = (f"sub-{spec.label}", spec.diagnosis, SITES[spec.site], f"{spec.age:.1f}")
        rows.append("\t".join((*cells, spec.sex)))
        for session in _sessions(sessions):
            entities = {"sub": spec.label} | session
            words = [f"{key}-{value}" for key, value in entities.items()]
            stem = root.joinpath(*words) / "dwi" / f"{'_'.join(words)}_dwi"
            write_json(Path(f"{stem}.json"), {"Manufacturer": SITES[spec.site]})
            Path(f"{stem}.nii.gz").touch()
    write_text(root / "participants.tsv", "\n".join(rows) + "\n")


@dataclass(frozen=True)
class _Place:
    """Whose scan goes where, and how it is sampled."""

    root: Path
    spec: ParticipantSpec
    resolution_mm: float
    nside: int
    shell: ShellChoice

    def names(self, session: dict[str, str]) -> DerivativeNames:
        entities = {"sub": self.spec.label} | session
        return DerivativeNames(
            output_dir=self.root, entities=entities, resolution_mm=self.resolution_mm
        )


def _sessions(count: int) -> list[dict[str, str]]:
    return [{"ses": str(k + 1)} for k in range(count)] if count > 1 else [{}]


def _write_derivatives(place: _Place, settings: PhantomSettings, sessions: int) -> None:
    """Write samples on the sphere in template space, by the true pose; the motion table last."""
    every = [place.names(session) for session in _sessions(sessions)]
    if every[-1].native("desc-confounds_timeseries.tsv").is_file():
        return
    inside, mask, affine = sample_participant(
        settings, place.spec, place.resolution_mm, place.nside, place.shell
    )
    rng = np.random.default_rng([settings.seed, place.spec.index])
    for number, names in enumerate(every):
        noise = rng.normal(0, SESSION_NOISE, inside.shape) if number else 0.0
        samples = np.zeros((*mask.shape, inside.shape[1]), np.float32)
        samples[mask] = inside + noise
        image = names.standard("desc-healpix_dwi.nii.gz")
        write_image(image, samples, affine, scale=SAMPLE_STEP)
        about = {"Nside": place.nside, "Ordering": "NESTED"}
        about |= {"BValue": sorted(settings.b_values)} if place.shell == ALL_SHELLS else {}
        write_json(names.standard("desc-healpix_dwi.json"), about)
        write_image(names.standard("desc-brain_mask.nii.gz"), mask, affine)
        confounds = names.native("desc-confounds_timeseries.tsv")
        write_text(confounds, "framewise_displacement\nn/a\n0\n")
