"""Write a scan's derivatives: each file whole, with the name and sidecar that BIDS asks for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
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
    BIAS_FIELD,
    BRAIN_MASK,
    CONFOUNDS,
    FACTS,
    MEAN_B0,
    NOISE_MAP,
    RESIDUAL_MAP,
    SAMPLES,
    SERIES,
    UNCORRECTED,
    DerivativeNames,
    prediction_ending,
    rish_ending,
    sidecar,
    tensor_ending,
    transform_ending,
)
from bids_gevnet.bids.provenance import (
    derivative_uri,
    describe_series,
)
from bids_gevnet.bids.writing import (
    ALIGNED,
    MNI152,
    SCANNER,
    write_image,
    write_json,
    write_text,
)
from bids_gevnet.facts import (
    BiasFacts,
    CleaningFacts,
    ConformFacts,
    CorrectionFacts,
    JoinFacts,
    MaskFacts,
    NoiseFacts,
    PredictionFacts,
    QualityFacts,
    RegistrationFacts,
    ScanFacts,
    SphereFacts,
    StandardFacts,
    TensorFacts,
)
from bids_gevnet.interfaces.derivative_files import (
    describe_samples,
    image_centre,
    to_itk_text,
    write_confound_files,
    write_gradient_files,
    write_samples,
)
from bids_gevnet.interfaces.series import read_facts, read_gradients, read_image, read_mask
from bids_gevnet.interfaces.tensor import TENSOR_MAPS, describe_map

FloatArray = npt.NDArray[np.float64]


class WriteDerivativesInputSpec(BaseInterfaceInputSpec):
    """Everything that is kept of a scan."""

    output_dir = traits.Str(mandatory=True, desc="top of the derivatives")
    entities = traits.Dict(mandatory=True, desc="BIDS entities of the scan")
    template = traits.Str(mandatory=True, desc="label of the template's space")
    resolution_mm = traits.Float(mandatory=True, desc="voxel size in template space")
    spatial_reference = traits.Str(desc="where the image is that defines the template's space")
    sources = traits.List(traits.Str(), mandatory=True, desc="BIDS URIs of the raw runs")
    mask_source = traits.Str(desc="URI of a brain mask that was given")
    transform_source = traits.Str(desc="URI of a transform that another pipeline left")
    acquisition = traits.Dict(
        key_trait=traits.Str(), value_trait=traits.Any(), desc="metadata that the runs share"
    )
    uncorrected = File(exists=True, desc="mean b0 and mean weighted volume as acquired")
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
    rish = traits.List(File(exists=True), mandatory=True, desc="one file per degree")
    degrees = traits.List(traits.Int(), mandatory=True, desc="their degrees")
    tensor = traits.List(File(exists=True), mandatory=True, desc="maps, as TENSOR_MAPS lists them")
    standard_tensor = traits.List(File(exists=True), mandatory=True, desc="in template space")
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
    tensor_facts = File(exists=True, mandatory=True, desc="of the maps of the tensor")
    quality_facts = File(exists=True, mandatory=True, desc="of the quality measures")
    noise = traits.List(File(exists=True), desc="noise maps of the denoised runs")
    residual = traits.List(File(exists=True), desc="what was removed from them")
    noise_facts = traits.List(File(exists=True), desc="of each denoised run")
    bias_field = File(exists=True, desc="bias field, if it was corrected")
    bias_facts = File(exists=True, desc="of the bias field, if it was corrected")
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
        tasks = [
            *self._native_tasks(names, facts),
            *self._standard_tasks(names, facts),
            *self._tensor_tasks(names, facts.tensor),
            *self._cleaning_tasks(names),
        ]
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
            cleaning=with_noise(known.cleaning, self._optional(inputs.noise_facts)),
            mask=read_facts(inputs.mask_facts, MaskFacts),
            bias=read_facts(inputs.bias_facts, BiasFacts)
            if isdefined(inputs.bias_facts)
            else known.bias,
            registration=read_facts(inputs.registration_facts, RegistrationFacts),
            standard=read_facts(inputs.standard_facts, StandardFacts),
            sphere=read_facts(inputs.sphere_facts, SphereFacts),
            tensor=read_facts(inputs.tensor_facts, TensorFacts),
            quality=read_facts(inputs.quality_facts, QualityFacts),
            prediction=read_facts(inputs.prediction_facts, PredictionFacts)
            if isdefined(inputs.prediction_facts)
            else None,
        )

    def _native_tasks(self, names: DerivativeNames, facts: ScanFacts) -> list[Callable[[], None]]:
        inputs = self.inputs
        series, reference = names.native(SERIES), names.native(MEAN_B0)
        to_template = np.array(inputs.to_template)
        centre = image_centre(inputs.standard_mask)
        acquisition = dict(inputs.acquisition)
        given = facts.mask.method == "given" and isdefined(inputs.mask_source)
        tasks: list[Callable[[], None]] = [
            lambda: _write_series(
                series,
                inputs.native,
                inputs.native_gradients,
                acquisition | describe_series(facts) | {"Sources": inputs.sources},
            ),
            lambda: _copy_image(
                reference,
                inputs.reference,
                acquisition
                | {
                    "Description": "Mean b0 of the corrected series",
                    "Sources": [_uri(names, series)],
                    "SkullStripped": False,
                },
            ),
            lambda: _copy_mask(
                names.native(BRAIN_MASK),
                inputs.mask,
                {
                    "Description": "Brain, as given" if given else "Brain",
                    "Method": facts.mask.method,
                    "Sources": [inputs.mask_source if given else _uri(names, reference)],
                    "SpatialReference": _uri(names, reference),
                },
            ),
            lambda: write_confound_files(names.native(CONFOUNDS), inputs.confounds),
            lambda: self._write_transform(names, facts.registration, to_template, centre),
        ]
        if isdefined(inputs.uncorrected):
            about = acquisition | {
                "Description": "Mean b0 and mean diffusion-weighted volume of the first run, as "
                "acquired",
                "Sources": inputs.sources[:1],
                "SkullStripped": False,
            }
            tasks.append(lambda: _copy_image(names.native(UNCORRECTED), inputs.uncorrected, about))
        return tasks

    def _write_transform(
        self,
        names: DerivativeNames,
        registration: RegistrationFacts,
        to_template: FloatArray,
        centre: FloatArray,
    ) -> None:
        path = names.native(transform_ending(names.template))
        taken = registration.source == "transform" and isdefined(self.inputs.transform_source)
        what = (
            "Affine that fits a transform of the pipeline before best over the brain"
            if taken
            else "Affine registration of the mean b0 to the template"
        )
        reference = _uri(names, names.native(MEAN_B0))
        write_text(path, to_itk_text(to_template, centre))
        about = {
            "Description": f"{what}. As ITK has it, the file takes points of the template to "
            "points of the scan, in LPS; antsApplyTransforms resamples the scan to the template "
            "with it as it is",
            "Format": "ITK text",
            "Type": "affine",
            "Units": "mm",
            "Centre": [round(float(value), 6) + 0.0 for value in centre * [-1, -1, 1]],
            "From": reference,
            "To": self._spatial_reference(names),
            "Sources": [self.inputs.transform_source if taken else reference],
        }
        write_json(sidecar(path), about)

    def _spatial_reference(self, names: DerivativeNames) -> str:
        given = self.inputs.spatial_reference
        return str(given) if isdefined(given) else names.template

    def _standard_tasks(
        self, names: DerivativeNames, facts: ScanFacts
    ) -> list[Callable[[], None]]:
        inputs, where, sphere = self.inputs, self._where_standard(names), facts.sphere
        before = "preprocessed" if facts.source.pipeline else "raw"
        code = _world_code(names)
        series, samples, mask = (names.standard(e) for e in (SERIES, SAMPLES, BRAIN_MASK))
        transform = _uri(names, names.native(transform_ending(names.template)))
        acquisition = dict(inputs.acquisition)
        tasks: list[Callable[[], None]] = [
            lambda: write_samples(
                samples,
                inputs.samples,
                inputs.standard_mask,
                acquisition
                | where
                | describe_samples(sphere)
                | {"Sources": [_uri(names, series), _uri(names, mask)]},
                code,
                nside=sphere.nside or 0,
                b_values=sphere.b_values,
            ),
            lambda: _write_series(
                series,
                inputs.standard,
                inputs.standard_gradients,
                acquisition
                | where
                | {
                    "Description": "Corrected diffusion series in template space, interpolated "
                    f"once from the {before} volumes; gradients rotated with it",
                    "Sources": [*inputs.sources, transform],
                    "SkullStripped": False,
                },
                code,
            ),
            lambda: _copy_mask(
                mask,
                inputs.standard_mask,
                where
                | {
                    "Description": "Brain voxels with data in every volume",
                    "Sources": [_uri(names, names.native(BRAIN_MASK)), transform],
                },
                code,
            ),
        ]
        for degree, path in zip(inputs.degrees, inputs.rish, strict=True):
            about = where | {
                "Description": f"Energy of degree {degree} of S/b0 (RISH)",
                "Sources": [_uri(names, samples)],
            }
            if len(sphere.b_values) > 1:
                about |= {
                    "Description": f"{about['Description']}, a volume per shell",
                    "BValue": sphere.b_values,
                }
            tasks.append(
                lambda degree=degree, path=path, about=about: _copy_image(  # type: ignore[misc]
                    names.standard(rish_ending(degree)), path, about, code
                )
            )
        return tasks

    def _where_standard(self, names: DerivativeNames) -> dict[str, Any]:
        """Say of a file in template space what space that is and how large its voxels are."""
        return {
            "Resolution": f"{self.inputs.resolution_mm:g} mm isotropic, cropped to the brain",
            "SpatialReference": self._spatial_reference(names),
        }

    @staticmethod
    def _optional(paths: Any) -> list[str]:
        return list(paths) if isdefined(paths) else []

    def _cleaning_tasks(self, names: DerivativeNames) -> list[Callable[[], None]]:
        """Write what cleaning removed; maps of an earlier run with other settings are removed."""
        inputs = self.inputs
        tasks: list[Callable[[], None]] = []
        for ending, paths, description in (
            (NOISE_MAP, self._optional(inputs.noise), "Standard deviation of the noise"),
            (
                RESIDUAL_MAP,
                self._optional(inputs.residual),
                "Root mean square over the volumes of what denoising removed",
            ),
            (
                BIAS_FIELD,
                [inputs.bias_field] if isdefined(inputs.bias_field) else [],
                "Bias field that the series was divided by",
            ),
        ):
            path = names.native(ending)
            about = {"Sources": inputs.sources, "Description": description, "Units": "arbitrary"}
            if paths:
                tasks.append(partial(_write_mean_map, path, paths, about))
            else:
                for stale in (path, sidecar(path)):
                    stale.unlink(missing_ok=True)
        return tasks

    def _tensor_tasks(
        self, names: DerivativeNames, facts: TensorFacts
    ) -> list[Callable[[], None]]:
        """Write the maps of the tensor, in both spaces."""
        native: dict[str, Any] = {}
        return [
            partial(
                _copy_image,
                path(tensor_ending(name)),
                source,
                where
                | describe_map(name, facts)
                | {"Sources": [_uri(names, path(e)) for e in (SERIES, BRAIN_MASK)]},
                code,
            )
            for path, sources_of_maps, where, code in (
                (names.native, self.inputs.tensor, native, SCANNER),
                (
                    names.standard,
                    self.inputs.standard_tensor,
                    self._where_standard(names),
                    _world_code(names),
                ),
            )
            for name, source in zip(TENSOR_MAPS, sources_of_maps, strict=True)
        ]


def _world_code(names: DerivativeNames) -> int:
    """NIfTI code of the template's world."""
    return MNI152 if names.template.startswith("MNI152") else ALIGNED


