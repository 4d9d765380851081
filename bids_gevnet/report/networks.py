"""Describe the networks in words, for the methods text."""

_SENTENCES = {
    "ckn2": "The network is a convolutional kernel network of second order [@ckn], which ignores "
    "directions.",
    "gevnet": "The network is a gauge equivariant Volterra network [@gevnet] of second order, "
    "which ignores neighbouring voxels.",
    "ckn1+deepsphere": "The network combines a convolutional kernel network of first order [@ckn] "
    "across voxels and DeepSphere [@deepsphere] within each.",
    "ckn1+gevnet": "The network combines a convolutional kernel network of first order [@ckn] "
    "across voxels and a gauge equivariant Volterra network [@gevnet] of second order within "
    "each.",
    "ckn2+deepsphere": "The network combines a convolutional kernel network of second order "
    "[@ckn] across voxels and DeepSphere [@deepsphere] within each.",
    "ckn2+gevnet": "The network combines a convolutional kernel network of second order [@ckn] "
    "across voxels and a gauge equivariant Volterra network [@gevnet] of second order within "
    "each.",
}


def network_sentence(name: str) -> str:
    """Say in one sentence, with citations, what a network is; empty for an unknown name."""
    return _SENTENCES.get(name, "")
