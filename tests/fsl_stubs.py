"""Stand-ins for FSL's programs: they check their arguments and write what FSL would."""

import sys
from pathlib import Path

_COMMON = """\
#!{python}
import json, sys
from pathlib import Path
import nibabel as nib
import numpy as np
name = Path(sys.argv[0]).name
options = [word[2:] for word in sys.argv[1:] if word.startswith('--')]
given = dict(word.partition('=')[::2] for word in options)
log = Path(sys.argv[0]).parent / 'calls.jsonl'
def require(condition, message):
    if not condition:
        print(message)
        sys.exit(1)
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
np.savetxt(base + '.eddy_parameters', parameters)
np.savetxt(base + '.eddy_rotated_bvecs', bvecs)
flags = np.zeros((n, image.shape[2]), int)
flags[-1, :2] = 1
rows = ['outliers', *(' '.join(map(str, row)) for row in flags)]
Path(base + '.eddy_outlier_map').write_text('\\n'.join(rows) + '\\n')
log.open('a').write(json.dumps({'program': name, 'acqp': acqp.tolist(), 'given': given}) + '\\n')
"""

_TOPUP = """
image = nib.load(given['imain'])
acqp = np.loadtxt(given['datain'], ndmin=2)
require(image.shape[3] == len(acqp), 'rows and volumes differ')
signs = acqp[:, :3].sum(axis=1)
require((signs > 0).any() and (signs < 0).any(), 'not opposite')
nib.save(image, given['iout'] + '.nii.gz')
nib.save(image, given['out'] + '_fieldcoef.nii.gz')
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
    "topup": _TOPUP,
    "bet": _BET,
    "fail": "\nprint('no licence')\nsys.exit(3)\n",
}


def write_stub(folder: Path, name: str, kind: str) -> Path:
    """Write an executable that behaves like the FSL program `kind` under any name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(_COMMON.format(python=sys.executable) + _BODIES[kind])
    path.chmod(0o755)
    return path
