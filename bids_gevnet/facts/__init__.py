"""What happened to a scan: frozen, typed, written by the stages and read by the reports.

Read in this order:

- `run`: how a run was acquired, conformed and corrected; every field says its unit;
- `scan`: one class per further stage, and `ScanFacts`, which gathers all of them;
- `json_form`: to JSON and back, tolerant of files that are damaged or from another version.

Interfaces fill the objects, `interfaces.derivatives` gathers them into one file per scan
(`bids.derivatives.FACTS`), and everybody else reads attributes: no other module knows a key.

A new correction method touches four places:

1. its name: `settings.Correction`, for the command line, and `CorrectionMethod` in `run`;
2. its interface, which fills a `CorrectionFacts`;
3. `workflows.correction_plan`, which says when it runs, and `workflows.correction`, which
   connects it;
4. `report.correction_methods`, which holds its title, its sentence for the methods text and
   what it leaves uncorrected.

Alerts, report sections, group measures and `--boilerplate-only` follow from these.
"""

from bids_gevnet.facts.run import (
    AcquisitionFacts,
    CleaningFacts,
    ConformFacts,
    CorrectionFacts,
    CorrectionMethod,
    DenoisingMethod,
    EncodingTrial,
    NoiseFacts,
    OutlierSlice,
    ScannerFacts,
    Susceptibility,
    SusceptibilityField,
)
from bids_gevnet.facts.scan import (
    BiasFacts,
    GradientCheck,
    JoinFacts,
    LeftOutRun,
    MaskFacts,
    PredictionFacts,
    QualityFacts,
    RegistrationFacts,
    ScanFacts,
    ShellFacts,
    ShellSignal,
    SourceFacts,
    SphereFacts,
    StandardFacts,
    TensorFacts,
    ToolFacts,
)

__all__ = [
    "AcquisitionFacts",
    "BiasFacts",
    "CleaningFacts",
    "ConformFacts",
    "CorrectionFacts",
    "CorrectionMethod",
    "DenoisingMethod",
    "EncodingTrial",
    "GradientCheck",
    "JoinFacts",
    "LeftOutRun",
    "MaskFacts",
    "NoiseFacts",
    "OutlierSlice",
    "PredictionFacts",
    "QualityFacts",
    "RegistrationFacts",
    "ScanFacts",
    "ScannerFacts",
    "ShellFacts",
    "ShellSignal",
    "SourceFacts",
    "SphereFacts",
    "StandardFacts",
    "Susceptibility",
    "SusceptibilityField",
    "TensorFacts",
    "ToolFacts",
]
