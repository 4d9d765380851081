"""Predict the class of a scan with a trained model."""

from pathlib import Path
from typing import Any

import numpy as np
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    Directory,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.interfaces.confounds import read_confounds
from bids_gevnet.interfaces.series import read_image, read_mask, write_facts


class PredictInputSpec(BaseInterfaceInputSpec):
    """A scan on the sphere and a model."""

    model = Directory(exists=True, mandatory=True, desc="folder with model.json")
    samples = File(exists=True, mandatory=True, desc="S/b0 at the HEALPix points")
    mask = File(exists=True, mandatory=True, desc="brain in template space")
    confounds = File(exists=True, mandatory=True, desc="motion per volume")
    participant = traits.Str(mandatory=True, desc="label")
    site = traits.Str(mandatory=True, desc="as the training data name it")
    dataset = traits.Str(mandatory=True, desc="name of the dataset")


class PredictOutputSpec(TraitedSpec):
    """A prediction."""

    table = File(exists=True, desc="one row per class")
    facts = File(exists=True, desc="what the report says")


class Predict(SimpleInterface):
    """Calibrated probabilities, and where the scan is unlike the training data."""

    input_spec = PredictInputSpec
    output_spec = PredictOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.models.prediction import predict, write_prediction

        folder = Path(runtime.cwd)
        samples, affine = read_image(self.inputs.samples)
        mask, _ = read_mask(self.inputs.mask)
        moved = read_confounds(self.inputs.confounds)["framewise_displacement"]
        prediction = predict(
            Path(self.inputs.model),
            np.asarray(samples),
            mask,
            affine=affine,
            site=self.inputs.site,
            participant=self.inputs.participant,
            dataset=self.inputs.dataset,
            motion=float(moved.mean()),
        )
        write_prediction(folder / "prediction.tsv", prediction)
        self._results["table"] = str(folder / "prediction.tsv")
        facts = {
            "task": prediction.task,
            "network": prediction.network,
            "label": prediction.label,
            "probabilities": prediction.probabilities,
            "warnings": list(prediction.warnings),
        }
        self._results["facts"] = str(write_facts(folder, facts))
        return runtime
