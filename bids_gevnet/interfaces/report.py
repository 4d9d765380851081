"""Build the report of a participant, and that of a study."""

from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.report.subject.page import build_subject_report


class BuildSubjectReportInputSpec(BaseInterfaceInputSpec):
    """A participant whose scans are done."""

    output_dir = traits.Str(mandatory=True, desc="top of the derivatives")
    label = traits.Str(mandatory=True, desc="label of the participant")
    facts = traits.List(File(exists=True), mandatory=True, desc="facts of its scans")


class BuildSubjectReportOutputSpec(TraitedSpec):
    """The report."""

    report = File(exists=True, desc="sub-X.html")


class BuildSubjectReport(SimpleInterface):
    """Build sub-X.html from the derivatives on disk."""

    input_spec = BuildSubjectReportInputSpec
    output_spec = BuildSubjectReportOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        report = build_subject_report(Path(self.inputs.output_dir), self.inputs.label)
        self._results["report"] = str(report)
        return runtime


class BuildGroupReportInputSpec(BaseInterfaceInputSpec):
    """A cohort whose models are trained."""

    output_dir = traits.Str(mandatory=True, desc="top of the derivatives")
    jobs_file = traits.Str(desc="training jobs, while the scans are still in the store")
    metrics = File(exists=True, desc="group_metrics.json")


class BuildGroupReportOutputSpec(TraitedSpec):
    """The report."""

    report = File(exists=True, desc="group_report.html")


class BuildGroupReport(SimpleInterface):
    """Map saliency, check the harmonisation, build group_report.html and the methods text.

    What takes the network or the scans is computed here, once, and kept beside the models;
    reports are built again from those files alone.
    """

    input_spec = BuildGroupReportInputSpec
    output_spec = BuildGroupReportOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.report.group.page import build_group_report, write_group_methods

        output_dir = Path(self.inputs.output_dir)
        if self.inputs.jobs_file and Path(self.inputs.jobs_file).is_file():
            from bids_gevnet.learn.evaluate.leakage_refit import check_harmonisation
            from bids_gevnet.learn.evaluate.saliency_maps import write_saliency_maps
            from bids_gevnet.learn.train.jobs import read_jobs

            jobs, _ = read_jobs(Path(self.inputs.jobs_file))
            write_saliency_maps(jobs)
            check_harmonisation(jobs)
        self._results["report"] = str(build_group_report(output_dir))
        write_group_methods(output_dir)
        return runtime
