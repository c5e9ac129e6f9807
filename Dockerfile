# syntax=docker/dockerfile:1
# A server on the CPU. docs/guides/deployment.md says how it is built and run.
#
#   make wheel && docker build -t weft .        for this machine's CPU; `make wheels` builds a wheel for every level of CPUs
#
# The wheel brings llama.cpp: nothing is compiled here, and no compiler comes into the image.

ARG DEBIAN=trixie-slim

FROM debian:${DEBIAN} AS python
# Debian keeps one version of a package: a pinned one is gone with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/*

FROM python AS installed
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/weft

COPY dist/weft_llm-*.whl /dist/
# Models by name (-hf) need huggingface-hub.
# hadolint ignore=DL3013
RUN /opt/weft/bin/pip install --no-cache-dir /dist/*.whl 'huggingface-hub>=2.4' \
    && /opt/weft/bin/pip uninstall --yes pip

FROM python
COPY --from=installed /opt/weft /opt/weft
COPY deploy/healthcheck.py /opt/weft/healthcheck.py
# By number, so that Kubernetes sees that it is not root.
RUN install --directory --owner=10001 --group=10001 /models
USER 10001:10001
# Everything that is written goes there: models that are downloaded, and what `weft tune` has measured. The rest may be read-only.
VOLUME /models
WORKDIR /models
ENV HOME=/models \
    LLAMA_ARG_HOST=0.0.0.0 \
    LLAMA_ARG_PORT=8080 \
    PATH=/opt/weft/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/models/.cache
EXPOSE 8080
# Twenty minutes for a model to be downloaded and loaded, in which it may be asked as often; from the first answer on it counts.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20m --retries=3 CMD ["python3", "/opt/weft/healthcheck.py"]
ENTRYPOINT ["weft"]
