# What to change for your cluster; submit.sh and the jobs it submits read this file.
# Anything here can also be set in the environment before submit.sh is called.

# The Apptainer image; empty for an installation whose bin folder is in PATH.
SIF=${SIF:-}
# --nv gives the container the node's NVIDIA driver; "" on a cluster without GPUs.
APPTAINER_OPTIONS=${APPTAINER_OPTIONS---nv --cleanenv}

# Options of sbatch for each kind of job, added to those in the .sbatch files.
PARTICIPANT_SBATCH=${PARTICIPANT_SBATCH:-}
GROUP_SBATCH=${GROUP_SBATCH:-}

# Options of bids_gevnet for each level.
PARTICIPANT_OPTIONS=${PARTICIPANT_OPTIONS:-}
GROUP_OPTIONS=${GROUP_OPTIONS:-}

# Training processes on each node: one per GPU, or this many on CPUs where there is no GPU.
PROCESSES_PER_NODE=${PROCESSES_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}

# Array tasks at most (a cluster's MaxArraySize is often 1001), and at once.
MAX_TASKS=${MAX_TASKS:-1000}
AT_ONCE=${AT_ONCE:-50}
# afterok: train when everybody is done; afterany: train on those who are, when all have ended.
AFTER=${AFTER:-afterok}
# A job that reaches its time limit goes back into the queue, this often.
MAX_RESTARTS=${MAX_RESTARTS:-20}
