"""Training on a whole study, as a Nipype interface."""

import tomllib
from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.settings import Settings


class TrainGroupInputSpec(BaseInterfaceInputSpec):
    """A study whose participants are done."""

    output_dir = traits.Str(mandatory=True, desc="where the participant level wrote to")
    bids_dir = traits.Str(mandatory=True, desc="the raw dataset, for labels and scanners")
    settings = traits.Str(mandatory=True, desc="all settings as TOML")
    participants = traits.List(traits.Str(), desc="only these, if any are given")


class TrainGroupOutputSpec(TraitedSpec):
    """What training leaves."""

    cohort = File(exists=True, desc="group_cohort.tsv")
    predictions = File(exists=True, desc="group_predictions.tsv")
    metrics = File(exists=True, desc="group_metrics.json")
    models = traits.List(traits.Str(), desc="folders of the final models")
    warnings = traits.List(traits.Str(), desc="sentences for the terminal and the report")


class TrainGroup(SimpleInterface):
    """Train and test the network over folds and sites, then on everybody, by torchrun."""

    input_spec = TrainGroupInputSpec
    output_spec = TrainGroupOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.collection import run_group

        settings = Settings.from_tables(tomllib.loads(self.inputs.settings), source="the settings")
        result = run_group(
            Path(self.inputs.output_dir),
            Path(self.inputs.bids_dir),
            settings.learning,
            settings.execution,
            participants=tuple(self.inputs.participants or ()),
        )
        self._results["cohort"] = str(result.cohort_tsv)
        self._results["predictions"] = str(result.predictions_tsv)
        self._results["metrics"] = str(result.metrics_json)
        self._results["models"] = [str(path) for path in result.models]
        self._results["warnings"] = list(result.warnings)
        return runtime
