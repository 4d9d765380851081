"""RISH features, and the gains that harmonise them across sites.

Fit to the training participants of a study, apply to anybody; `fit` has an example.

Read in this order:

1. `rish`: rotation invariant features, the energy of each degree of the signal;
2. `features`: their smoothed logarithms, which the model sees;
3. `design`: which differences between sites can be told from differences between diagnoses
   (`association` says how far the two go together);
4. `glm`: one linear model per voxel and degree, shrunk where it is uncertain;
5. `gains`: what the model leaves, and how it acts on a scan;
6. `scans`: all of it for the scans of a study;
7. `adaptation`: a site that comes later, from its unlabelled scans (`reference` is what it is
   brought to).
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.harmonisation.adaptation import adapt as adapt
    from bids_gevnet.harmonisation.association import cramers_v as cramers_v
    from bids_gevnet.harmonisation.association import cross_table as cross_table
    from bids_gevnet.harmonisation.gains import RishGains as RishGains
    from bids_gevnet.harmonisation.glm import fit_rish_glm as fit_rish_glm
    from bids_gevnet.harmonisation.rish import rish_features as rish_features
    from bids_gevnet.harmonisation.scans import apply as apply
    from bids_gevnet.harmonisation.scans import fit as fit
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "scans": ["apply", "fit"],
            "rish": ["rish_features"],
            "glm": ["fit_rish_glm"],
            "gains": ["RishGains"],
            "adaptation": ["adapt"],
            "association": ["cramers_v", "cross_table"],
        },
    )
