"""Diffusion series as arrays: correction, gradients, shells, masks, registration.

Five lines correct a scan, from NIfTI to NIfTI::

    image = nib.load("dwi.nii.gz")
    bvals, bvecs = np.loadtxt("dwi.bval"), np.loadtxt("dwi.bvec").T
    corrected = dwi.correct(image.get_fdata(), image.affine, bvals, bvecs, phase_encoding="j")
    nib.save(nib.Nifti1Image(corrected.data, image.affine), "corrected.nii.gz")
    np.savetxt("corrected.bvec", corrected.bvecs.T)

Nothing here knows of files. World is RAS in mm; `bvecs_fsl` are gradients as bvec files hold
them, along voxel axes with x flipped where the affine's determinant is positive, and `bvecs_ras`
the same in world axes.

Read in this order:

1. `gradients`, `shells`: directions and b-values;
2. `conform`: one pose for all scans, without interpolation; `phase_encoding` in that pose;
3. `cleaning`: noise, Gibbs ringing and the bias field, by DIPY and ANTs;
4. `correction`: motion, eddy currents, outlier slices and susceptibility, from arrays to arrays,
   by the `model_corrector`; `polarity` tries phase encodings of unknown sign both ways; `motion`
   is the rigid alternative (`ants_linear`), `fsl` finds and calls FSL's eddy, topup and bet;
   `syn_field` finds a susceptibility field from a T1w;
5. `mask`: the brain;
6. `registration`: to the template; `interpolation` brings everything there once;
7. `sampling`: one shell or several on the sphere;
8. `tensor`: maps; `coherence`, `quality`: checks that a report shows.
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.dwi.correction import Corrected as Corrected
    from bids_gevnet.dwi.correction import correct as correct
    from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras as bvecs_fsl_to_ras
    from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl as bvecs_ras_to_fsl
    from bids_gevnet.dwi.gradients import rotate_bvecs as rotate_bvecs
    from bids_gevnet.dwi.mask import brain_mask as brain_mask
    from bids_gevnet.dwi.motion import framewise_displacement as framewise_displacement
    from bids_gevnet.dwi.sampling import sample_shell as sample_shell
    from bids_gevnet.dwi.sampling import sample_shells as sample_shells
    from bids_gevnet.dwi.shells import find_shells as find_shells
    from bids_gevnet.dwi.tensor import fit_tensor as fit_tensor
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "correction": ["Corrected", "correct"],
            "gradients": ["bvecs_fsl_to_ras", "bvecs_ras_to_fsl", "rotate_bvecs"],
            "shells": ["find_shells"],
            "mask": ["brain_mask"],
            "motion": ["framewise_displacement"],
            "sampling": ["sample_shell", "sample_shells"],
            "tensor": ["fit_tensor"],
        },
    )
