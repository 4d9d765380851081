"""Read derivatives of this app: another template, resolution or shell without a new correction."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    SERIES,
    gradient_files,
    sidecar,
    transform_ending,
)
from bids_gevnet.bids.preprocessed.files import first_file, require_file, scan_entities
from bids_gevnet.bids.preprocessed.record import DerivativeDataset, Finding, PreprocessedScan
from bids_gevnet.bids.sidecars import split_name

_RUN_AGAIN = "run the participant level again, or leave the participant out"


class Own:
    """Find and read what the participant level wrote, in the scan's own space."""

    name = "bids_gevnet"
    title = "bids_gevnet"

    def recognises(self, folder: Path) -> bool:
        """Tell by the names of series without a space, with our transform beside them."""
        return any(
            next(image.parent.glob(f"*_{transform_ending('*')}"), None) is not None
            for image in _series(folder)
        )

    def find(self, folder: Path) -> Mapping[str, Sequence[Finding]]:
        """List the series of each participant."""
        findings: dict[str, list[Finding]] = {}
        for image in _series(folder):
            label = image.relative_to(folder).parts[0].removeprefix("sub-")
            entities = scan_entities(split_name(image)[0]) | {"sub": label}
            findings.setdefault(label, []).append(Finding(entities=entities, image=image))
        return findings

    def read(self, dataset: DerivativeDataset, finding: Finding) -> PreprocessedScan:
        """Look for gradients, mask, confounds and transform of a series."""
        image = finding.image
        prefix = image.name.removesuffix(SERIES)
        bval, bvec = gradient_files(image)
        transforms = sorted(image.parent.glob(f"{prefix}{transform_ending('*')}"))
        return PreprocessedScan(
            dataset=dataset,
            entities=finding.entities,
            image=image,
            bval=require_file([bval], "b-values", _RUN_AGAIN),
            bvec=require_file([bvec], "gradient directions", _RUN_AGAIN),
            sidecar=first_file([sidecar(image)]),
            mask=first_file([image.with_name(f"{prefix}{BRAIN_MASK}")]),
            transform=transforms[0] if transforms else None,
            template=split_name(transforms[0])[0]["to"] if transforms else "",
            confounds=first_file([image.with_name(f"{prefix}{CONFOUNDS}")]),
            report=first_file([dataset.folder / f"sub-{finding.entities['sub']}.html"]),
        )


def _series(folder: Path) -> Iterator[Path]:
    for pattern in (f"sub-*/dwi/*_{SERIES}", f"sub-*/ses-*/dwi/*_{SERIES}"):
        for image in sorted(folder.glob(pattern)):
            if "space" not in split_name(image)[0]:
                yield image