def _uri(names: DerivativeNames, path: Path) -> str:
    return derivative_uri(path, names.output_dir)


def _copy_image(target: Path, source: str, about: dict[str, Any], code: int = SCANNER) -> None:
    data, affine = read_image(source)
    write_image(target, data, affine, code=code)
    write_json(sidecar(target), about)


def _write_mean_map(target: Path, sources: list[str], about: dict[str, Any]) -> None:
    """Write the root mean square of the maps of all runs, which share one grid."""
    maps = [read_image(source) for source in sources]
    mean = np.sqrt(np.mean([np.square(data, dtype=np.float64) for data, _ in maps], axis=0))
    write_image(target, mean, maps[0][1])
    write_json(sidecar(target), about)


def with_noise(plans: tuple[CleaningFacts, ...], paths: list[str]) -> tuple[CleaningFacts, ...]:
    """Add what denoising measured to the plans of the runs that were denoised."""
    measured = iter(read_facts(path, NoiseFacts) for path in paths)
    return tuple(
        replace(plan, noise=next(measured, None)) if plan.is_denoised else plan for plan in plans
    )


def _copy_mask(target: Path, source: str, about: dict[str, Any], code: int = SCANNER) -> None:
    mask, affine = read_mask(source)
    write_image(target, mask, affine, code=code)
    write_json(sidecar(target), about | {"Type": "Brain"})


def _write_series(
    target: Path, image: str, gradients: str, about: dict[str, Any], code: int = SCANNER
) -> None:
    _, affine = read_image(image)
    write_gradient_files(target, *read_gradients(gradients), affine)
    _copy_image(target, image, about, code)
