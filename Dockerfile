# The program alone; what it connects to is in docker-compose.yml.
FROM python:3.14-slim AS build
WORKDIR /build
COPY requirements.txt requirements-build.txt ./
RUN python -m venv /opt/viewtail \
    && /opt/viewtail/bin/pip install --no-cache-dir --require-hashes -r requirements.txt \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-build.txt
COPY pyproject.toml README.md LICENSE docker-compose.yml ./
COPY stack stack
COPY offsets offsets
COPY ingest ingest
COPY projectors projectors
COPY viewtail viewtail
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /build/dist \
    && /opt/viewtail/bin/pip install --no-cache-dir --no-deps --no-index /build/dist/*.whl

FROM python:3.14-slim
RUN useradd --system --create-home --uid 10001 viewtail
COPY --from=build /opt/viewtail /opt/viewtail
ENV PATH=/opt/viewtail/bin:$PATH PYTHONUNBUFFERED=1
# views.py and viewtail.toml are mounted here.
WORKDIR /views
USER viewtail
ENTRYPOINT ["viewtail"]
CMD ["run"]
