"""Training: from jobs as plain data to model folders, on one process or many.

Read in this order:

- `jobs`: everything that decides one model, as plain data;
- `planning`: which jobs a study needs; `effort`: how many steps and bytes they are;
  `pace`: how long they take here;
- `trainer`: one job, from harmonisation to held-out scores, on top of `loop`, which takes steps
  over any number of processes (`distributed`) and resumes from `checkpoints`;
- `batches`, `mixup`: what a step sees; `blocks`: which part of each brain; `device_batches` makes
  it on a GPU, `device_pieces` says how much of it goes at once there;
- `torchrun` starts the processes, `process` is one of them, `progress` what a person sees of it;
- `outputs`: what a training leaves beside the weights.
"""
