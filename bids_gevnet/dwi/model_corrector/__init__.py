r"""Model-based correction of motion, eddy currents, outlier slices and susceptibility.

The idea is that of FSL's eddy. Volumes of a shell differ in contrast, because each was measured
with another gradient, so they cannot simply be registered to each other. But the signal is a
smooth function of the gradient: from all the others, a volume can be predicted. Comparing it with
its own prediction tells how the head had moved and how eddy currents had distorted it; correcting
all volumes makes better predictions; and so on, from coarse to fine.

The forward model (`warp`) says where volume k saw a point x of the head,

.. math:: x'' = M_k x + \bigl(d_k(M_k x) + s(x)\bigr)\, p,

with the rigid motion M_k, the eddy field d_k (a polynomial of second degree that stands with the
scanner) and the susceptibility displacement s (which moves with the head), both along the
phase-encoding axis p.

Read in this order:

1. `warp`: that model, and its inverse: a raw volume corrected in one interpolation;
2. `volume_prediction`: each volume of a shell from the others, a Gaussian process on the sphere;
3. `motion_and_eddy_step`: one Gauss-Newton step for motion and eddy field of every volume;
4. `eddy_over_gradients`: eddy currents follow the gradient that caused them, so all volumes
   together say more about them than each alone;
5. `motion_over_time`: heads do not follow gradients, so what does is not motion;
6. `outlier_slices`: slices that lost their signal, found and replaced by their prediction;
7. `susceptibility`: the field s from b0s with opposite phase encoding;
8. `corrector`: the loop over all of these; `splines` is the interpolation they share.

Not modelled, and FSL's eddy can: motion within a volume, and the change of the susceptibility
field with the pose of the head.
"""
