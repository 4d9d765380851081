"""Simulated cohorts with known truth, as arrays or written as BIDS.

>>> from bids_gevnet import phantom
>>> scan = phantom.simulate(directions=6, seed=3)
>>> scan.data.shape[3], scan.truth.motion.shape
(7, (7, 6))

Read in this order: `settings`, `cohort` (who), `sites` (which scanners), `anatomy`, `fibres`,
`effects`, `signal` and `acquisition` (what happens to the signal), `simulation` (one scan),
`dataset` (a cohort on disk).

What is simulated, in the order in which it happens to the signal
-----------------------------------------------------------------
1. A head: white matter, grey matter and brain mask of the MNI template that nilearn ships, with
   cerebrospinal fluid filling the rest of the mask, a dark skull and a dim scalp around it
   (:mod:`~bids_gevnet.phantom.anatomy`); two smooth fibre populations that cross in a known
   region (:mod:`~bids_gevnet.phantom.fibres`); group effects
   (:mod:`~bids_gevnet.phantom.effects`).
2. Its diffusion signal: a mixture of tensors, with a gain per spherical-harmonic degree that
   belongs to the scanner (:mod:`~bids_gevnet.phantom.signal`, :mod:`~bids_gevnet.phantom.sites`).
3. Its acquisition: pose, motion, eddy currents, susceptibility, dropped slices, noise
   (:mod:`~bids_gevnet.phantom.acquisition`). Each volume is sampled from the head in one
   interpolation: nothing is resampled twice.

Conventions of everything called truth
--------------------------------------
Frames. *Template*: MNI152NLin2009aSym millimetres, RAS. *Scanner*: world millimetres of the
image affine, RAS. *Voxel*: array indices (i, j, k).

``pose`` (4, 4) takes template mm to scanner mm, ``x = pose @ y``, in the reference position of
the head. Its linear part is ``R @ diag(size)``, so its polar rotation is ``R``; fibre directions
turn by ``R`` alone.

``motion`` (n_volumes, 6): trans_x, trans_y, trans_z in mm, rot_x, rot_y, rot_z in rad. The head
point that is at scanner position ``x`` in the reference is at ``M_k x = R_k x + t_k`` in volume
k, with ``R_k = Rz(rot_z) Ry(rot_y) Rx(rot_x)`` about the scanner origin, right-handed. Volume 0
is the reference: ``M_0`` is the identity. To undo the motion, read volume k at ``M_k x``, and
use ``R_k.T @ g`` as its gradient.

``eddy`` (n_volumes, 4): const_mm, per_i, per_j, per_k. What is truly at scanner position ``x``
appears at ``x + d_k(x) p``, where ``p`` is the unit vector of the *positive* phase-encoding voxel
axis (whatever the blip polarity) and ``d_k(x) = const + per_i v_i + per_j v_j + per_k v_k`` mm;
``v`` are millimetres along the voxel axes from the centre of the field of view. The four
numbers are linear in the gradient: ``eddy_matrix @ (g_voxel * sqrt(b / 1000))``.

``field_hz``: off-resonance in the reference position; it moves with the head. It displaces the
signal along ``+p`` by ``polarity * field_hz * TotalReadoutTime * voxel size`` mm, polarity +1 for
"j", -1 for "j-". All displacements keep the total signal: intensities are divided by
``1 + d(displacement) / dp``.

``fibres`` (X, Y, Z, 2, 3): unit vectors in scanner RAS, reference position, zero outside white
matter. ``fractions`` (X, Y, Z, 2): their volume fractions. ``tissue`` (X, Y, Z, 3): white
matter, grey matter, cerebrospinal fluid. ``mask``: brain without skull and scalp. ``regions``
(X, Y, Z, 2): weight of the crossing region and of the dispersion region. All are in the
undistorted reference position, on the voxels of the image.

``dropped``: rows (volume, k, factor): slice k of that volume was multiplied by factor.

``bvecs_ras`` (n_volumes, 3): gradients in scanner RAS as the scanner believes them;
``bvecs_fsl`` the same in voxel axes, x flipped when det(affine) > 0, as BIDS and FSL store them.
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.phantom.cohort import plan_cohort as plan_cohort
    from bids_gevnet.phantom.dataset import write_cohort as write_cohort
    from bids_gevnet.phantom.settings import PhantomSettings as PhantomSettings
    from bids_gevnet.phantom.settings import tiny_settings as tiny_settings
    from bids_gevnet.phantom.simulation import Scan as Scan
    from bids_gevnet.phantom.simulation import simulate as simulate
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "settings": ["PhantomSettings", "tiny_settings"],
            "cohort": ["plan_cohort"],
            "simulation": ["Scan", "simulate"],
            "dataset": ["write_cohort"],
        },
    )
