"""Evaluation: held-out predictions into figures with intervals, and what to compare them with.

Read in this order:

- `collection`: gathers what every model said about the people it never saw;
- `baselines`: what simpler models reach on the same folds; `voxel_maps` and `voxelwise` are those
  on whole maps;
- `predictions_table`: group_predictions.tsv, which every figure comes from;
- `scoring`: the table into group_metrics.json, with `measures`, `curves`, `intervals`,
  `permutation` and `ablation`; `yardsticks` chooses by the kind of task, and `number_scores` is
  about numbers;
- `headline`: what a task found, in a sentence, from the tests of `contest`;
- `confound_warnings`: what a reader must know before believing a result;
- `leakage_refit`, `saliency_maps`: computed while the scans are still in the store.
"""
