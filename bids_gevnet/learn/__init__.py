"""Learning from a study: cohort, training, evaluation, and trained models.

>>> from bids_gevnet import learn
>>> sorted(learn.Model._fields)
['card', 'gains', 'network']

Read in this order:

1. `cohort`: who is studied: scans, labels, sites, folds, and the store of their samples;
2. `models`: what lies in a model folder, and what a model says about a new scan;
3. `train`: from jobs as plain data to model folders;
4. `evaluate`: held-out predictions into figures with intervals.
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.learn.evaluate.scoring import evaluate_table as evaluate_table
    from bids_gevnet.learn.models.files import Model as Model
    from bids_gevnet.learn.models.files import ModelCard as ModelCard
    from bids_gevnet.learn.models.files import load_model as load_model
    from bids_gevnet.learn.models.prediction import Prediction as Prediction
    from bids_gevnet.learn.models.prediction import predict as predict
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "models.files": ["Model", "ModelCard", "load_model"],
            "models.prediction": ["Prediction", "predict"],
            "evaluate.scoring": ["evaluate_table"],
        },
    )
