"""Build a participant's report when all its derivatives are there."""

from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.report.subject import build_subject_report


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
