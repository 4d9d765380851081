"""The papers that the methods text may cite."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A paper: how it is listed, and where it is found."""

    text: str
    url: str


def _doi(name: str) -> str:
    return f"https://doi.org/{name}"


REFERENCES = {
    "gevnet": Reference(
        "Cortés G, Yu Y, Chen R, Armstrong M, Vaillancourt D, Vemuri BC (2023). Higher order "
        "gauge equivariant CNNs on Riemannian manifolds and applications. arXiv:2305.16657.",
        "https://arxiv.org/abs/2305.16657",
    ),
    "bids": Reference(
        "Gorgolewski KJ, Auer T, Calhoun VD, et al. (2016). The brain imaging data structure, a "
        "format for organizing and describing outputs of neuroimaging experiments. Scientific "
        "Data 3:160044.",
        _doi("10.1038/sdata.2016.44"),
    ),
    "bidsapps": Reference(
        "Gorgolewski KJ, Alfaro-Almagro F, Auer T, et al. (2017). BIDS apps: improving ease of "
        "use, accessibility, and reproducibility of neuroimaging data analysis methods. PLoS "
        "Computational Biology 13(3):e1005209.",
        _doi("10.1371/journal.pcbi.1005209"),
    ),
    "nipype": Reference(
        "Gorgolewski K, Burns CD, Madison C, et al. (2011). Nipype: a flexible, lightweight and "
        "extensible neuroimaging data processing framework in Python. Frontiers in "
        "Neuroinformatics 5:13.",
        _doi("10.3389/fninf.2011.00013"),
    ),
    "fsl": Reference(
        "Jenkinson M, Beckmann CF, Behrens TEJ, Woolrich MW, Smith SM (2012). FSL. NeuroImage "
        "62(2):782-790.",
        _doi("10.1016/j.neuroimage.2011.09.015"),
    ),
    "eddy": Reference(
        "Andersson JLR, Sotiropoulos SN (2016). An integrated approach to correction for "
        "off-resonance effects and subject movement in diffusion MR imaging. NeuroImage "
        "125:1063-1078.",
        _doi("10.1016/j.neuroimage.2015.10.019"),
    ),
    "outliers": Reference(
        "Andersson JLR, Graham MS, Zsoldos E, Sotiropoulos SN (2016). Incorporating outlier "
        "detection and replacement into a non-parametric framework for movement and distortion "
        "correction of diffusion MR images. NeuroImage 141:556-572.",
        _doi("10.1016/j.neuroimage.2016.06.058"),
    ),
    "topup": Reference(
        "Andersson JLR, Skare S, Ashburner J (2003). How to correct susceptibility distortions "
        "in spin-echo echo-planar images: application to diffusion tensor imaging. NeuroImage "
        "20(2):870-888.",
        _doi("10.1016/S1053-8119(03)00336-7"),
    ),
    "bet": Reference(
        "Smith SM (2002). Fast robust automated brain extraction. Human Brain Mapping "
        "17(3):143-155.",
        _doi("10.1002/hbm.10062"),
    ),
    "ants": Reference(
        "Avants BB, Tustison NJ, Song G, Cook PA, Klein A, Gee JC (2011). A reproducible "
        "evaluation of ANTs similarity metric performance in brain image registration. "
        "NeuroImage 54(3):2033-2044.",
        _doi("10.1016/j.neuroimage.2010.09.025"),
    ),
    "antsx": Reference(
        "Tustison NJ, Cook PA, Holbrook AJ, et al. (2021). The ANTsX ecosystem for quantitative "
        "biological and medical imaging. Scientific Reports 11:9068.",
        _doi("10.1038/s41598-021-87564-6"),
    ),
    "otsu": Reference(
        "Otsu N (1979). A threshold selection method from gray-level histograms. IEEE "
        "Transactions on Systems, Man, and Cybernetics 9(1):62-66.",
        _doi("10.1109/TSMC.1979.4310076"),
    ),
    "rotate": Reference(
        "Leemans A, Jones DK (2009). The B-matrix must be rotated when correcting for subject "
        "motion in DTI data. Magnetic Resonance in Medicine 61(6):1336-1349.",
        _doi("10.1002/mrm.21890"),
    ),
    "power": Reference(
        "Power JD, Barnes KA, Snyder AZ, Schlaggar BL, Petersen SE (2012). Spurious but "
        "systematic correlations in functional connectivity MRI networks arise from subject "
        "motion. NeuroImage 59(3):2142-2154.",
        _doi("10.1016/j.neuroimage.2011.10.018"),
    ),
    "mni": Reference(
        "Fonov V, Evans AC, Botteron K, Almli CR, McKinstry RC, Collins DL (2011). Unbiased "
        "average age-appropriate atlases for pediatric studies. NeuroImage 54(1):313-327.",
        _doi("10.1016/j.neuroimage.2010.07.033"),
    ),
    "nilearn": Reference(
        "Abraham A, Pedregosa F, Eickenberg M, et al. (2014). Machine learning for neuroimaging "
        "with scikit-learn. Frontiers in Neuroinformatics 8:14.",
        _doi("10.3389/fninf.2014.00014"),
    ),
    "healpix": Reference(
        "Górski KM, Hivon E, Banday AJ, et al. (2005). HEALPix: a framework for high-resolution "
        "discretization and fast analysis of data distributed on the sphere. The Astrophysical "
        "Journal 622(2):759-771.",
        _doi("10.1086/427976"),
    ),
    "healpy": Reference(
        "Zonca A, Singer L, Lenz D, et al. (2019). healpy: equal area pixelization and spherical "
        "harmonics transforms for data on the sphere in Python. Journal of Open Source Software "
        "4(35):1298.",
        _doi("10.21105/joss.01298"),
    ),
    "rish": Reference(
        "Mirzaalian H, Ning L, Savadjiev P, et al. (2016). Inter-site and inter-scanner "
        "diffusion MRI data harmonization. NeuroImage 135:311-323.",
        _doi("10.1016/j.neuroimage.2016.04.041"),
    ),
    "coherence": Reference(
        "Schilling KG, Yeh FC, Nath V, et al. (2019). A fiber coherence index for quality "
        "control of B-table orientation in diffusion MRI scans. Magnetic Resonance Imaging "
        "58:82-89.",
        _doi("10.1016/j.mri.2019.01.018"),
    ),
    "dipy": Reference(
        "Garyfallidis E, Brett M, Amirbekian B, et al. (2014). Dipy, a library for the analysis "
        "of diffusion MRI data. Frontiers in Neuroinformatics 8:8.",
        _doi("10.3389/fninf.2014.00008"),
    ),
    "ckn": Reference(
        "Mairal J (2016). End-to-end kernel learning with supervised convolutional kernel "
        "networks. Advances in Neural Information Processing Systems 29.",
        "https://arxiv.org/abs/1605.06265",
    ),
}
