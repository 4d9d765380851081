"""Write a scan's derivatives: each file whole, with the name and sidecar that BIDS asks for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    FACTS,
    MEAN_B0,
    SAMPLES,
    SERIES,
    DerivativeNames,
    gradient_files,
    prediction_ending,
    rish_ending,
    sidecar,
    transform_ending,
)
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl
from bids_gevnet.facts import (
    ConformFacts,
    CorrectionFacts,
    JoinFacts,
    MaskFacts,
    PredictionFacts,
    QualityFacts,
    RegistrationFacts,
    ScanFacts,
    SphereFacts,
    StandardFacts,
)
from bids_gevnet.interfaces.series import read_facts, read_gradients, read_image, read_mask
from bids_gevnet.interfaces.sphere import SAMPLE_STEP

FloatArray = npt.NDArray[np.float64]

_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_CONFOUNDS = {
    "framewise_displacement": {
        "Description": "Sum of absolute changes of the six motion parameters since the volume "
        "before, rotations as arcs on a sphere of 50 mm",
        "Units": "mm",
    },
    **{
        f"trans_{axis}": {
            "Description": f"Translation along {axis} (RAS, about the centre of the volume) that "
            "leads from the volume to the reference",
            "Units": "mm",
        }
        for axis in "xyz"
    },
    **{
        f"rot_{axis}": {
            "Description": f"Rotation about {axis} (RAS, counterclockwise) that leads from the "
            "volume to the reference",
            "Units": "rad",
        }
        for axis in "xyz"
    },
    "outlier_slices": {"Description": "Slices replaced by their prediction"},
    "eddy_displacement": {
        "Description": "Displacement by eddy currents, root mean square over a ball of 50 mm",
        "Units": "mm",
    },
}


class WriteDerivativesInputSpec(BaseInterfaceInputSpec):
    """Everything that is kept of a scan."""

    output_dir = traits.Str(mandatory=True, desc="top of the derivatives")
    entities = traits.Dict(mandatory=True, desc="BIDS entities of the scan")
    template = traits.Str(mandatory=True, desc="label of the template's space")
    resolution_mm = traits.Float(mandatory=True, desc="voxel size in template space")
    sources = traits.List(traits.Str(), mandatory=True, desc="BIDS URIs of the raw runs")
    native = File(exists=True, mandatory=True, desc="corrected series")
    native_gradients = File(exists=True, mandatory=True, desc="its gradients")
    reference = File(exists=True, mandatory=True, desc="mean b0")
    mask = File(exists=True, mandatory=True, desc="brain")
    confounds = File(exists=True, mandatory=True, desc="motion per volume")
    to_template = traits.List(mandatory=True, desc="rows of the affine, world mm")
    standard = File(exists=True, mandatory=True, desc="series in template space")
    standard_gradients = File(exists=True, mandatory=True, desc="its gradients")
    standard_mask = File(exists=True, mandatory=True, desc="brain in template space")
    samples = File(exists=True, mandatory=True, desc="S/b0 at the HEALPix points")
    rish = traits.List(File(exists=True), mandatory=True, desc="one map per degree")
    degrees = traits.List(traits.Int(), mandatory=True, desc="their degrees")
    facts = traits.Dict(
        key_trait=traits.Str(), value_trait=traits.Any(), desc="ScanFacts known early, as JSON"
    )
    conform_facts = traits.List(File(exists=True), mandatory=True, desc="of each run")
    correction_facts = traits.List(File(exists=True), mandatory=True, desc="of each run")
    join_facts = File(exists=True, mandatory=True, desc="of the joined scan")
    mask_facts = File(exists=True, mandatory=True, desc="of the brain mask")
    registration_facts = File(exists=True, mandatory=True, desc="of the registration")
    standard_facts = File(exists=True, mandatory=True, desc="of the resampling to the template")
    sphere_facts = File(exists=True, mandatory=True, desc="of the sampling")
    quality_facts = File(exists=True, mandatory=True, desc="of the quality measures")
    prediction = File(exists=True, desc="table of a prediction, if a model was given")
    prediction_facts = File(exists=True, desc="of the prediction, if a model was given")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="files at a time")


class WriteDerivativesOutputSpec(TraitedSpec):
    """What the report is made of."""

    facts = File(exists=True, desc="all facts of the scan")


class WriteDerivatives(SimpleInterface):
    """Write all derivatives of one scan."""

    input_spec = WriteDerivativesInputSpec
    output_spec = WriteDerivativesOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        names = DerivativeNames(
            output_dir=Path(self.inputs.output_dir),
            entities=self.inputs.entities,
            template=self.inputs.template,
            resolution_mm=self.inputs.resolution_mm,
        )
        facts = self._gather_facts()
        tasks = [*self._native_tasks(names), *self._standard_tasks(names, facts.sphere)]
        # A table of an earlier run, with another model or with one at all, would mislead.
        for table in names.predictions():
            table.unlink()
        if facts.prediction is not None:
            target = names.native(prediction_ending(facts.prediction.network))
            text = Path(self.inputs.prediction).read_text(encoding="utf-8")
            tasks.append(lambda: write_text(target, text))
        with ThreadPoolExecutor(self.inputs.num_threads) as pool:
            # Compression takes most of the time, and zlib lets other threads run meanwhile.
            for done in [pool.submit(task) for task in tasks]:
                done.result()
        # Last: whoever finds the facts knows that all the rest is there.
        path = names.native(FACTS)
        write_json(path, facts.to_json())
        self._results["facts"] = str(path)
        return runtime

    def _gather_facts(self) -> ScanFacts:
        inputs = self.inputs
        known = ScanFacts.read(inputs.facts if isdefined(inputs.facts) else {})
        return replace(
            known,
            conform=tuple(read_facts(path, ConformFacts) for path in inputs.conform_facts),
            correction=tuple(
                read_facts(path, CorrectionFacts) for path in inputs.correction_facts
            ),
            join=read_facts(inputs.join_facts, JoinFacts),
            mask=read_facts(inputs.mask_facts, MaskFacts),
            registration=read_facts(inputs.registration_facts, RegistrationFacts),
            standard=read_facts(inputs.standard_facts, StandardFacts),
            sphere=read_facts(inputs.sphere_facts, SphereFacts),
            quality=read_facts(inputs.quality_facts, QualityFacts),
            prediction=read_facts(inputs.prediction_facts, PredictionFacts)
            if isdefined(inputs.prediction_facts)
            else None,
        )

    def _native_tasks(self, names: DerivativeNames) -> list[Callable[[], None]]:
        inputs, sources = self.inputs, {"Sources": self.inputs.sources}
        series = {**sources, "SkullStripped": False}
        to_template = np.array(inputs.to_template)
        return [
            lambda: _write_series(
                names.native(SERIES),
                inputs.native,
                inputs.native_gradients,
                series,
            ),
            lambda: _copy_image(names.native(MEAN_B0), inputs.reference, sources),
            lambda: _copy_mask(names.native(BRAIN_MASK), inputs.mask, sources),
            lambda: _write_confounds(names, inputs.confounds),
            lambda: write_text(
                names.native(transform_ending(names.template)), to_itk_text(to_template)
            ),
        ]

    def _standard_tasks(
        self, names: DerivativeNames, sphere: SphereFacts
    ) -> list[Callable[[], None]]:
        inputs = self.inputs
        where = {
            "Sources": inputs.sources,
            "Resolution": f"{inputs.resolution_mm:g} mm isotropic, cropped to the brain",
        }
        healpix = where | {
            "Description": "Diffusion signal as a fraction of b0 at the distinct HEALPix points: "
            "of each opposite pair the pixel with the smaller index, in increasing order",
            "Nside": sphere.nside,
            "Ordering": "NESTED",
            "AntipodalPairs": True,
            "Kernel": f"{sphere.kernel}, smoothing {sphere.smoothing}",
            "BValue": sphere.b_value,
            "SkullStripped": True,
        }
        tasks: list[Callable[[], None]] = [
            lambda: _copy_image(
                names.standard(SAMPLES),
                inputs.samples,
                healpix,
                scale=SAMPLE_STEP,
            ),
            lambda: _write_series(
                names.standard(SERIES),
                inputs.standard,
                inputs.standard_gradients,
                where | {"SkullStripped": False},
            ),
            lambda: _copy_mask(names.standard(BRAIN_MASK), inputs.standard_mask, where),
        ]
        for degree, path in zip(inputs.degrees, inputs.rish, strict=True):
            about = where | {"Description": f"Energy of degree {degree} of S/b0 (RISH)"}
            tasks.append(
                lambda degree=degree, path=path, about=about: _copy_image(  # type: ignore[misc]
                    names.standard(rish_ending(degree)), path, about
                )
            )
        return tasks


def to_itk_text(to_template: FloatArray) -> str:
    """Write an affine as ITK text, as `antsApplyTransforms` takes it.

    ITK resamples by asking where a point of the output lies in the input, in LPS: the file
    holds the inverse of `to_template`, (4, 4) in world RAS mm.
    """
    inverse = _LPS @ np.linalg.inv(to_template) @ _LPS
    numbers = " ".join(f"{value:.12g}" for value in (*inverse[:3, :3].ravel(), *inverse[:3, 3]))
    return (
        "#Insight Transform File V1.0\n#Transform 0\n"
        "Transform: AffineTransform_double_3_3\n"
        f"Parameters: {numbers}\nFixedParameters: 0 0 0\n"
    )


def _copy_image(
    target: Path, source: str, about: dict[str, Any], *, scale: float | None = None
) -> None:
    data, affine = read_image(source)
    write_image(target, data, affine, scale=scale)
    write_json(sidecar(target), about)


def _copy_mask(target: Path, source: str, about: dict[str, Any]) -> None:
    mask, affine = read_mask(source)
    write_image(target, mask, affine)
    write_json(sidecar(target), about | {"Type": "Brain"})


def _write_series(target: Path, image: str, gradients: str, about: dict[str, Any]) -> None:
    _, affine = read_image(image)
    bvals, bvecs_ras = read_gradients(gradients)
    bval, bvec = gradient_files(target)
    fsl = bvecs_ras_to_fsl(bvecs_ras, affine) + 0.0  # no negative zeros
    rows = "\n".join(" ".join(f"{value:.6f}" for value in row) for row in fsl.T)
    write_text(bvec, rows + "\n")
    write_text(bval, " ".join(f"{value:g}" for value in bvals) + "\n")
    _copy_image(target, image, about)


def _write_confounds(names: DerivativeNames, source: str) -> None:
    text = Path(source).read_text(encoding="utf-8")
    columns = text.split("\n", 1)[0].split("\t")
    table = names.native(CONFOUNDS)
    write_text(table, text)
    about = {column: _CONFOUNDS[column] for column in columns}
    write_json(sidecar(table), about)
