# CPU:   docker build -t luna-lra .
# CUDA:  docker build -t luna-lra:cuda --build-arg DEVICE=cuda .
# Run:   docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD":/work luna-lra train experiment=demo attention=luna
#        with --gpus all and luna-lra:cuda for a GPU
# By digest, so that nobody can replace it; `docker buildx imagetools inspect python:3.12-slim-bookworm` says the latest.
ARG BASE=python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3
FROM ${BASE}

# torch.compile and Triton call a compiler while they run.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml constraints.txt requirements.lock README.md LICENSE ./
COPY configs configs
COPY hydra_plugins hydra_plugins
COPY luna luna
COPY lra lra

# The registry's torch for Linux is the one for CUDA; uv takes the one for CPUs from torch's own index.
# Every file that the lock names is checked by its hash, uv first; torch by its version.
ARG DEVICE=cpu
ARG EXTRAS=convert,fast,optuna,plots,sweep,tensorboard
RUN case "$DEVICE" in \
        cpu) torch="--torch-backend=cpu" ;; \
        cuda) torch="" ;; \
        *) echo "DEVICE is cpu or cuda, not $DEVICE"; exit 1 ;; \
    esac \
    && sed -n '/^uv==/,$p' requirements.lock >/tmp/uv.txt \
    && pip install --no-cache-dir --require-hashes -r /tmp/uv.txt \
    && uv pip install --system --no-cache --compile-bytecode -c requirements.lock -b requirements.lock \
        -c constraints.txt ${torch:+"$torch"} ".[$EXTRAS]"

# Data and runs go to the folder that is mounted here; its owner need not exist in the image.
WORKDIR /work
ENV HOME=/tmp
USER 1000:1000
ENTRYPOINT ["lra"]
