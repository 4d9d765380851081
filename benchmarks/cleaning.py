"""What denoising, removal of Gibbs ringing and bias correction do to FA, directions and samples.

    python benchmarks/cleaning.py [--real-data FOLDER] [--seeds 700 702] [--write]

What `auto` does was chosen by seeds 700 and 701 and the real scans; seed 702 came after.

Phantoms (4 mm, 32 directions, noise of SNR 30, heads lie still) are compared with themselves
without noise. With ringing: simulated at 2 mm, of which the outer half of the in-plane k-space is
cut off before noise is added; truth is the mean of the same voxels. Of real scans nobody knows
the truth: their directions are split into two halves, one is cleaned alone, and compared with the
other as it was acquired; the noise of the other half is the same in every row. Both have the b0s.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel
import numpy as np
from pages import RESULTS, current_commit, write_page

from bids_gevnet.dwi.cleaning import (
    bias_field,
    denoise_mppca,
    denoise_patch2self,
    head_region,
    judge_residual,
    remove_ringing,
)
from bids_gevnet.dwi.conform import conform, ras_order
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, direction_angle_deg, voxel_sizes
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.model_corrector.susceptibility import estimate_field
from bids_gevnet.dwi.phase_encoding import reorder_phase_encoding
from bids_gevnet.dwi.sampling import sample_shell
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.dwi.tensor import fit_tensor
from bids_gevnet.phantom.acquisition import add_rician_noise
from bids_gevnet.phantom.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

DENOISERS = ("none", "mppca", "patch2self")
LEAST_FA = 0.3
"""Below it the main direction of the truth itself is uncertain."""


@dataclass(frozen=True)
class Case:
    """A series to clean, and what its tensors and samples are compared with."""

    name: str
    data: Floats
    bvals: NDArray[np.float64]
    bvecs: NDArray[np.float64]
    affine: NDArray[np.float64]
    brain: NDArray[np.bool_]
    reference: Floats
    reference_bvals: NDArray[np.float64]
    reference_bvecs: NDArray[np.float64]
    rings: bool


@dataclass(frozen=True)
class Errors:
    """Against the reference: RMS of FA, median angle in degrees, RMS of S/b0 on the sphere."""

    fa: float
    angle_deg: float
    healpix: float
    fa_bias: float


def phantom_case(seed: int, *, rings: bool) -> Case:
    """Simulate a still head with and without noise."""
    settings: dict[str, Any] = {
        "seed": seed, "directions": 32, "motion_mm": 0, "motion_deg": 0, "eddy": 0, "sites": 1,
    }  # fmt: skip
    if not rings:
        scan = simulate(voxel_mm=4, snr=30, **settings)
        clean = simulate(voxel_mm=4, snr=math.inf, **settings)
        data, reference, brain = scan.data, clean.data, scan.truth.mask
    else:
        scan = simulate(voxel_mm=2, snr=math.inf, **settings)
        x, y, z = (n // 2 for n in scan.data.shape[:3])
        fine = scan.data[: 2 * x, : 2 * y, : 2 * z]
        blocks = fine.reshape(x, 2, y, 2, z, 2, -1)
        reference = blocks.mean(axis=(1, 3, 5))
        cut = truncate(blocks.mean(axis=5).reshape(2 * x, 2 * y, z, -1))
        sigma = float(simulate(voxel_mm=9, snr=30, **settings).truth.noise_sigma)
        data = add_rician_noise(cut, sigma, np.random.default_rng(seed))
        inside = scan.truth.mask[: 2 * x, : 2 * y, : 2 * z].reshape(x, 2, y, 2, z, 2)
        brain = inside.mean(axis=(1, 3, 5)) > 0.5
    name = "phantom with ringing" if rings else "phantom"
    return Case(
        name, data, scan.bvals, scan.bvecs_ras, scan.affine, brain, reference, scan.bvals,
        scan.bvecs_ras, rings,
    )  # fmt: skip


def truncate(fine: Floats) -> Floats:
    """Keep the inner half of k-space along the first two axes, as a scanner with 4 mm voxels."""
    x, y = (n // 2 for n in fine.shape[:2])
    space = np.fft.fftshift(np.fft.fft2(fine, axes=(0, 1)), axes=(0, 1))
    inner = space[x // 2 : x // 2 + x, y // 2 : y // 2 + y]
    # Voxels of the coarse grid are centred between two fine ones: half a fine voxel further.
    shift = [np.exp(0.5j * np.pi * (np.arange(n) - n // 2) / n) for n in (x, y)]
    inner = inner * (shift[0][:, None] * shift[1])[:, :, None, None]
    return np.abs(np.fft.ifft2(np.fft.ifftshift(inner, axes=(0, 1)), axes=(0, 1))) / 4


def real_case(folder: Path, name: str) -> Case:
    """Split the directions of a real scan into two halves; a slab of slices is enough."""
    path = min((folder / f"sub-{name}" / "dwi").glob("*_dwi.nii.gz"))
    stem = str(path).removesuffix(".nii.gz")
    image = nibabel.load(path)
    data = np.asarray(image.dataobj, dtype=np.float32)
    bvals, bvecs = np.loadtxt(f"{stem}.bval"), np.loadtxt(f"{stem}.bvec").T
    shells = find_shells(bvals)
    weighted = shells.shells[0].volumes
    one, other = (np.r_[shells.b0, weighted[start::2]] for start in (0, 1))
    brain = brain_mask(mean_volume(data, shells.b0), image.affine, mean_volume(data, weighted))
    middle = data.shape[2] // 2
    slab = slice(middle - 8, middle + 12)
    world = bvecs_fsl_to_ras(bvecs, image.affine)
    return Case(
        f"sub-{name}, half of its directions", data[:, :, slab][..., one], bvals[one],
        world[one], image.affine, brain[:, :, slab], data[:, :, slab][..., other], bvals[other],
        world[other], True,
    )  # fmt: skip


def compare(case: Case, cleaned: Floats) -> Errors:
    """Compare tensors and samples with the reference, in white matter."""
    truth = fit_tensor(case.reference[case.brain], case.reference_bvals, case.reference_bvecs)
    found = fit_tensor(cleaned[case.brain], case.bvals, case.bvecs)
    white = truth.fa > LEAST_FA
    samples = [
        sample_shell(data, bvals, bvecs, case.brain).samples
        for data, bvals, bvecs in (
            (cleaned, case.bvals, case.bvecs),
            (case.reference, case.reference_bvals, case.reference_bvecs),
        )
    ]
    angles = direction_angle_deg(found.direction[white], truth.direction[white])
    difference = found.fa - truth.fa
    return Errors(
        fa=float(np.sqrt(np.mean(difference**2))),
        angle_deg=float(np.median(angles)),
        healpix=float(np.sqrt(np.mean((samples[0] - samples[1]) ** 2))),
        fa_bias=float(difference.mean()),
    )


def rows(case: Case, denoisers: Sequence[str], unringing: Sequence[bool]) -> Iterator[str]:
    """Clean a case in every way."""
    b0 = mean_volume(case.data, find_shells(case.bvals).b0)
    for method in denoisers:
        start = time.process_time()
        verdict = "-"
        data = case.data
        if method != "none":
            denoised = (
                denoise_mppca(case.data, head_region(b0))
                if method == "mppca"
                else denoise_patch2self(case.data, case.bvals, b0_threshold=50)
            )
            data = denoised.data
            judged = judge_residual(denoised, case.brain, case.affine)
            if judged is not None:
                verdict = f"{judged.correlation:+.2f} ({judged.noise_correlation:+.2f})"
        for unring in unringing if case.rings else (False,):
            cleaned = remove_ringing(data, 2) if unring else data
            seconds = time.process_time() - start
            errors = compare(case, cleaned)
            yield (
                f"| {case.name} | {method} | {'yes' if unring else 'no'} | {errors.fa:.4f} | "
                f"{errors.fa_bias:+.4f} | {errors.angle_deg:.2f} | {errors.healpix:.4f} | "
                f"{verdict} | {seconds:.0f} |"
            )


def bias_rows(seed: int) -> Iterator[str]:
    """Shade a phantom as a receive coil does, and correct it."""
    case = phantom_case(seed, rings=False)
    x, y, z = (np.linspace(-1, 1, n) for n in case.data.shape[:3])
    true = np.exp(0.4 * x[:, None, None] - 0.5 * y[:, None] ** 2 + 0.3 * z)
    shaded = case.data * true[..., None]
    start = time.process_time()
    field = bias_field(mean_volume(shaded, find_shells(case.bvals).b0), case.brain, case.affine)
    seconds = time.process_time() - start
    for name, data in (("shaded", shaded), ("N4", shaded / field[..., None])):
        errors = compare(case, data)
        left = np.log(true / (field if name == "N4" else 1))[case.brain].std()
        yield (
            f"| {seed} | {name} | {100 * left:.1f} % | {errors.fa:.4f} | {errors.angle_deg:.2f} | "
            f"{errors.healpix:.4f} | {seconds if name == 'N4' else 0:.0f} |"
        )


def field_rows(seed: int) -> Iterator[str]:
    """Estimate the susceptibility field with b0s that were treated alike, or were not."""
    scan = simulate(
        seed=seed, voxel_mm=4, directions=32, snr=30, sites=1, reverse_b0=True, motion_mm=0,
        motion_deg=0, eddy=0,
    )  # fmt: skip
    assert scan.truth.field_hz is not None
    assert scan.reverse_b0 is not None
    axes, signs = ras_order(scan.affine)
    axis = "ijk".index(reorder_phase_encoding("j", axes, signs)[0])
    mm_per_hz = scan.site.polarity * scan.site.readout_s * scan.site.voxel_mm[1] * signs[axis]
    truth = conform(scan.truth.field_hz, scan.affine).data * mm_per_hz
    brain = conform(scan.truth.mask, scan.affine).data > 0
    series, other = conform(scan.data, scan.affine), conform(scan.reverse_b0, scan.affine).data
    b0 = np.asarray(series.data[..., 0], np.float32)
    denoised = denoise_mppca(series.data, head_region(b0)).data[..., 0]
    unrung, other_unrung = (remove_ringing(v[..., None], 2)[..., 0] for v in (b0, other))
    for name, one, two in (
        ("both as acquired", b0, other),
        ("the run's denoised, the opposite as acquired", denoised, other),
        ("the run's unrung, the opposite as acquired", unrung, other),
        ("both unrung", unrung, other_unrung),
    ):
        second = np.asarray(two, np.float32)
        found = estimate_field(one, second, voxel_sizes(series.affine), axis).field
        error = (found - truth)[brain]
        yield (
            f"| {seed} | {name} | {np.sqrt(np.mean(error**2)):.4f} | "
            f"{np.percentile(np.abs(error), 95):.4f} |"
        )


def time_rows(folder: Path, name: str) -> Iterator[str]:
    """Denoise a whole real run, as the participant level does."""
    path = min((folder / f"sub-{name}" / "dwi").glob("*_dwi.nii.gz"))
    data = np.asarray(nibabel.load(path).dataobj, dtype=np.float32)
    bvals = np.loadtxt(str(path).replace(".nii.gz", ".bval"))
    b0 = mean_volume(data, find_shells(bvals).b0)
    size = " x ".join(map(str, data.shape))
    for method in ("mppca", "patch2self"):
        start = time.process_time()
        if method == "mppca":
            denoise_mppca(data, head_region(b0))
        else:
            denoise_patch2self(data, bvals, b0_threshold=50)
        yield f"| {path.name} | {size} | {method} | {time.process_time() - start:.0f} |"


TABLES = {
    "errors": "| data | denoising | unringing | FA, RMS error | FA, mean error | direction, "
    "median error in degrees | S/b0 on HEALPix, RMS error | residual and edges (noise) | CPU s |",
    "time": "| whole run | voxels and volumes | denoising | CPU s |",
    "bias": "| seed | bias field | shading left, SD | FA, RMS error | direction, median error | "
    "S/b0 on HEALPix, RMS error | CPU s |",
    "field": "| seed | b0s the field is estimated from | RMS error, mm | 95th percentile, mm |",
}
"""Headings by what is measured."""


def table_rows(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Measure the rows of one table."""
    scans = options.scans if options.real_data is not None else ()
    if name == "time":
        for scan in scans:
            yield from time_rows(options.real_data, scan)
        return
    if name != "errors":
        for seed in options.seeds:
            yield from (bias_rows if name == "bias" else field_rows)(seed)
        return
    unringing = [answer == "yes" for answer in options.unringing]
    for seed, rings in itertools.product(options.seeds, (False, True)):
        for row in rows(phantom_case(seed, rings=rings), options.denoisers, unringing):
            yield row.replace("| phantom", f"| seed {seed}, phantom", 1)
    for scan in scans:
        yield from rows(real_case(options.real_data, scan), options.denoisers, unringing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real-data", type=Path)
    parser.add_argument("--scans", nargs="*", default=["philips", "siemens"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[700, 702])
    parser.add_argument("--denoisers", nargs="*", default=list(DENOISERS))
    parser.add_argument("--unringing", nargs="*", choices=("no", "yes"), default=["no", "yes"])
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines: list[str] = []
    for name in options.only:
        heading = TABLES[name]
        rule = "|---" * (heading.count("|") - 1) + "|"
        for line in itertools.chain(("", heading, rule), table_rows(name, options)):
            lines.append(line)
            print(line, flush=True)
    if options.write:
        command = "    python benchmarks/cleaning.py --real-data FOLDER"
        about = __doc__.split("\n\n", 2)[2]
        head = f"# Cleaning\n\n{command}\n\nCommit {current_commit()}. {about}"
        write_page(RESULTS / "cleaning.md", "\n".join([head, *lines]))


if __name__ == "__main__":
    main()
