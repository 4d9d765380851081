"""
A GEVNet of your own, on any mesh
=================================

For somebody who wants the layers without the app. Nothing here needs BIDS, Nipype or a brain.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from bids_gevnet import nn, sphere
from bids_gevnet.testing import assert_gauge_equivariant

randomness = torch.manual_seed(0)

# %%
# A mesh
# ------
# Any closed triangle mesh does: here a sphere that was stretched into an egg. Each vertex gets a
# frame, and vectors are carried from one to another by parallel transport. Points and triangles
# of a surface in a file come from ``nibabel.freesurfer.read_geometry("lh.white")``, or from
# ``nibabel.load("lh.white.surf.gii").agg_data()``. A layer on 10,242 vertices takes half a minute
# to build and half a GB on one core, and both grow with the mesh: thin out large surfaces first.
ball = sphere.icosphere(2)
egg = ball.points * [1.0, 1.0, 1.4]
mesh = sphere.TriangleMesh.build(egg, ball.triangles)
print(mesh.n_points, "vertices")

# %%
# A layer, and proof that it does not depend on the frames
# --------------------------------------------------------
# One scalar per vertex goes in; two scalars and two tangent vectors come out. Layers take
# (points, values, batch); a vector is two values, its coordinates in the frame of its vertex.
scalars, vectors = nn.FieldType.scalars(1), nn.FieldType.regular(2, 1)


def make(grid):
    """Build the layer on a grid."""
    return nn.GEVConv(grid, scalars, vectors, order=2)


layer = make(mesh)
heights = torch.tensor(egg[:, 2], dtype=torch.float32)
print(tuple(layer(heights[:, None, None]).shape), "from", nn.count_parameters(layer), "weights")

# %%
# Turning every frame by an angle of its own changes the coordinates of the vectors, and nothing
# else, to rounding. Put a layer of your own into ``make`` to check it in the same way: one that
# treats coordinates as if they were scalars fails.
assert_gauge_equivariant(make, scalars, vectors, mesh)
try:
    assert_gauge_equivariant(lambda _: torch.nn.ReLU(), vectors, vectors, mesh)
except AssertionError as error:
    print("ReLU is", error)

# %%
# A network on the mesh, in 30 lines
# ----------------------------------
# Is a spot on the egg round or long? Spots lie anywhere and point anywhere, so the network has
# to compare directions within the surface, at every point in another frame. Networks take
# (batch, channels, points), as PyTorch's do.
vertices = torch.tensor(egg, dtype=torch.float32)


def spots(n: int, length: float) -> torch.Tensor:
    """Bright spots around random vertices, (n, 1, vertices)."""
    centres = vertices[torch.randint(len(vertices), (n,))]
    axes, _ = torch.linalg.qr(torch.randn(n, 3, 3))
    x, y, z = ((vertices - centres[:, None]) @ axes).moveaxis(-1, 0)
    return torch.exp(-2 * (x**2 * length + y**2 / length + z**2))[:, None]


signal = torch.cat([spots(150, 1.0), spots(150, 4.0)])
labels = torch.arange(300) // 150
shuffled = torch.randperm(300)
signal, labels = signal[shuffled], labels[shuffled]

network = nn.GEVNet(mesh, "1-4-4", samples=7, classes=2)
optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, 100)
for _ in range(100):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(network(signal[:200]), labels[:200]).backward()
    optimiser.step()
    schedule.step()
right = network.eval()(signal[200:]).argmax(1) == labels[200:]
print(f"{right.float().mean():.2f} right, on spots it has not seen")

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), subplot_kw={"projection": "3d"})
for label, (axis, name) in enumerate(zip(axes, ("round", "long"), strict=True)):
    values = signal[labels == label][0, 0].numpy()
    patches = axis.plot_trisurf(*egg.T, triangles=ball.triangles)
    patches.set_array(values[ball.triangles].mean(axis=1))
    centre = egg[values.argmax()]
    axis.view_init(
        np.degrees(np.arcsin(centre[2] / np.linalg.norm(centre))),
        np.degrees(np.arctan2(centre[1], centre[0])),
    )
    axis.set_title(name)
    axis.set_axis_off()
    axis.set_box_aspect(np.ptp(egg, axis=0), zoom=1.45)
plt.show()

# %%
# A network that tells crossings apart
# ------------------------------------
# Two sticks that cross at 90 or at 50 degrees, in random orientations, without the mean over
# directions. The same small network is trained twice, without and with products of two responses;
# both learn it, in a different number of steps.
grid = sphere.healpix(4)
points = torch.tensor(grid.points, dtype=torch.float32)


def crossings(n: int, degrees: float) -> torch.Tensor:
    """Signals of two sticks that cross at an angle, (n, 1, points)."""
    q, _ = torch.linalg.qr(torch.randn(n, 3, 3))
    half = np.radians(degrees / 2)
    along, across = q[:, 0] * np.cos(half), q[:, 1] * np.sin(half)
    sticks = (along + across, along - across)
    signal = sum(torch.exp(-2 * (stick @ points.T) ** 2) for stick in sticks)
    return (signal - signal.mean(1, keepdim=True))[:, None]


signal = torch.cat([crossings(120, 90), crossings(120, 50)])
labels = torch.arange(240) // 120
order = torch.randperm(240)
signal, labels = signal[order], labels[order]

losses = {}
for order in (1, 2):
    network = nn.GEVNet(grid, "1-4-4", order=order, samples=7, classes=2)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    losses[order] = []
    for _ in range(60):
        optimiser.zero_grad()
        scores = network(signal[:160])
        loss = torch.nn.functional.cross_entropy(scores, labels[:160])
        loss.backward()
        optimiser.step()
        losses[order].append(loss.item())
    right = network.eval()(signal[160:]).argmax(1) == labels[160:]
    print(f"order {order}: {right.float().mean():.2f} right, on crossings it has not seen")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for order, values in losses.items():
    left.plot(values, label=f"order {order}")
left.set(xlabel="step", ylabel="training loss")
left.legend()
theta = np.linspace(0, 2 * np.pi, 200)
for frequency, name in ((0, "scalar to scalar"), (1, "scalar to vector"), (2, "vector to vector")):
    right.plot(theta, np.cos(frequency * theta), label=name)
right.set(xlabel="direction on the ring", ylabel="kernel", ylim=(-1.1, 2))
right.set_xticks([0, np.pi, 2 * np.pi])
right.set_xticklabels(["0", "π", "2π"])
right.legend(loc="upper center")
plt.show()

# %%
# The kernels on the right are all that equivariance leaves of first order: waves of frequency 0,
# 1 and 2 around the ring. Second order multiplies two of their responses wherever the
# frequencies add up.
