"""Describe the dataset of derivatives: dataset_description.json, README.md and .bidsignore."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    FACTS,
    MEAN_B0,
    NOISE_MAP,
    RESIDUAL_MAP,
    SAMPLES,
    SERIES,
    UNCORRECTED,
    gradient_files,
    rish_ending,
    sidecar,
    tensor_ending,
    transform_ending,
)
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_json, write_text
from bids_gevnet.versions import __version__, code_url

BIDS_VERSION = "1.10.0"

_README = """\
# bids_gevnet derivatives

Diffusion MRI that bids_gevnet {version} has corrected, put in template space and sampled on the
sphere. The dataset it was made from: {source}

## Files of a scan

`S` stands for the entities of the scan, `M` for the template's space and resolution.

| file | content |
| --- | --- |
| `S_{series}`, `.bval`, `.bvec` | corrected series in the space of the scan |
| `S_{mean_b0}` | its mean b0 |
| `S_{uncorrected}` | mean b0 and mean diffusion-weighted volume as acquired |
| `S_{brain_mask}` | brain |
| `S_{noise}`, `S_{residual}` | noise that denoising estimated, and what it removed |
| `S_{confounds}` | motion, eddy currents and outlier slices of every volume |
| `S_{transform}` | affine from the scan to the template T, as ANTs takes it |
| `S_M_{series}`, `.bval`, `.bvec` | series in template space, interpolated once |
| `S_M_{samples}`, `.bval`, `.bvec` | S/b0 on the HEALPix grid, after a b0 that is 1 |
| `S[_M]_{tensor}` | maps of the diffusion tensor: fa, md, ad, rd, dec |
| `S_M_{rish}` | energy of each spherical-harmonic degree |
| `S_{facts}` | what happened to the scan, as the reports read it |

Gradient directions are along the axes of the image they lie beside, as FSL and BIDS have it (the
first axis is flipped where the image's axes are right-handed); the HEALPix samples open in any
program for diffusion MRI.

`sub-*.html` are the reports of participants, `group_report.html` that of the group. CITATION.md
has the methods in words, with what to cite. Research use only; not for diagnosis.
"""


def _readme(source: str) -> str:
    """Say what the files are, for somebody who finds the folder."""
    return _README.format(
        version=__version__,
        source=source,
        series=SERIES,
        mean_b0=MEAN_B0,
        uncorrected=UNCORRECTED,
        brain_mask=BRAIN_MASK,
        noise=NOISE_MAP,
        residual=RESIDUAL_MAP,
        confounds=CONFOUNDS,
        transform=transform_ending("T"),
        samples=SAMPLES,
        rish=rish_ending(0).replace("0", "*"),
        tensor=tensor_ending("*"),
        facts=FACTS,
    )


def _bidsignore() -> str:
    """List what BIDS has no name for yet, and what is no part of the derivatives.

    Gradient files of derivatives are in the specification but not in the validator's rules.
    Folders stand without a slash: with one the validator leaves out their content and still
    objects to the folder.
    """
    with_sidecars = (Path(name) for name in ("dwimap.nii.gz", MEAN_B0, CONFOUNDS, "xfm.txt"))
    names = [
        *gradient_files(Path(SERIES)),
        *gradient_files(Path(SAMPLES)),
        *(file for path in with_sidecars for file in (path, sidecar(path))),
        "prediction.tsv",
        FACTS,
    ]
    top = ["*.html", "CITATION.md", "logs", "work", "models", "group_*"]
    return "".join(f"{line}\n" for line in [*top, *(f"*_{name}" for name in names)])


def write_description(
    output_dir: Path,
    bids_dir: Path,
    *,
    container: str | None = None,
    sources: Mapping[str, Path] | None = None,
) -> None:
    """Write dataset_description.json, README.md and .bidsignore at the top of the derivatives.

    Authors, licence and DOI are those of the dataset that was processed, as far as it names them.

    Parameters
    ----------
    output_dir, bids_dir : Path
    container : str, optional
        Tag of the image the app runs in.
    sources : mapping of str to Path, optional
        Datasets of preprocessed scans, by the name that BIDS URIs have for them; links to those
        of earlier runs are kept.
    """
    links = {name: folder.as_uri() for name, folder in (sources or {}).items()}
    if bids_dir.as_uri() not in links.values():
        links["raw"] = bids_dir.as_uri()
    before = read_json(output_dir / "dataset_description.json").get("DatasetLinks")
    links = (dict(before) if isinstance(before, Mapping) else {}) | links
    source = read_json(bids_dir / "dataset_description.json")
    generated: dict[str, Any] = {"Name": "bids_gevnet", "Version": __version__}
    if code_url():
        generated["CodeURL"] = code_url()
    if container:
        generated["Container"] = {"Type": "docker", "Tag": container}
    description = {
        "Name": "bids_gevnet: diffusion MRI on the sphere",
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [generated],
        "SourceDatasets": [
            {"URL": link}
            | (
                {"DOI": source["DatasetDOI"]}
                if source.get("DatasetDOI") and link == bids_dir.as_uri()
                else {}
            )
            for link in dict.fromkeys(links.values())
        ],
        "DatasetLinks": links,
        "HowToAcknowledge": "Cite what CITATION.md lists.",
        **{key: source[key] for key in ("Authors", "License") if source.get(key)},
    }
    write_json(output_dir / "dataset_description.json", description)
    readme = _readme(source.get("Name") or bids_dir.name)
    write_text(output_dir / "README.md", readme)
    write_text(output_dir / ".bidsignore", _bidsignore())
