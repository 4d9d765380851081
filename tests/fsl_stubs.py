"""Stand-ins for FSL's programs: they check their arguments and write what FSL would.

A stand-in belongs to a release, prints a help text in the style of FSL, and refuses options that
its release does not have, as FSL's own parser does.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

_EDDY_600 = (
    "imain mask index acqp topup field bvecs bvals out slm fwhm niter repol resamp initrand "
    "data_is_shelled help verbose"
)
_TOPUP_600 = "imain datain out fout iout config subsamp warpres help verbose"

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "6.0.0": {"eddy": _EDDY_600, "topup": _TOPUP_600},
    "6.0.7": {"eddy": f"{_EDDY_600} nthr json", "topup": f"{_TOPUP_600} nthr"},
    "coming": {"eddy": f"{_EDDY_600} nthr json", "topup": f"{_TOPUP_600} nthr"},
}
"""Long options of each release; the coming one also wants `eddy diffusion`."""

SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "6.0.0": ("b02b0.cnf",),
    "6.0.7": ("b02b0.cnf", "b02b0_1.cnf"),
    "coming": ("b02b0.cnf", "b02b0_1.cnf"),
}
"""Files in etc/flirtsch."""

_COMMON = """\
#!{python}
import json, sys
from pathlib import Path
import nibabel as nib
import numpy as np
name = Path(sys.argv[0]).name
known = {known!r}.split()
subcommand = {subcommand!r}
usage = ' '.join((name, subcommand)).strip()
if subcommand and sys.argv[1:2] != [subcommand]:
    print(f'{{name}}: usage: {{usage}} --help or {{name}} fmri --help')
    sys.exit(1)
if '--help' in sys.argv:
    print(f'Part of FSL\\nUsage:\\n{{usage}} --monsoon')
    for option in known:
        print(f'\\t--{{option}}\\tdoes what it is called')
    sys.exit(1)
options = [word[2:] for word in sys.argv[1:] if word.startswith('--')]
given = dict(word.partition('=')[::2] for word in options)
log = Path(sys.argv[0]).parent / 'calls.jsonl'
def require(condition, message):
    if not condition:
        print(message)
        sys.exit(1)
for option in given:
    require(not known or option in known, f'{{name}}: unknown option --{{option}}')
"""

_EDDY = """
image = nib.load(given['imain'])
n = image.shape[3]
index = np.loadtxt(given['index'], dtype=int, ndmin=1)
acqp = np.loadtxt(given['acqp'], ndmin=2)
bvecs = np.loadtxt(given['bvecs'])
require(len(index) == n, f'{len(index)} indices for {n} volumes')
require(index.min() >= 1 and index.max() <= len(acqp), 'index outside acqp')
require(acqp.shape[1] == 4 and np.allclose(np.linalg.norm(acqp[:, :3], axis=1), 1), 'bad acqp')
require(nib.load(given['mask']).shape == image.shape[:3], 'mask on another grid')
require(np.loadtxt(given['bvals']).size == n and bvecs.shape == (3, n), 'bad gradients')
require('repol' in given, 'outliers are not replaced')
if 'topup' in given:
    require(Path(given['topup'] + '_fieldcoef.nii.gz').exists(), 'no topup output')
base = given['out']
data = np.asarray(image.dataobj).astype(np.float32)
nib.save(nib.Nifti1Image(data, image.affine), base + '.nii.gz')
parameters = np.zeros((n, 16))
parameters[:, 0] = np.arange(n) * 0.1
turns = Path(sys.argv[0]).parent / 'turns.txt'  # angles that a test plants
if turns.exists():
    parameters[:, 3:6] = np.loadtxt(turns)
    for k, angles in enumerate(parameters[:, 3:6]):
        (cx, cy, cz), (sx, sy, sz) = np.cos(angles), np.sin(angles)
        x = np.array([[1, 0, 0], [0, cx, sx], [0, -sx, cx]])
        y = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]])
        z = np.array([[cz, sz, 0], [-sz, cz, 0], [0, 0, 1]])
        bvecs[:, k] = np.linalg.inv(x @ y @ z) @ bvecs[:, k]
