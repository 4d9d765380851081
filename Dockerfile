# syntax=docker/dockerfile:1
# docker build -t bids_gevnet .      docker run bids_gevnet /data /out participant
#
# The default base brings the CUDA runtime; torch finds the GPU through it. Any Debian or Ubuntu
# image works as BASE_IMAGE for a CPU-only image.
ARG BASE_IMAGE=nvidia/cuda:13.0.1-runtime-ubuntu24.04

# The wheel, built apart so that neither sources nor build tools reach the last stage.
FROM ${BASE_IMAGE} AS wheel
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY bids_gevnet bids_gevnet
COPY workflows workflows
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir "hatchling>=1.27" "build>=1.2" \
    && /build/bin/python -m build --wheel --no-isolation --outdir /wheel

# Dependencies before the wheel: they change rarely and weigh gigabytes.
FROM ${BASE_IMAGE} AS environment
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt /tmp/
RUN python3 -m venv /opt/bids_gevnet \
    && python3 -c 'import tomllib; print(*tomllib.load(open("/tmp/pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > /tmp/requirements.txt \
    && /opt/bids_gevnet/bin/pip install --no-cache-dir --constraint /tmp/constraints.txt --requirement /tmp/requirements.txt
COPY --from=wheel /wheel/*.whl /tmp/
RUN /opt/bids_gevnet/bin/pip install --no-cache-dir --no-deps /tmp/*.whl

FROM ${BASE_IMAGE} AS open
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=environment /opt/bids_gevnet /opt/bids_gevnet
# Any user, a read-only root and no network are normal on a cluster: nothing is written outside
# /tmp and the output, and nothing asks the network for anything.
ENV PATH=/opt/bids_gevnet/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    NIPYPE_NO_ET=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONNOUSERSITE=1
LABEL org.opencontainers.image.title="bids_gevnet" \
      org.opencontainers.image.description="Gauge equivariant learning from diffusion MRI" \
      org.opencontainers.image.licenses="BSD-3-Clause"
USER 1000:1000
ENTRYPOINT ["bids_gevnet"]
