"""What free-water corrected FA would cost: DIPY's model beside the tensor, on one core.

    python benchmarks/free_water.py [--seed 720] [--voxels 1500]

A phantom of two shells (b = 500 and 1500 s/mm², 32 directions each); some of its brain voxels are
fitted, and the time is scaled to a brain of 200,000 voxels, one of 2 mm.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from dipy.core.gradients import gradient_table
from dipy.reconst.dti import TensorModel
from dipy.reconst.fwdti import FreeWaterTensorModel

from bids_gevnet.phantom.simulation import simulate

BRAIN_VOXELS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=720)
    parser.add_argument("--voxels", type=int, default=1500)
    options = parser.parse_args()
    scan = simulate(
        seed=options.seed, voxel_mm=4, directions=32, b_values=(500.0, 1500.0), snr=30, sites=1,
        motion_mm=0, motion_deg=0, eddy=0,
    )  # fmt: skip
    b0 = scan.bvals <= 50
    table = gradient_table(
        np.where(b0, 0.0, scan.bvals), bvecs=np.where(b0[:, None], 0, scan.bvecs_ras)
    )
    brain = np.argwhere(scan.truth.mask)
    chosen = np.random.default_rng(0).choice(brain, options.voxels, replace=False)
    signal = scan.data[tuple(chosen.T)].astype(float)
    print("| model | ms a voxel | s for a brain of 200,000 voxels |\n|---|---|---|")
    warnings.simplefilter("ignore")  # of fits that do not converge
    for name, model in (
        ("tensor, WLS", TensorModel(table, fit_method="WLS")),
        ("free water, WLS", FreeWaterTensorModel(table, fit_method="WLS")),
        ("free water, NLS", FreeWaterTensorModel(table, fit_method="NLS")),
    ):
        start = time.process_time()
        model.fit(signal)
        each = (time.process_time() - start) / options.voxels
        print(f"| {name} | {1000 * each:.2f} | {each * BRAIN_VOXELS:.0f} |", flush=True)


if __name__ == "__main__":
    main()
