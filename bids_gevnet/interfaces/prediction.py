"""Harmonise a scan as a trained model's data were harmonised, and predict its class or number."""

from pathlib import Path
from typing import Any

import numpy as np
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    Directory,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.writing import write_image
from bids_gevnet.facts import PredictionFacts
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.interfaces.confounds import read_confounds
from bids_gevnet.interfaces.series import read_image, read_mask, write_facts


class HarmoniseInputSpec(BaseInterfaceInputSpec):
    """A scan on the sphere, where it comes from, and a model."""

    model = Directory(exists=True, mandatory=True, desc="folder with model.json")
    samples = File(exists=True, mandatory=True, desc="S/b0 at the HEALPix points")
    mask = File(exists=True, mandatory=True, desc="brain in template space")
    site = traits.Str(mandatory=True, desc="as the training data name it")
    participant = traits.Str(mandatory=True, desc="label; nobody of the training data is taken")
    dataset = traits.Str(mandatory=True, desc="name of the dataset")
    gains = File(exists=True, desc="gains for a site the model was not trained on")


class HarmoniseOutputSpec(TraitedSpec):
    """The scan as the network takes it."""

    samples = File(exists=True, desc="harmonised S/b0 at the HEALPix points")
    harmonised = traits.Bool(desc="whether the model has gains for the site")


class Harmonise(SimpleInterface):
    """Scale the samples of a scan with the gains that a model has for its site."""

    input_spec = HarmoniseInputSpec
    output_spec = HarmoniseOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.models.prediction import harmonise_scan

        samples, affine = read_image(self.inputs.samples)
        mask, _ = read_mask(self.inputs.mask)
        scan = harmonise_scan(
            Path(self.inputs.model),
            np.asarray(samples),
            mask,
            affine=affine,
            site=self.inputs.site,
            participant=self.inputs.participant,
            dataset=self.inputs.dataset,
            adapted=load_gains(Path(self.inputs.gains)) if isdefined(self.inputs.gains) else None,
        )
        volume = np.zeros(samples.shape, np.float32)
        volume[mask] = scan.values
        path = Path(runtime.cwd) / "harmonised.nii"
        write_image(path, volume, affine)
        self._results["samples"] = str(path)
        self._results["harmonised"] = bool(scan.scaled)
        return runtime


class PredictInputSpec(BaseInterfaceInputSpec):
    """A harmonised scan and a model."""

    model = Directory(exists=True, mandatory=True, desc="folder with model.json")
    samples = File(exists=True, mandatory=True, desc="harmonised S/b0 at the HEALPix points")
    harmonised = traits.Bool(mandatory=True, desc="whether the model has gains for the site")
    mask = File(exists=True, mandatory=True, desc="brain in template space")
    confounds = File(exists=True, mandatory=True, desc="motion per volume")
    site = traits.Str(mandatory=True, desc="as the training data name it")
    adaptation = traits.Str("", usedefault=True, desc="what gains for a new site rest on")


class PredictOutputSpec(TraitedSpec):
    """A prediction."""

    table = File(exists=True, desc="one row per class, or one for a number")
    facts = File(exists=True, desc="PredictionFacts of the scan")


class Predict(SimpleInterface):
    """Give probabilities or a number, and say where the scan is unlike the training data."""

    input_spec = PredictInputSpec
    output_spec = PredictOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.models.prediction import classify, write_prediction

        folder = Path(runtime.cwd)
        samples, _ = read_image(self.inputs.samples)
        mask, _ = read_mask(self.inputs.mask)
        displacement = read_confounds(self.inputs.confounds)["framewise_displacement"]
        prediction = classify(
            Path(self.inputs.model),
            np.asarray(samples)[mask],
            mask,
            site=self.inputs.site,
            motion=float(displacement.mean()),
            adaptation=self.inputs.adaptation,
        )
        write_prediction(folder / "prediction.tsv", prediction)
        self._results["table"] = str(folder / "prediction.tsv")
        facts = PredictionFacts(
            task=prediction.task,
            network=prediction.network,
            label=prediction.label,
            probabilities=prediction.probabilities or None,
            value=prediction.value,
            unit=prediction.unit,
            typical_error=prediction.typical_error,
            harmonised=self.inputs.harmonised,
            warnings=prediction.warnings,
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime
