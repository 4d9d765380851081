"""Read what FSL's eddy left: ``<out>.nii.gz`` and ``<out>.eddy_rotated_bvecs``, any ``<out>``.

Folders are called ``sub-X/[ses-Y/]...`` or ``X/...``, up to four deep. eddy writes no b-values and
no mask: these are looked for beside it under the names that FSL's tutorials use.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bids_gevnet.bids.preprocessed.files import as_label, first_file, only_file, require_file
from bids_gevnet.bids.preprocessed.record import DerivativeDataset, Finding, PreprocessedScan
from bids_gevnet.errors import ParticipantError

_ROTATED = ".eddy_rotated_bvecs"
_PARAMETERS = ".eddy_parameters"
_DEPTHS = ("*/*", "*/*/*", "*/*/*/*")
_MASKS = ("nodif_brain_mask.nii.gz", "hifi_nodif_brain_mask.nii.gz", "b0_brain_mask.nii.gz")


class FslEddy:
    """Find and read the outputs of eddy."""

    name = "fsl_eddy"
    title = "FSL eddy"

    def recognises(self, folder: Path) -> bool:
        """Tell by eddy's parameters or rotated directions."""
        return next(_bases(folder), None) is not None

    def find(self, folder: Path) -> Mapping[str, Sequence[Finding]]:
        """List the series of each participant; several of one session are numbered."""
        sessions: dict[tuple[str, str], list[Path]] = {}
        for base in _bases(folder):
            participant, *below = base.relative_to(folder).parts[:-1]
            named = [part for part in below if part.startswith("ses-")]
            session = as_label(named[0].removeprefix("ses-")) if named else ""
            sessions.setdefault((as_label(participant), session), []).append(base)
        findings: dict[str, list[Finding]] = {}
        for (label, session), bases in sessions.items():
            for number, base in enumerate(bases, start=1):
                run = {"run": str(number)} if len(bases) > 1 else {}
                entities = {"sub": label} | ({"ses": session} if session else {}) | run
                image = _image(base) or Path(f"{base}.nii.gz")
                findings.setdefault(label, []).append(Finding(entities=entities, image=image))
        return findings

    def read(self, dataset: DerivativeDataset, finding: Finding) -> PreprocessedScan:
        """Look for b-values, rotated directions, mask and motion of a series."""
        base = Path(str(finding.image).removesuffix(".gz").removesuffix(".nii"))
        folder = base.parent
        bvec = Path(f"{base}{_ROTATED}")
        if not bvec.is_file():
            raise ParticipantError(
                expected=f"directions that eddy rotated with the head, {bvec.name}, in {folder}",
                found="none",
                remedy="restore the file; every eddy since FSL 5.0.9 writes it",
            )
        image = require_file([finding.image], "the image that eddy wrote", "restore the file")
        beside = [Path(f"{base}.bval"), Path(f"{base}.bvals"), folder / "bvals", folder / "bval"]
        above = [folder.parent / "bvals", *only_file(folder.parent, "*.bval")]
        bval = require_file(
            [*beside, *only_file(folder, "*.bval"), *above],
            "b-values",
            "copy the b-values that eddy was given to that folder, as bvals",
        )
        return PreprocessedScan(
            dataset=dataset,
            entities=finding.entities,
            image=image,
            bval=bval,
            bvec=bvec,
            mask=first_file(
                [
                    Path(f"{base}_mask.nii.gz"),
                    Path(f"{base}_brain_mask.nii.gz"),
                    *(folder / name for name in _MASKS),
                    *only_file(folder, "*brain_mask.nii.gz"),
                ]
            ),
            t1w=first_file(only_file(folder, "*T1w.nii.gz")),
            eddy_base=base if Path(f"{base}{_PARAMETERS}").is_file() else None,
        )


def _bases(folder: Path) -> Iterator[Path]:
    """Yield what the names of eddy's files begin with, each once and sorted."""
    bases = {
        Path(str(path).removesuffix(ending))
        for depth in _DEPTHS
        for ending in (_ROTATED, _PARAMETERS)
        for path in folder.glob(f"{depth}{ending}")
    }
    yield from sorted(bases)


def _image(base: Path) -> Path | None:
    return first_file([Path(f"{base}.nii.gz"), Path(f"{base}.nii")])
