"""Does the network learn what only directions tell? Phantom cohorts with and without an effect.

    python benchmarks/learning.py --effect micro --write     # crossing angle and dispersion only
    python benchmarks/learning.py --effect none --write      # no difference between the groups

Two groups of simulated people at two sites. With the microscopic effect fibres cross at another
angle in one group and nothing else differs: the mean over directions hardly changes. Heads lie
still and are brought to the template by their true pose, so that neither correction nor
registration is part of the measurement; everything after that is the group level itself: RISH
harmonisation, folds, mixup, training, calibration, evaluation. These are phantoms, not patients.
"""

import argparse
import logging
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from bids_gevnet.bids.derivatives import DerivativeNames
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.shells import choose_shell, divide_by_b0, find_shells, mean_volume
from bids_gevnet.interfaces.sphere import SAMPLE_STEP
from bids_gevnet.interfaces.template import output_grid
from bids_gevnet.learn.group import run_group
from bids_gevnet.learn.progress import log
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.simulate import simulate_participant
from bids_gevnet.settings import ExecutionSettings, LearningSettings, PreprocessingSettings
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix

RESULTS = Path(__file__).parent / "results"
NSIDE = 4
SITES = "AB"


def phantom_settings(options: argparse.Namespace) -> PhantomSettings:
    """Still, undistorted heads; the groups differ in what is asked for."""
    return PhantomSettings(
        groups=("AD", "PD"),
        per_group=options.per_group,
        sites=len(SITES),
        voxel_mm=options.voxel_mm,
        seed=options.seed,
        micro_effect=float(options.effect == "micro"),
        macro_effect=0.0,
        motion_mm=0.0,
        motion_deg=0.0,
        eddy=0.0,
    )


def write_raw(root: Path, specs: tuple[ParticipantSpec, ...]) -> None:
    """Tables and sidecars of a raw dataset: all that the group level reads of it."""
    write_json(root / "dataset_description.json", {"Name": "Phantom", "BIDSVersion": "1.10.0"})
    rows = ["participant_id\tdiagnosis\tsite\tage\tsex"]
    for spec in specs:
        cells = (f"sub-{spec.label}", spec.diagnosis, SITES[spec.site], f"{spec.age:.1f}")
        rows.append("\t".join((*cells, spec.sex)))
        stem = root / f"sub-{spec.label}" / "dwi" / f"sub-{spec.label}_dwi"
        write_json(Path(f"{stem}.json"), {"Manufacturer": SITES[spec.site]})
        Path(f"{stem}.nii.gz").touch()
    write_text(root / "participants.tsv", "\n".join(rows) + "\n")


def write_derivatives(
    root: Path, spec: ParticipantSpec, settings: PhantomSettings, resolution_mm: float
) -> None:
    """Write samples on the sphere in template space, by the true pose."""
    scan = simulate_participant(settings, spec)
    grid = output_grid(PreprocessingSettings(output_resolution=resolution_mm))
    to_template = np.linalg.inv(scan.truth.pose)
    data = resample_series(scan.data, scan.affine, to_template, grid.shape, grid.affine)
    head = scan.truth.mask.astype(np.float32)[..., None]
    inside = resample_series(head, scan.affine, to_template, grid.shape, grid.affine, order=1)
    mask = inside[..., 0] > 0.5
    shells = find_shells(scan.bvals)
    shell = choose_shell(shells, None)
    fraction = divide_by_b0(data[mask][:, shell.volumes], mean_volume(data, shells.b0)[mask])
    directions = rotate_bvecs(scan.bvecs_ras, to_template)[shell.volumes]
    samples = np.zeros((*mask.shape, 6 * NSIDE**2), np.float32)
    samples[mask] = resample(fraction, resampling_matrix(directions, distinct_directions(NSIDE)))
    names = DerivativeNames(
        output_dir=root, entities={"sub": spec.label}, resolution_mm=resolution_mm
    )
    image = names.standard("desc-healpix_dwi.nii.gz")
    write_image(image, samples, grid.affine, scale=SAMPLE_STEP)
    write_json(names.standard("desc-healpix_dwi.json"), {"Nside": NSIDE, "Ordering": "NESTED"})
    write_image(names.standard("desc-brain_mask.nii.gz"), mask, grid.affine)
    still = "framewise_displacement\nn/a\n0\n"
    write_text(names.native("desc-confounds_timeseries.tsv"), still)


def measure(options: argparse.Namespace, folder: Path) -> str:
    """Write the cohort, train and test every network, and describe the result as Markdown."""
    settings = phantom_settings(options)
    specs = plan_cohort(settings)
    write_raw(folder / "raw", specs)
    start = time.perf_counter()
    for number, spec in enumerate(specs):
        write_derivatives(folder / "out", spec, settings, options.resolution)
        print(f"\rphantom {number + 1} of {len(specs)}", end="", flush=True)
    print(f"\nphantoms: {time.perf_counter() - start:.0f} s", flush=True)
    lines = [
        "| model | balanced accuracy (95 %) | ROC AUC (95 %) | permutation p |",
        "|---|---|---|---|",
    ]
    for network in options.networks:
        learning = LearningSettings(
            network=network,
            folds=options.folds,
            epochs=options.epochs,
            samples_per_class=options.samples_per_class,
            learning_rate=options.learning_rate,
            leave_site_out=False,
            devices=f"cpu:{options.processes}",
        )
        execution = ExecutionSettings(random_seed=options.seed, nprocs=options.processes)
        result = run_group(folder / "out", folder / "raw", learning, execution)
        (task,) = result.metrics["tasks"]
        lines += [_row(model) for model in task["models"] if _is_new(model, lines)]
        print("\n".join(lines), flush=True)
    minutes = (time.perf_counter() - start) / 60
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = (
        f"{options.per_group} people a group, {options.resolution:g} mm, {options.folds} folds, "
        f"{options.epochs} epochs of {options.samples_per_class} samples a class, learning rate "
        f"{options.learning_rate:g}, seed {options.seed}, commit {commit}, {minutes:.0f} minutes."
    )
    return "\n".join([about, "", *lines, ""])


def _is_new(model: dict, lines: list[str]) -> bool:
    return not any(line.startswith(f"| {model['title']} |") for line in lines)


def _row(model: dict) -> str:
    scheme = model["schemes"]["folds"]
    cells = [
        f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
        for value in (scheme["pooled"]["balanced_accuracy"], scheme["pooled"]["roc_auc"])
    ]
    chance = scheme["permutation"]["balanced_accuracy"]["p"]
    return f"| {model['title']} | {cells[0]} | {cells[1]} | {chance:.4f} |"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effect", choices=["micro", "none"], default="micro")
    parser.add_argument("--networks", nargs="+", default=["ckn2+gevnet", "ckn2"])
    parser.add_argument("--per-group", type=int, default=40)
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--resolution", type=float, default=10.0)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples-per-class", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=LearningSettings().learning_rate)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the cohort and the models here")
    parser.add_argument("--write", action="store_true", help="write results/learning-EFFECT.md")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as temporary:
        text = measure(options, options.folder or Path(temporary))
    print(text)
    if options.write:
        title = f"## Learning, {options.effect} effect (`benchmarks/learning.py`)\n\n"
        write_text(RESULTS / f"learning-{options.effect}.md", title + text)


if __name__ == "__main__":
    main()
