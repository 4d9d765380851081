"""Pictures of the methods pages, drawn by the code they explain."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from bids_gevnet import nn, sphere
from bids_gevnet.nn.steerable_kernels import kernel_matrices

if TYPE_CHECKING:
    from pathlib import Path

_INK = "tab:blue"
_OTHER = "tab:orange"


def write_method_figures(folder: Path) -> None:
    """Draw every figure into a folder, each only if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("kernels_on_the_ring.png", draw_kernels),
        ("transport.png", draw_transport),
        ("second_order.png", draw_second_order),
    ):
        if not (folder / name).exists():
            figure = draw()
            figure.savefig(folder / name, dpi=130, facecolor="white", bbox_inches="tight")
            plt.close(figure)


def draw_kernels() -> Any:
    """Draw each first-order kernel at directions around a point."""
    kinds = (
        (0, 0, 0, "scalar to scalar", "the mean"),
        (0, 1, 0, "scalar to vector", "the gradient"),
        (1, 0, 0, "vector to scalar", "outward flow"),
        (1, 1, 0, "vector to vector, plain", "the mean vector"),
        (1, 1, 2, "vector to vector, conjugate", "turned twice round the ring"),
    )
    figure, axes = plt.subplots(2, 3, figsize=(7.5, 5.9), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)
    axes[1, 2].set_axis_off()
    for axis, (n, m, basis, title, about) in zip(axes.flat, kinds, strict=False):
        for theta in np.linspace(0, 2 * np.pi, 16, endpoint=False):
            at = np.array([np.cos(theta), np.sin(theta)])
            kernel = kernel_matrices(n, m, theta)[basis]
            if n == m == 0:
                axis.scatter(*at, color=_INK)
                continue
            # What a unit scalar there, or a vector along the first axis, adds to the output.
            arrow = kernel[:, 0] if m == 1 else kernel[0]
            axis.quiver(
                *at,
                *(0.35 * arrow),
                angles="xy",
                scale_units="xy",
                scale=1,
                color=_INK,
                width=0.01,
            )
        axis.scatter(0, 0, color=_OTHER, zorder=3)
        axis.set(xlim=(-1.55, 1.55), ylim=(-1.55, 1.55), aspect="equal", xlabel=about)
        axis.set_title(title, fontsize=10)
        axis.set(xticks=[], yticks=[])
    return figure


def draw_transport() -> Any:
    """Carry a tangent vector around an eighth of the sphere; it returns turned by 90 degrees."""
    corners = np.eye(3)[[2, 0, 1, 2]]
    figure = plt.figure(figsize=(5, 4.4))
    axis = figure.add_axes((0, 0, 1, 1), projection="3d")
    u, v = np.mgrid[0 : 2 * np.pi : 48j, 0 : np.pi : 24j]
    ball = (np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v))
    axis.plot_wireframe(*ball, color="0.85", linewidth=0.4)
    vector = np.array([1.0, 0.0, 0.0])
    starts, arrows = [corners[0]], [vector]
    for begin, end in pairwise(corners):
        at = begin
        for share in np.linspace(0, 1, 7)[1:]:
            there = np.cos(share * np.pi / 2) * begin + np.sin(share * np.pi / 2) * end
            vector, at = sphere.transport(vector, at, there), there
            starts.append(at)
            arrows.append(vector)
    along, way = 0.35 * np.array(arrows), np.array(starts)
    axis.plot(*way.T, color="0.4", linewidth=1)
    axis.quiver(*way[1:-1].T, *along[1:-1].T, color=_INK, linewidth=1.2)
    for place, colour, text in ((0, "black", "starts here"), (-1, _OTHER, "comes back like this")):
        axis.quiver(*way[place], *along[place], color=colour, linewidth=2.5, label=text)
    axis.legend(loc="upper left", fontsize=8)
    axis.view_init(30, 40)
    axis.set_axis_off()
    axis.set_box_aspect((1, 1, 1), zoom=1.35)
    return figure


def second_order_answers(angles: np.ndarray) -> dict[int, np.ndarray]:
    """Average the output of an untrained layer over the sphere, for crossings of two sticks.

    Parameters
    ----------
    angles : (n,) array
        Degrees at which the sticks cross.

    Returns
    -------
    dict of int to (n,) array
        By order of the layer, relative to sticks that do not cross.
    """
    grid = sphere.healpix(8)
    half = np.radians(angles) / 2
    sticks = [
        np.stack([np.cos(half), sign * np.sin(half), np.zeros_like(half)], axis=1)
        for sign in (1, -1)
    ]
    signal = sum(np.exp(-2 * (stick @ grid.points.T) ** 2) for stick in sticks).T
    inputs = torch.tensor(signal, dtype=torch.float32)[:, None]
    answers = {}
    for order in (1, 2):
        torch.manual_seed(0)
        scalars = nn.FieldType.scalars(1)
        layer = nn.GEVConv(grid, scalars, scalars, order=order)
        with torch.no_grad():
            # Weights of second order start near zero; they are made as large as those of first.
            for weight in layer.parameters():
                weight.normal_()
            mean = layer(inputs).mean(dim=0)[0].numpy()
        answers[order] = mean / mean[0]
    return answers


def draw_second_order() -> Any:
    """Show what the average over the sphere of a layer's output tells of a crossing angle."""
    angles = np.linspace(0, 90, 31)
    figure, axis = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    for order, values in second_order_answers(angles).items():
        axis.plot(angles, values, color=(_INK, _OTHER)[order - 1], label=f"order {order}")
    axis.set(xlabel="degrees between two fibres", ylabel="mean over the sphere, relative")
    axis.legend()
    return figure
