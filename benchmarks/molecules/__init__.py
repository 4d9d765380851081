"""Parts of `qm7.py`: the molecules, what a network sees of them, the networks, the training."""
