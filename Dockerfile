# syntax=docker/dockerfile:1
# docker build -t bids_gevnet .      docker run bids_gevnet /data /out participant
#
# Targets: open (the default; everything from PyPI) and fsl (adds FSL's eddy, topup and bet).
# Base: any Debian or Ubuntu with Python 3.11 or newer; the default brings the CUDA runtime.
# containers/README.md has the commands, and what of this has been verified.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-runtime-ubuntu24.04
ARG MICROMAMBA_IMAGE=mambaorg/micromamba:2.3.2

FROM ${BASE_IMAGE} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log

# What builds wheels; none of it reaches the last stage.
FROM python AS tools
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY containers/requirements-build.lock containers/requirements-sdist.lock /locks/
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes \
        --requirement /locks/requirements-build.lock \
    && /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        --wheel-dir /wheels --requirement /locks/requirements-sdist.lock

# The compiler for the kernels (bids_gevnet/compiled); the wheel holds what it made.
FROM tools AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY bids_gevnet bids_gevnet
COPY workflows workflows
RUN BIDS_GEVNET_COMPILE=always /build/bin/python -m build --wheel --no-isolation --outdir /wheel

# Dependencies before the wheel: they change rarely and weigh gigabytes. The locks name every
# package, so that pip resolves nothing; "pip check" says whether that is true.
FROM tools AS environment
# cuda, or cpu, which PyPI does not have: give PIP_EXTRA_INDEX_URL with it.
ARG TORCH=cuda
ARG PIP_EXTRA_INDEX_URL
COPY containers/requirements.lock containers/requirements-torch-${TORCH}.lock /locks/
RUN python3 -m venv --without-pip /opt/bids_gevnet \
    && /build/bin/pip --python /opt/bids_gevnet/bin/python install --no-cache-dir --no-deps \
        --only-binary :all: --require-hashes --requirement /locks/requirements.lock \
        --requirement "/locks/requirements-torch-${TORCH}.lock"
COPY --from=wheel /wheel /wheels
RUN /build/bin/pip --python /opt/bids_gevnet/bin/python install --no-cache-dir --no-deps \
        --no-index /wheels/*.whl \
    && /build/bin/pip --python /opt/bids_gevnet/bin/python check

FROM python AS runtime
COPY --from=environment /opt/bids_gevnet /opt/bids_gevnet
# What is inside, under which licence: a table for people, an SBOM (CycloneDX) for machines.
RUN --mount=type=bind,source=containers/licences.py,target=/licences.py \
    /opt/bids_gevnet/bin/python /licences.py /usr/share/bids_gevnet
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG BASE_IMAGE
# Any user, a read-only root and no network are normal on a cluster: libraries keep their caches
# under the work directory, and nobody starts more threads than the command line allows.
ENV PATH=/opt/bids_gevnet/bin:$PATH \
    BIDS_GEVNET_CONTAINER=bids_gevnet:${VERSION} \
    HOME=/tmp \
    LANG=C.UTF-8 \
    NIPYPE_NO_ET=1 \
    NO_ET=1 \
    MPLBACKEND=agg \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    MKL_NUM_THREADS=1 \
    ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONNOUSERSITE=1 \
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120
LABEL org.opencontainers.image.title="bids_gevnet" \
      org.opencontainers.image.description="Gauge equivariant learning from diffusion MRI. Research use only." \
      org.opencontainers.image.licenses="BSD-3-Clause AND GPL-2.0-only" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["bids_gevnet"]

# FSL may be used for non-commercial purposes only: whoever builds this target accepts its
# licence, https://fsl.fmrib.ox.ac.uk/fsl/docs/#/license, with --build-arg FSL_LICENCE=accepted.
FROM ${MICROMAMBA_IMAGE} AS micromamba
FROM python AS fsl-environment
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG FSL_LICENCE=not-accepted
RUN if [ "${FSL_LICENCE}" != accepted ]; then \
        echo "FSL's licence forbids commercial use. Read it, then --build-arg FSL_LICENCE=accepted" >&2; \
        exit 1; \
    fi
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=micromamba /bin/micromamba /usr/local/bin/micromamba
COPY containers/fsl-environment.yml /tmp/
# FSL's post-link scripts look for FSLDIR.
ENV FSLDIR=/opt/fsl
RUN micromamba create --yes --no-rc --root-prefix /tmp/micromamba --prefix /opt/fsl \
        --file /tmp/fsl-environment.yml \
    && for tool in bet eddy_cpu eddy_cuda11.0 fslmaths topup; do test -x /opt/fsl/bin/$tool || exit 1; done \
    && rm -rf /opt/fsl/conda-meta/history /opt/fsl/include /opt/fsl/src

FROM runtime AS fsl
COPY --from=fsl-environment /opt/fsl /opt/fsl
# At the end of PATH: FSL brings a Python of its own.
ENV FSLDIR=/opt/fsl \
    FSLOUTPUTTYPE=NIFTI_GZ \
    FSLMULTIFILEQUIT=TRUE \
    PATH=$PATH:/opt/fsl/bin
LABEL org.opencontainers.image.licenses="BSD-3-Clause AND GPL-2.0-only AND LicenseRef-FSL"

# Last, so that it is what "docker build" makes.
FROM runtime AS open
