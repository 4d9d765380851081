"""A model for tests of the command line."""

from pathlib import Path

import pytest

from bids_gevnet.interfaces.template_grid import output_grid
from bids_gevnet.learn.models.files import ModelCard, write_model
from bids_gevnet.nn import build
from bids_gevnet.settings import PreprocessingSettings


@pytest.fixture
def trained_model(tmp_path: Path) -> Path:
    """A model folder with the weights it started with, on the grid of the default settings."""
    settings = PreprocessingSettings()
    grid = output_grid(settings)
    card = ModelCard(
        network="ckn2", labels=("AD", "PD"), task="t", fold=None, nside=settings.nside,
        shape=grid.shape, affine=tuple(map(tuple, grid.affine_rows)), temperature=1.0,
        options={}, participants=(), fingerprints=(), dataset="", sites=(), max_motion=None,
        rish_low=(), rish_high=(), harmonised=False, warnings=(), digest="",
    )  # fmt: skip
    write_model(tmp_path / "model", build("ckn2", nside=settings.nside), card, None)
    return tmp_path / "model"
