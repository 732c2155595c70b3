#!/bin/sh
# Once, before the other services: the metadata database, the ledger's database, and an empty ledger.
set -eu
airflow db migrate
python - <<'PY'
import os

import sqlalchemy as sa

from dpflow import Ledger

target = sa.make_url(os.environ["DPFLOW_LEDGER"])
engine = sa.create_engine(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], isolation_level="AUTOCOMMIT")
with engine.connect() as connection:
    known = connection.scalar(sa.text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": target.database})
    if not known:
        connection.execute(sa.text(f'CREATE DATABASE "{target.database}"'))
Ledger(os.environ["DPFLOW_LEDGER"], create=True)
PY
