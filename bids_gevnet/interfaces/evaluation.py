"""Nodes of the group level that judge its models: collect, evaluate, explain, refit."""

import json
from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    Directory,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.writing import write_json
from bids_gevnet.interfaces.study_files import read_cohort_file, read_job, read_settings
from bids_gevnet.layout import OutputLayout


class CollectPredictionsInputSpec(BaseInterfaceInputSpec):
    """A study whose models are trained and tested."""

    cohort = File(exists=True, mandatory=True, desc="from ReadCohort")
    jobs_file = File(exists=True, mandatory=True, desc="all jobs, from SplitCohort")
    settings = traits.Str(mandatory=True, desc="what decides the models, as TOML")
    scores = traits.List(File(exists=True), mandatory=True, desc="held-out scores of every split")
    weights = traits.List(File(exists=True), mandatory=True, desc="weights of every model")
    output_dir = traits.Str(mandatory=True, desc="where the tables go")


class CollectPredictionsOutputSpec(TraitedSpec):
    """Tables of the study."""

    cohort_table = File(exists=True, desc="group_cohort.tsv")
    predictions = File(exists=True, desc="group_predictions.tsv")
    about = File(exists=True, desc="facts of the training, for the metrics")
    models = traits.List(Directory(exists=True), desc="folders of the final models")


class CollectPredictions(SimpleInterface):
    """Gather held-out predictions, fit baselines to the same splits, calibrate final models."""

    input_spec = CollectPredictionsInputSpec
    output_spec = CollectPredictionsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.collection import Study, collect_predictions
        from bids_gevnet.learn.train.jobs import read_jobs
        from bids_gevnet.learn.train.planning import plan_study

        cohort = read_cohort_file(self.inputs.cohort)
        settings = read_settings(self.inputs.settings)
        plan = plan_study(cohort, settings.learning, seed=settings.execution.random_seed)
        output = OutputLayout(Path(self.inputs.output_dir))
        collected = collect_predictions(
            Study(cohort, plan, read_jobs(Path(self.inputs.jobs_file))),
            output,
            reference_site=settings.learning.reference_site,
        )
        about = Path(runtime.cwd) / "about.json"
        write_json(about, collected.about)
        self._results["cohort_table"] = str(output.cohort_table)
        self._results["predictions"] = str(output.predictions_table)
        self._results["about"] = str(about)
        self._results["models"] = [str(path) for path in collected.models]
        return runtime


class ScoreCohortInputSpec(BaseInterfaceInputSpec):
    """A labelled cohort in the store, and a finished model."""

    cohort = traits.Str(mandatory=True, desc="who is scored, as JSON")
    folders = traits.List(Directory(exists=True), mandatory=True, desc="each scan in the store")
    model = traits.Str(mandatory=True, desc="folder of the model")
    weights = File(exists=True, mandatory=True, desc="its weights, so that a change is noticed")
    card = File(exists=True, mandatory=True, desc="its model.json, for the same reason")
    output_dir = traits.Str(mandatory=True, desc="where the tables go")
    adapt = traits.Bool(False, usedefault=True, desc="harmonise new sites without labels")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class ScoreCohortOutputSpec(TraitedSpec):
    """Tables of the validation."""

    predictions = File(exists=True, desc="group_predictions.tsv")
    about = File(exists=True, desc="facts of the model, for the metrics")


class ScoreCohort(SimpleInterface):
    """Score people whom a finished model has never seen; nothing is fitted to labels."""

    input_spec = ScoreCohortInputSpec
    output_spec = ScoreCohortOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.cohort.members import cohort_from_json
        from bids_gevnet.learn.evaluate.external import score_cohort
        from bids_gevnet.learn.train.distributed import Processes, single_device
        from bids_gevnet.learn.train.process import limited_threads

        output = OutputLayout(Path(self.inputs.output_dir))
        with limited_threads(self.inputs.threads):
            about = score_cohort(
                cohort_from_json(json.loads(self.inputs.cohort)),
                [Path(folder) for folder in self.inputs.folders],
                Path(self.inputs.model),
                output,
                Processes(device=single_device(gpu=self.inputs.gpu)),
                adapt=self.inputs.adapt,
            )
        path = Path(runtime.cwd) / "about.json"
        write_json(path, about)
        self._results["predictions"] = str(output.predictions_table)
        self._results["about"] = str(path)
        return runtime