np.savetxt(base + '.eddy_parameters', parameters)
np.savetxt(base + '.eddy_rotated_bvecs', bvecs)
flags = np.zeros((n, image.shape[2]), int)
flags[-1, :2] = 1
rows = ['outliers', *(' '.join(map(str, row)) for row in flags)]
Path(base + '.eddy_outlier_map').write_text('\\n'.join(rows) + '\\n')
call = {'program': name, 'acqp': acqp.tolist(), 'index': index.tolist(), 'given': given}
log.open('a').write(json.dumps(call) + '\\n')
"""

_DIVERGING_EDDY = _EDDY.replace(
    "nib.save(",
    "apart = [np.roll(data[..., k], 3 * (k % 3), axis=1) for k in range(n)]\n"
    "data = np.stack(apart, axis=3)\nnib.save(",
    1,
)
"""An eddy that moves volumes apart instead of together."""

_TOPUP = """
image = nib.load(given['imain'])
acqp = np.loadtxt(given['datain'], ndmin=2)
require(image.shape[3] == len(acqp), 'rows and volumes differ')
schedule = Path(sys.argv[0]).parent.parent / 'etc' / 'flirtsch' / given['config']
require(schedule.exists(), f'no configuration {given["config"]}')
halves = given['config'] == 'b02b0.cnf' and given.get('subsamp') != '1'
require(not halves or not any(size % 2 for size in image.shape[:3]), 'cannot halve an odd grid')
signs = acqp[:, :3].sum(axis=1)
require((signs > 0).any() and (signs < 0).any(), 'not opposite')
nib.save(image, given['iout'] + '.nii.gz')
nib.save(image, given['out'] + '_fieldcoef.nii.gz')
field = np.asarray(image.dataobj)[..., 0] * 0.0 + 20  # Hz: a voxel at 50 ms
nib.save(nib.Nifti1Image(field, image.affine), given['fout'] + '.nii.gz')
Path(given['out'] + '_movpar.txt').write_text('0\\n')
log.open('a').write(json.dumps({'program': name, 'acqp': acqp.tolist(), 'given': given}) + '\\n')
"""

_BET = """
image = nib.load(sys.argv[1])
require(len(image.shape) == 3, 'bet wants one volume')
data = np.asarray(image.dataobj)
mask = (data > 0.3 * np.percentile(data, 98)).astype(np.uint8)
nib.save(nib.Nifti1Image(mask, image.affine), sys.argv[2] + '_mask.nii.gz')
log.open('a').write(json.dumps({'program': name, 'given': sys.argv[1:]}) + '\\n')
"""

_BODIES = {
    "eddy": _EDDY,
    "diverging eddy": _DIVERGING_EDDY,
    "topup": _TOPUP,
    "bet": _BET,
    "fail": "\nprint('no licence')\nsys.exit(3)\n",
}


def write_stub(folder: Path, name: str, kind: str, release: str = "6.0.7") -> Path:
    """Write an executable that behaves like the FSL program `kind` under any name.

    The schedules of topup are written beside the folder, as FSL has them beside its `bin`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    head = _COMMON.format(
        python=sys.executable,
        known=OPTIONS[release].get(kind.rsplit(maxsplit=1)[-1], ""),
        subcommand="diffusion" if kind.endswith("eddy") and release == "coming" else "",
    )
    path.write_text(head + _BODIES[kind])
    path.chmod(0o755)
    if kind == "topup":
        schedules = folder.parent / "etc" / "flirtsch"
        schedules.mkdir(parents=True, exist_ok=True)
        for schedule in SCHEDULES[release]:
            (schedules / schedule).write_text("")
    return path
