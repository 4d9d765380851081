"""Choose the programs: FSL where it is installed and wanted, pip packages elsewhere."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bids_gevnet.dwi.fsl import EddyBinary, find_eddy, find_tool
from bids_gevnet.errors import InputError
from bids_gevnet.facts import CorrectionMethod
from bids_gevnet.settings import PreprocessingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Programs that were found and chosen; None where a pip package does the work instead."""

    correction: CorrectionMethod
    eddy: EddyBinary | None = None
    topup: Path | None = None
    bet: Path | None = None
    gpu: bool = False

    @property
    def masking(self) -> Literal["bet", "otsu"]:
        """How brains are masked."""
        return "otsu" if self.bet is None else "bet"


def choose_tools(settings: PreprocessingSettings, *, gpu: bool | None = None) -> Tools:
    """Choose by the settings and by what PATH holds.

    Parameters
    ----------
    settings : PreprocessingSettings
    gpu : bool, optional
        Whether a GPU may be used, by a CUDA build of eddy or by the model-based correction
        (default: whether the machine has one).
    """
    search_path = os.environ.get("PATH", "")
    has_gpu = may_use_gpu("auto") if gpu is None else gpu
    eddy = find_eddy(search_path, gpu=has_gpu)
    bet = find_tool("bet", search_path)
    if settings.correction == "eddy" and eddy is None:
        raise _missing("eddy, eddy_cpu, eddy_openmp or eddy_cuda*", "--correction model")
    if settings.masking == "bet" and bet is None:
        raise _missing("bet", "--masking otsu")
    best: CorrectionMethod = "model" if eddy is None else "eddy"
    correction = best if settings.correction == "auto" else settings.correction
    if settings.use_syn_sdc and correction != "model":
        raise InputError(
            expected="--correction model with --use-syn-sdc",
            found=correction + (" (chosen by auto)" if settings.correction == "auto" else ""),
            remedy="add --correction model, or leave --use-syn-sdc out",
        )
    return Tools(
        correction=correction,
        eddy=eddy if correction == "eddy" else None,
        topup=find_tool("topup", search_path) if correction == "eddy" else None,
        bet=bet if settings.masking in {"auto", "bet"} else None,
        gpu=has_gpu,
    )


def may_use_gpu(devices: str) -> bool:
    """Whether `--devices` allows a GPU and the machine has one; said without importing torch."""
    return not devices.startswith("cpu:") and any(Path("/dev").glob("nvidia[0-9]*"))


def _missing(program: str, alternative: str) -> InputError:
    return InputError(
        expected=f"FSL's {program} on PATH",
        found="none",
        remedy=f"install FSL, or use {alternative}, which needs pip packages only",
    )
