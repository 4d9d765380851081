"""List the papers that the methods text may cite."""

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
    "qsiprep": Reference(
        "Cieslak M, Cook PA, He X, et al. (2021). QSIPrep: an integrative platform for "
        "preprocessing and reconstructing diffusion MRI data. Nature Methods 18:775-778.",
        _doi("10.1038/s41592-021-01185-5"),
    ),
    "hcp": Reference(
        "Glasser MF, Sotiropoulos SN, Wilson JA, et al. (2013). The minimal preprocessing "
        "pipelines for the Human Connectome Project. NeuroImage 80:105-124.",
        _doi("10.1016/j.neuroimage.2013.04.127"),
    ),
    "ukb": Reference(
        "Alfaro-Almagro F, Jenkinson M, Bangerter NK, et al. (2018). Image processing and quality "
        "control for the first 10,000 brain imaging datasets from UK Biobank. NeuroImage "
        "166:400-424.",
        _doi("10.1016/j.neuroimage.2017.10.034"),
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
    "mppca": Reference(
        "Veraart J, Novikov DS, Christiaens D, Ades-Aron B, Sijbers J, Fieremans E (2016). "
        "Denoising of diffusion MRI using random matrix theory. NeuroImage 142:394-406.",
        _doi("10.1016/j.neuroimage.2016.08.016"),
    ),
    "patchtoself": Reference(
        "Fadnavis S, Batson J, Garyfallidis E (2020). Patch2Self: denoising diffusion MRI with "
        "self-supervised learning. Advances in Neural Information Processing Systems "
        "33:16293-16303.",
        "https://arxiv.org/abs/2011.01355",
    ),
    "unring": Reference(
        "Kellner E, Dhital B, Kiselev VG, Reisert M (2016). Gibbs-ringing artifact removal based "
        "on local subvoxel-shifts. Magnetic Resonance in Medicine 76(5):1574-1581.",
        _doi("10.1002/mrm.26054"),
    ),
    "nfour": Reference(
        "Tustison NJ, Avants BB, Cook PA, et al. (2010). N4ITK: improved N3 bias correction. IEEE "
        "Transactions on Medical Imaging 29(6):1310-1320.",
        _doi("10.1109/TMI.2010.2046908"),
    ),
    "synsdc": Reference(
        "Wang S, Peterson DJ, Gatenby JC, Li W, Grabowski TJ, Madhyastha TM (2017). Evaluation of "
        "field map and nonlinear registration methods for correction of susceptibility artifacts "
        "in diffusion MRI. Frontiers in Neuroinformatics 11:17.",
        _doi("10.3389/fninf.2017.00017"),
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
    "rishglm": Reference(
        "De Luca A, Swartenbroekx T, Seelaar H, et al. (2025). Cross-site harmonization of "
        "diffusion MRI data without matched training subjects. Magnetic Resonance in Medicine "
        "94(4):1750-1762.",
        "https://pmc.ncbi.nlm.nih.gov/articles/PMC12309894",
    ),
    "midrish": Reference(
        "Newlin NR, Kim ME, Kanakaraj P, et al. (2024). MidRISH: unbiased harmonization of "
        "rotationally invariant harmonics of the diffusion signal. Magnetic Resonance Imaging "
        "111:113-119.",
        _doi("10.1016/j.mri.2024.03.033"),
    ),
    "mixup": Reference(
        "Zhang H, Cisse M, Dauphin YN, Lopez-Paz D (2018). mixup: beyond empirical risk "
        "minimization. International Conference on Learning Representations.",
        "https://arxiv.org/abs/1710.09412",
    ),
    "cmixup": Reference(
        "Yao H, Wang Y, Zhang L, Zou J, Finn C (2022). C-Mixup: improving generalization in "
        "regression. Advances in Neural Information Processing Systems 35.",
        "https://arxiv.org/abs/2210.05775",
    ),
    "fisher": Reference(
        'Fisher RA (1921). On the "probable error" of a coefficient of correlation deduced from '
        "a small sample. Metron 1:3-32.",
        "https://hdl.handle.net/2440/15169",
    ),
    "renorm": Reference(
        "Ioffe S (2017). Batch renormalization: towards reducing minibatch dependence in "
        "batch-normalized models. Advances in Neural Information Processing Systems 30.",
        "https://arxiv.org/abs/1702.03275",
    ),
    "adam": Reference(
        "Kingma DP, Ba J (2015). Adam: a method for stochastic optimization. International "
        "Conference on Learning Representations.",
        "https://arxiv.org/abs/1412.6980",
    ),
    "torch": Reference(
        "Paszke A, Gross S, Massa F, et al. (2019). PyTorch: an imperative style, "
        "high-performance deep learning library. Advances in Neural Information Processing "
        "Systems 32.",
        "https://arxiv.org/abs/1912.01703",
    ),
    "deepsphere": Reference(
        "Defferrard M, Milani M, Gusset F, Perraudin N (2020). DeepSphere: a graph-based "
        "spherical CNN. International Conference on Learning Representations.",
        "https://arxiv.org/abs/2012.15000",
    ),
    "temperature": Reference(
        "Guo C, Pleiss G, Sun Y, Weinberger KQ (2017). On calibration of modern neural networks. "
        "Proceedings of the 34th International Conference on Machine Learning.",
        "https://arxiv.org/abs/1706.04599",
    ),
    "sklearn": Reference(
        "Pedregosa F, Varoquaux G, Gramfort A, et al. (2011). Scikit-learn: machine learning in "
        "Python. Journal of Machine Learning Research 12:2825-2830.",
        "https://www.jmlr.org/papers/v12/pedregosa11a.html",
    ),
    "wilson": Reference(
        "Wilson EB (1927). Probable inference, the law of succession, and statistical inference. "
        "Journal of the American Statistical Association 22(158):209-212.",
        _doi("10.1080/01621459.1927.10502953"),
    ),
    "mover": Reference(
        "Zou GY, Donner A (2008). Construction of confidence limits about effect measures: a "
        "general approach. Statistics in Medicine 27(10):1693-1702.",
        _doi("10.1002/sim.3095"),
    ),
    "paired": Reference(
        "Newcombe RG (1998). Improved confidence intervals for the difference between binomial "
        "proportions based on paired data. Statistics in Medicine 17(22):2635-2650.",
        _doi("10.1002/(SICI)1097-0258(19981130)17:22%3C2635::AID-SIM954%3E3.0.CO;2-C"),
    ),
    "newcombe": Reference(
        "Newcombe RG (2006). Confidence intervals for an effect size measure based on the "
        "Mann-Whitney statistic. Part 2: asymptotic methods and evaluation. Statistics in "
        "Medicine 25(4):559-573.",
        _doi("10.1002/sim.2324"),
    ),
    "boyd": Reference(
        "Boyd K, Eng KH, Page CD (2013). Area under the precision-recall curve: point estimates "
        "and confidence intervals. Machine Learning and Knowledge Discovery in Databases, LNCS "
        "8190:451-466.",
        _doi("10.1007/978-3-642-40994-3_29"),
    ),
    "permutation": Reference(
        "Ojala M, Garriga GC (2010). Permutation tests for studying classifier performance. "
        "Journal of Machine Learning Research 11:1833-1863.",
        "https://www.jmlr.org/papers/v11/ojala10a.html",
    ),
    "neverzero": Reference(
        "Phipson B, Smyth GK (2010). Permutation p-values should never be zero: calculating "
        "exact p-values when permutations are randomly drawn. Statistical Applications in "
        "Genetics and Molecular Biology 9(1):39.",
        _doi("10.2202/1544-6115.1585"),
    ),
    "maxt": Reference(
        "Westfall PH, Young SS (1993). Resampling-based multiple testing: examples and methods "
        "for p-value adjustment. Wiley, New York. See Nichols TE, Holmes AP (2002), Human Brain "
        "Mapping 15(1):1-25.",
        _doi("10.1002/hbm.1058"),
    ),
    "holm": Reference(
        "Holm S (1979). A simple sequentially rejective multiple test procedure. Scandinavian "
        "Journal of Statistics 6(2):65-70. See Aickin M, Gensler H (1996), American Journal of "
        "Public Health 86(5):726-728.",
        _doi("10.2105/AJPH.86.5.726"),
    ),
    "bbc": Reference(
        "Tsamardinos I, Greasidou E, Borboudakis G (2018). Bootstrapping the out-of-sample "
        "predictions for efficient and accurate cross-validation. Machine Learning "
        "107(12):1895-1922.",
        _doi("10.1007/s10994-018-5714-4"),
    ),
    "combat": Reference(
        "Johnson WE, Li C, Rabinovic A (2007). Adjusting batch effects in microarray expression "
        "data using empirical Bayes methods. Biostatistics 8(1):118-127.",
        _doi("10.1093/biostatistics/kxj037"),
    ),
    "combatdti": Reference(
        "Fortin JP, Parker D, Tunç B, et al. (2017). Harmonization of multi-site diffusion tensor "
        "imaging data. NeuroImage 161:149-170.",
        _doi("10.1016/j.neuroimage.2017.08.047"),
    ),
    "cramer": Reference(
        "Bergsma W (2013). A bias-correction for Cramér's V and Tschuprow's T. Journal of the "
        "Korean Statistical Society 42(3):323-328.",
        _doi("10.1016/j.jkss.2012.10.002"),
    ),
    "integrated": Reference(
        "Sundararajan M, Taly A, Yan Q (2017). Axiomatic attribution for deep networks. "
        "Proceedings of the 34th International Conference on Machine Learning 70:3319-3328.",
        "https://arxiv.org/abs/1703.01365",
    ),
    "sanity": Reference(
        "Adebayo J, Gilmer J, Muelly M, Goodfellow I, Hardt M, Kim B (2018). Sanity checks for "
        "saliency maps. Advances in Neural Information Processing Systems 31:9505-9515.",
        "https://arxiv.org/abs/1810.03292",
    ),
}
