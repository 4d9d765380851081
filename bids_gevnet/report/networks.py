"""Describe the networks in words, for the methods text."""

from bids_gevnet.nn.registry import networks


def network_sentence(name: str) -> str:
    """Say in one sentence, with citations, what a network is; empty for an unknown name."""
    entry = networks().get(name)
    if entry is None or not entry.sentence:
        return ""
    return f"The network {'combines' if '+' in name else 'is'} {entry.sentence}."


def has_kernel_network(name: str) -> bool:
    """Say whether a network has a convolutional kernel network in it; not if it is unknown."""
    entry = networks().get(name)
    return entry is not None and "ckn" in entry.parts
