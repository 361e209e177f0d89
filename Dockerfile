# syntax=docker/dockerfile:1
# docker build -t rl_plasticity .                             torch for CPUs
# docker build -t rl_plasticity:cuda --build-arg TORCH=cu130 .    with CUDA: the folder of that name of download.pytorch.org/whl
# docker run --rm -v "$PWD/results:/work/results" rl_plasticity train env=cheetah-run preset=demo
FROM python:3.11-slim-bookworm

# A C++ compiler for the compiled update; EGL, and OSMesa where there is none, for videos without a display.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes g++ libegl1 libgl1 libgles2 libglx-mesa0 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rl_plasticity
COPY constraints.txt ./
# torch first and in a layer of its own: it seldom changes. 2.13.0+cpu comes before 2.13.0, which pip's own index has.
ARG TORCH=cpu
RUN pip install --no-cache-dir --constraint constraints.txt torch --extra-index-url "https://download.pytorch.org/whl/${TORCH}"

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY rl_plasticity rl_plasticity
COPY rl_plasticity_zoo rl_plasticity_zoo
ARG EXTRAS=rl,images,video,parallel
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

# Whoever runs it: files in the volume belong to this number unless docker run --user says another.
RUN useradd --create-home --uid 1000 rl && install --directory --owner=rl /work/results
USER 1000
WORKDIR /work
VOLUME /work/results
ENV MUJOCO_GL=egl \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics
ENTRYPOINT ["python", "-m", "rl_plasticity"]
CMD ["--help"]
