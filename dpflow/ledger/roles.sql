-- The database role of those who spend, on PostgreSQL. Run once by the ledger's owner, in the ledger's database and schema:
--     psql -f roles.sql "$LEDGER"
-- then make each spender's login a member:  GRANT dpflow_spender TO airflow;
-- It can charge, settle and answer. It cannot grant, take a charge back, change what is settled, or touch the history.

DO $$ BEGIN
    CREATE ROLE dpflow_spender NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

GRANT SELECT ON dpflow_meta, dpflow_scope, dpflow_account, dpflow_release, dpflow_slot, dpflow_answer, dpflow_entry TO dpflow_spender;
GRANT INSERT ON dpflow_account, dpflow_release, dpflow_slot, dpflow_answer, dpflow_entry TO dpflow_spender;
GRANT UPDATE (epsilon, delta, renyi) ON dpflow_account TO dpflow_spender;
GRANT UPDATE (state, result, snapshot, attempts, fenced_below, version, secret) ON dpflow_release TO dpflow_spender;

CREATE OR REPLACE FUNCTION dpflow_only_forward() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'what is spent or settled stays so'; END $$;

CREATE OR REPLACE TRIGGER dpflow_account_only_grows BEFORE UPDATE ON dpflow_account FOR EACH ROW
    WHEN (NEW.epsilon < OLD.epsilon OR NEW.delta < OLD.delta OR NEW.renyi < OLD.renyi)
    EXECUTE FUNCTION dpflow_only_forward();

CREATE OR REPLACE TRIGGER dpflow_release_stays_settled BEFORE UPDATE ON dpflow_release FOR EACH ROW
    WHEN (OLD.state IN ('settled', 'fenced', 'closed') OR NEW.version < OLD.version)
    EXECUTE FUNCTION dpflow_only_forward();
