"""Error of the susceptibility field from a T1w, against truth and against an opposite b0.

    python benchmarks/field_from_t1w.py [--seeds 710 711] [--voxel-mm 4]

Phantoms with a field of up to 9 mm, noise of SNR 30 and a T1w in the same position. The error is
that of the displacement along the phase-encoding axis, in the brain, in mm.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.dwi.conform import conform, ras_order
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.model_corrector.susceptibility import estimate_field
from bids_gevnet.dwi.phase_encoding import reorder_phase_encoding
from bids_gevnet.dwi.syn_field import estimate_field_from_t1w
from bids_gevnet.phantom.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTORTED_MM = 2.0


def rows(seed: int, voxel_mm: float) -> Iterator[str]:
    """Estimate the field of one phantom in both ways."""
    scan = simulate(
        seed=seed, voxel_mm=voxel_mm, directions=6, snr=30, sites=1, reverse_b0=True, t1w=True,
        motion_mm=0, motion_deg=0, eddy=0,
    )  # fmt: skip
    assert scan.truth.field_hz is not None
    assert scan.reverse_b0 is not None
    assert scan.t1w is not None
    assert scan.t1w_affine is not None
    image = conform(scan.data[..., 0], scan.affine)
    axes, signs = ras_order(scan.affine)
    axis = "ijk".index(reorder_phase_encoding("j", axes, signs)[0])
    mm_per_hz = scan.site.polarity * scan.site.readout_s * scan.site.voxel_mm[1] * signs[axis]
    truth = conform(scan.truth.field_hz, scan.affine).data * mm_per_hz
    brain = conform(scan.truth.mask, scan.affine).data > 0
    distorted = brain & (np.abs(truth) > DISTORTED_MM)
    b0 = np.asarray(image.data, dtype=np.float32)

    def none() -> np.ndarray:
        return np.zeros_like(truth)

    def opposite_b0() -> np.ndarray:
        other = np.asarray(conform(scan.reverse_b0, scan.affine).data, dtype=np.float32)
        return estimate_field(b0, other, voxel_sizes(image.affine), axis).field

    def t1w() -> np.ndarray:
        start = np.linalg.inv(image.old_to_new)
        return estimate_field_from_t1w(
            b0, image.affine, axis, scan.t1w, scan.t1w_affine, start
        ).field

    for name, estimate in (("none", none), ("opposite b0", opposite_b0), ("T1w", t1w)):
        start = time.process_time()
        error = estimate() - truth
        seconds = time.process_time() - start
        yield (
            f"| {seed} | {name} | {np.sqrt(np.mean(error[brain] ** 2)):.2f} | "
            f"{np.percentile(np.abs(error[brain]), 95):.2f} | "
            f"{np.abs(error[distorted]).mean():.2f} | {seconds:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[710, 711])
    parser.add_argument("--voxel-mm", type=float, default=4.0)
    options = parser.parse_args()
    print(
        "| seed | field from | RMS error, mm | 95th percentile, mm | mean error where displaced "
        "by more than 2 mm | CPU s |\n|---|---|---|---|---|---|"
    )
    for seed in options.seeds:
        for row in rows(seed, options.voxel_mm):
            print(row, flush=True)


if __name__ == "__main__":
    main()
