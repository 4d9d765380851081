"""Brain masks that a user has: in a folder of their own, or beside the scan."""

from collections.abc import Mapping
from pathlib import Path

from bids_gevnet.bids.derivatives import BRAIN_MASK
from bids_gevnet.bids.images import read_header
from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.errors import InputError, ParticipantError

_NOT_OF_THE_SCAN = ("desc", "suffix", "space", "label")


class OwnMasks:
    """The masks of `--mask-derivatives`, found by the entities of a scan.

    Parameters
    ----------
    folder : Path or None
        Masks lie in it as sub-X/[ses-Y/]dwi/*_desc-brain_mask.nii.gz; None for no such folder.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not folder.is_dir():
            raise InputError(
                expected="a folder of brain masks for --mask-derivatives",
                found=f"no folder {folder}",
                remedy="check the path; in a container, check that it is mounted",
            )
        self.folder = folder

    def find(self, entities: Mapping[str, str], image: Path) -> Path | None:
        """Return the mask for a series: from the folder, if there is one; else from beside it.

        Parameters
        ----------
        entities : mapping
            sub, ses, acq, dir, run of the scan.
        image : Path
            The series, in whose world the mask has to be.
        """
        if self.folder is None:
            beside = image.with_name(
                f"{image.name.removesuffix('.gz').removesuffix('.nii').removesuffix('_dwi')}"
                f"_{BRAIN_MASK}"
            )
            return beside if beside.is_file() else None
        parts = [f"{key}-{entities[key]}" for key in ("sub", "ses") if key in entities]
        place = self.folder.joinpath(*parts)
        space = split_name(image)[0].get("space")
        fitting = []
        for path in sorted([*place.glob(f"dwi/*_{BRAIN_MASK}"), *place.glob(f"*_{BRAIN_MASK}")]):
            named, _ = split_name(path)
            own = {key: value for key, value in named.items() if key not in _NOT_OF_THE_SCAN}
            if own.items() <= entities.items() and named.get("space", space) == space:
                fitting.append((len(own), path))
        if not fitting:
            raise ParticipantError(
                expected=f"a brain mask (*_{BRAIN_MASK}) for {image.name} in {place / 'dwi'}",
                found="none in the space of the scan",
                remedy="add it, or leave the participant out; without --mask-derivatives the "
                "brain is masked here",
            )
        return max(fitting)[1]

    @staticmethod
    def check(mask: Path) -> None:
        """Raise a `ParticipantError` unless a file is a single volume."""
        shape = read_header(mask).shape
        if len(shape) != 3 and not (len(shape) == 4 and shape[3] == 1):
            raise ParticipantError(
                expected="a brain mask of three axes",
                found=f"shape {'x'.join(map(str, shape))} in {mask}",
                remedy="store one volume, with 1 in the brain and 0 elsewhere",
            )
