# dpflow, its four plugin distributions and Airflow, from hashed locks (`make lock`): nothing of who develops or tests.
FROM python:3.11-slim AS builder

RUN pip install --no-cache-dir uv==0.13.8
ENV VIRTUAL_ENV=/opt/venv
RUN uv venv "$VIRTUAL_ENV"

WORKDIR /build
COPY deploy/requirements.lock ./
RUN uv pip install --no-cache --compile-bytecode --require-hashes -r requirements.lock

# The backend that builds wheels: beside the environment that is shipped, not in it.
COPY deploy/build.lock ./
RUN uv pip install --no-cache --system --require-hashes -r build.lock

COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY dpflow ./dpflow
COPY dags ./dags
COPY plugins ./plugins
RUN for folder in . plugins/*; do \
        uv build --quiet --wheel --no-build-isolation --python /usr/local/bin/python --out-dir dist "$folder" || exit 1; \
    done \
    && uv pip install --no-cache --no-deps --no-index --compile-bytecode dist/*.whl

FROM python:3.11-slim

RUN useradd --create-home --uid 50000 dpflow \
    && mkdir -p /opt/dpflow/project/private /opt/dpflow/project/dags /opt/dpflow/project/service /opt/dpflow/project/incoming /opt/dpflow/work /opt/dpflow/anchor /opt/dpflow/owner /opt/dpflow/tls /opt/dpflow/ca /opt/dpflow/logs /opt/dpflow/users \
    && chmod 700 /opt/dpflow/project/private /opt/dpflow/anchor /opt/dpflow/owner /opt/dpflow/tls /opt/dpflow/users \
    && mkdir -p /home/dpflow/airflow/config \
    && chown -R dpflow /opt/dpflow /home/dpflow/airflow

COPY --from=builder /opt/venv /opt/venv
COPY deploy/init.py deploy/make_secrets.py deploy/healthcheck.py /opt/dpflow/
COPY deploy/airflow_local_settings.py /home/dpflow/airflow/config/

USER dpflow
WORKDIR /opt/dpflow
ENV PATH=/opt/venv/bin:$PATH AIRFLOW_HOME=/home/dpflow/airflow
CMD ["airflow", "api-server"]
