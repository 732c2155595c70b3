# dpflow and Airflow from the same hashed lock that the tests use.
FROM python:3.11-slim

RUN pip install --no-cache-dir uv==0.13.8 \
    && useradd --create-home --uid 50000 dpflow \
    && mkdir -p /opt/dpflow/demo /opt/dpflow/anchor \
    && chown -R dpflow /opt/dpflow

WORKDIR /opt/dpflow
COPY requirements.lock ./
RUN uv pip install --system --no-cache --compile-bytecode --require-hashes -r requirements.lock

COPY pyproject.toml README.md ./
COPY dpflow ./dpflow
RUN uv pip install --system --no-cache --no-deps --no-build-isolation .
COPY deploy/init.sh ./init.sh

USER dpflow
ENV AIRFLOW_HOME=/home/dpflow/airflow
CMD ["airflow", "api-server"]
