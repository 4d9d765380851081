"""Training: from jobs as plain data to model folders, on one process or many.

Read in this order:

- `jobs`: everything that decides one model, as plain data;
- `planning`: which jobs a study needs; `effort`: how many steps and bytes they are;
  `pace`: how long they take here;
- `trainer`: one job, from harmonisation to weights, on top of `loop`, which takes steps over any
  number of processes (`distributed`) and resumes from `checkpoints`; `initial_model` starts it
  from another model, `held_out` tests what came out;
- `batches`, `mixup`: what a step sees; `blocks`: which part of each brain; `pieces`: how
  much of it goes at once; `device_batches` and `device_pieces` do both for a GPU;
- `torchrun` starts the processes, `process` is one of them, `progress` what a person sees of it;
- `outputs`: what a training leaves beside the weights.
"""