class EvaluatePredictionsInputSpec(BaseInterfaceInputSpec):
    """Held-out predictions."""

    predictions = File(exists=True, mandatory=True, desc="group_predictions.tsv")
    about = File(exists=True, mandatory=True, desc="facts of the training")
    seed = traits.Int(mandatory=True, desc="of bootstrap and permutations")
    output_dir = traits.Str(mandatory=True, desc="where the metrics go")


class EvaluatePredictionsOutputSpec(TraitedSpec):
    """What they are worth."""

    metrics = File(exists=True, desc="group_metrics.json")


class EvaluatePredictions(SimpleInterface):
    """Turn the table of predictions into figures with intervals."""

    input_spec = EvaluatePredictionsInputSpec
    output_spec = EvaluatePredictionsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.predictions_table import write_headlines, write_metrics

        output = OutputLayout(Path(self.inputs.output_dir))
        about = json.loads(Path(self.inputs.about).read_text(encoding="utf-8"))
        content = write_metrics(
            output.metrics_file, Path(self.inputs.predictions), about, seed=self.inputs.seed
        )
        write_headlines(output.headline_table, content)
        self._results["metrics"] = str(output.metrics_file)
        return runtime


class WriteModelCardsInputSpec(BaseInterfaceInputSpec):
    """A study whose figures are known."""

    weights = traits.List(File(exists=True), desc="weights: a model trained again lost its card")
    metrics = File(exists=True, mandatory=True, desc="group_metrics.json")
    output_dir = traits.Str(mandatory=True, desc="where the models are")


class WriteModelCardsOutputSpec(TraitedSpec):
    """What people read about the models."""

    cards = traits.List(File(exists=True), desc="MODEL_CARD.md of every final model")


class WriteModelCards(SimpleInterface):
    """Describe every final model for people, with its figures."""

    input_spec = WriteModelCardsInputSpec
    output_spec = WriteModelCardsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.model_card import write_model_cards

        metrics = json.loads(Path(self.inputs.metrics).read_text(encoding="utf-8"))
        written = write_model_cards(Path(self.inputs.output_dir), metrics)
        self._results["cards"] = [str(path) for path in written]
        return runtime


class MapSaliencyInputSpec(BaseInterfaceInputSpec):
    """Models of one task, trained and tested."""

    jobs = traits.List(File(exists=True), mandatory=True, desc="jobs of the folds of one network")
    weights = traits.List(File(exists=True), mandatory=True, desc="weights of their models")
    atlas = File(exists=True, desc="label image of regions, in template space")
    atlas_names = File(exists=True, desc="names of its labels, so that a change is noticed")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class MapSaliencyOutputSpec(TraitedSpec):
    """What the predictions rest on."""

    maps = traits.List(File(exists=True), desc="saliency.json beside the models")


class MapSaliency(SimpleInterface):
    """Map what held-out predictions rest on, over the brain and over directions."""

    input_spec = MapSaliencyInputSpec
    output_spec = MapSaliencyOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.saliency_maps import write_saliency_maps
        from bids_gevnet.learn.train.distributed import single_device

        written = write_saliency_maps(
            [read_job(path) for path in self.inputs.jobs],
            atlas=Path(self.inputs.atlas) if isdefined(self.inputs.atlas) else None,
            device=single_device(gpu=self.inputs.gpu),
        )
        self._results["maps"] = [str(path) for path in written]
        return runtime


class RefitHarmonisationInputSpec(BaseInterfaceInputSpec):
    """A fold whose model is trained."""

    job = File(exists=True, mandatory=True, desc="its job")
    weights = File(exists=True, mandatory=True, desc="weights of its model")


class RefitHarmonisationOutputSpec(TraitedSpec):
    """Whether anything leaked."""

    check = File(exists=True, desc="harmonisation_check.json beside the models")


class RefitHarmonisation(SimpleInterface):
    """Fit the harmonisation again from the training scans alone, for the leakage audit."""

    input_spec = RefitHarmonisationInputSpec
    output_spec = RefitHarmonisationOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.leakage_refit import check_harmonisation

        self._results["check"] = str(check_harmonisation(read_job(self.inputs.job)))
        return runtime
