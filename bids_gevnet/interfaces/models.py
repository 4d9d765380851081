"""Nodes of the group level that make one model: harmonise, train, test.

Files of a model (its job, harmonisation, checkpoint, weights, scores) lie where its job says, and
belong to the job whose digest they carry: nodes, and training processes on a cluster, find what
the others finished.
"""

from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.errors import StoppedError
from bids_gevnet.interfaces.study_files import read_job


class FitHarmonisationInputSpec(BaseInterfaceInputSpec):
    """One model to train."""

    job = File(exists=True, mandatory=True, desc="its job")


class FitHarmonisationOutputSpec(TraitedSpec):
    """What harmonises its scans."""

    gains = File(exists=True, desc="gains per site, fitted to the training scans alone")


class FitHarmonisation(SimpleInterface):
    """Fit the harmonisation of one model to its training scans."""

    input_spec = FitHarmonisationInputSpec
    output_spec = FitHarmonisationOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.train.distributed import Processes
        from bids_gevnet.learn.train.trainer import fit_harmonisation, gains_file

        job = read_job(self.inputs.job)
        fit_harmonisation(job, Processes())
        self._results["gains"] = str(gains_file(job))
        return runtime


class TrainModelInputSpec(BaseInterfaceInputSpec):
    """One model to train."""

    job = File(exists=True, mandatory=True, desc="its job")
    gains = File(exists=True, desc="its harmonisation")
    processes = traits.Int(1, usedefault=True, nohash=True, desc="training processes")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads of each process")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="a GPU for each process")
    resume = traits.Bool(False, usedefault=True, nohash=True, desc="from the last checkpoint")
    number = traits.Int(1, usedefault=True, nohash=True, desc="its number, for people")
    total = traits.Int(1, usedefault=True, nohash=True, desc="models of the study, for people")


class TrainModelOutputSpec(TraitedSpec):
    """The trained model."""

    weights = File(exists=True, desc="model.safetensors in the folder of the model")


class TrainModel(SimpleInterface):
    """Train one model, in this process or by torchrun in several."""

    input_spec = TrainModelInputSpec
    output_spec = TrainModelOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.models.files import WEIGHTS
        from bids_gevnet.learn.train.distributed import TrainingInterrupted
        from bids_gevnet.learn.train.outputs import is_trained
        from bids_gevnet.learn.train.torchrun import Devices, train
        from bids_gevnet.learn.train.trainer import checkpoint_file

        job = read_job(self.inputs.job)
        if not self.inputs.resume:
            checkpoint_file(job).unlink(missing_ok=True)
        devices = Devices(
            processes=self.inputs.processes, gpu=self.inputs.gpu, threads=self.inputs.threads
        )
        try:
            if not is_trained(job):  # by an earlier run, or on other nodes of a cluster
                train(
                    Path(self.inputs.job),
                    devices,
                    test=False,
                    first=self.inputs.number,
                    total=self.inputs.total,
                )
        except TrainingInterrupted as error:
            # Not a failure of this node: the whole workflow has to stop.
            raise StoppedError(str(error)) from None
        self._results["weights"] = str(Path(job.model_dir) / WEIGHTS)
        return runtime


class TestModelInputSpec(BaseInterfaceInputSpec):
    """A trained model."""

    __test__ = False
    job = File(exists=True, mandatory=True, desc="its job")
    weights = File(exists=True, mandatory=True, desc="its weights")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class TestModelOutputSpec(TraitedSpec):
    """What it says about people it was not trained on."""

    __test__ = False
    scores = File(exists=True, desc="held_out.json in the folder of the model")


class TestModel(SimpleInterface):
    """Score the people that a model was not trained on."""

    __test__ = False
    input_spec = TestModelInputSpec
    output_spec = TestModelOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.train.distributed import Processes, single_device
        from bids_gevnet.learn.train.held_out import score_held_out
        from bids_gevnet.learn.train.process import limited_threads

        processes = Processes(device=single_device(gpu=self.inputs.gpu))
        with limited_threads(self.inputs.threads):
            scores = score_held_out(read_job(self.inputs.job), processes)
        self._results["scores"] = str(scores)
        return runtime
