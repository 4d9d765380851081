"""What all builders of the participant level share: where to write, how, and with what."""

from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.interfaces.template_grid import TemplateGrid
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """What the workflow of every scan is built from.

    Attributes
    ----------
    output_dir : Path
        Top of the derivatives.
    grid : TemplateGrid
        Template and output grid.
    settings : PreprocessingSettings
    tools : Tools
        Programs that were found and chosen.
    threads : int
        Threads a node may take.
    """

    output_dir: Path
    grid: TemplateGrid
    settings: PreprocessingSettings
    tools: Tools
    threads: int
