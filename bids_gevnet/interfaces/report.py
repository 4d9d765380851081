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
    """A study whose models are trained, tested and evaluated."""

    output_dir = traits.Str(mandatory=True, desc="top of the derivatives")
    metrics = File(exists=True, desc="group_metrics.json")
    explanations = traits.List(File(exists=True), desc="saliency maps and leakage checks")


class BuildGroupReportOutputSpec(TraitedSpec):
    """The report."""

    report = File(exists=True, desc="group_report.html")


class BuildGroupReport(SimpleInterface):
    """Build group_report.html and the methods text from the files on disk."""

    input_spec = BuildGroupReportInputSpec
    output_spec = BuildGroupReportOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.report.group.page import build_group_report, write_group_methods
        from bids_gevnet.report.group.study_files import read_study

        output_dir = Path(self.inputs.output_dir)
        study = read_study(output_dir)
        self._results["report"] = str(build_group_report(output_dir, study))
        write_group_methods(output_dir, study)
        return runtime
