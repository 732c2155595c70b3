-- The database roles of those who spend, on PostgreSQL. Run by the ledger's owner, in the ledger's database and schema; running
-- it again is harmless:
--     psql -f roles.sql "$LEDGER"
-- then make each login a member of one:  GRANT dpflow_spender TO airflow;
--
--   dpflow_spender      releases: charges, settles, retries. It cannot read or write the secret state of sessions.
--   dpflow_interactive  the same, and sessions: opens them, reads and advances their state, stores answers, tells verdicts.
--   dpflow_reader       the budget page: reads what is granted, spent and charged, and the history. It writes nothing, and reads no
--                       result, answer, state or key, not even encrypted. It is a member of no other role, and needs no anchor.
--
-- Of those who spend, neither can grant, resolve an orphan, take a charge back, change what is settled or answered, reopen what is
-- closed, delete anything, or touch the history, not even by hand and not even with the anchor's key, which both need to seal what
-- they do. Both can read what is granted, spent and released, and can spend what is left: that is what they are for. By hand they
-- could charge without releasing anything, store a result that nobody drew, write rows without an entry, or stop all writers by
-- sitting on the lock; `dpflow ledger verify` finds rows without an entry, and every entry names its principal. Verifying and
-- exporting need to read all: the owner, dpflow_interactive, or a role of yours.

DO $$ BEGIN
    CREATE ROLE dpflow_spender NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
DO $$ BEGIN
    CREATE ROLE dpflow_interactive NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
DO $$ BEGIN
    CREATE ROLE dpflow_reader NOLOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
GRANT dpflow_spender TO dpflow_interactive;

REVOKE ALL ON dpflow_meta, dpflow_scope, dpflow_proposal, dpflow_account, dpflow_release, dpflow_data, dpflow_slot, dpflow_answer,
    dpflow_verdict, dpflow_key, dpflow_node, dpflow_entry, dpflow_witness FROM PUBLIC, dpflow_spender, dpflow_interactive, dpflow_reader;
GRANT SELECT ON dpflow_meta, dpflow_scope, dpflow_proposal, dpflow_account, dpflow_data, dpflow_slot, dpflow_verdict, dpflow_key, dpflow_node,
    dpflow_entry, dpflow_witness TO dpflow_spender;
GRANT SELECT (id, scope, dag_id, task_id, run_identity, digest, ordinal, family, state, exclusive, attempts, fenced_below,
    principal, blocks, event, request, name, seq, result, result_digest, snapshot, version, secret_digest) ON dpflow_release
    TO dpflow_spender;
GRANT INSERT ON dpflow_account, dpflow_release, dpflow_data, dpflow_slot, dpflow_key, dpflow_node, dpflow_entry TO dpflow_spender;
GRANT UPDATE (epsilon, delta, renyi) ON dpflow_account TO dpflow_spender;
GRANT UPDATE (size, charges) ON dpflow_witness TO dpflow_spender;
GRANT UPDATE (state, result, result_digest, snapshot, attempts) ON dpflow_release TO dpflow_spender;
GRANT UPDATE (body) ON dpflow_node TO dpflow_spender;

GRANT SELECT ON dpflow_meta, dpflow_scope, dpflow_proposal, dpflow_account, dpflow_slot, dpflow_entry TO dpflow_reader;
GRANT SELECT (id, scope, dag_id, task_id, run_identity, digest, ordinal, family, state, exclusive, attempts, fenced_below,
    principal, blocks, event, request, name, seq, version) ON dpflow_release TO dpflow_reader;

GRANT SELECT (secret), UPDATE (secret, secret_digest, version) ON dpflow_release TO dpflow_interactive;
GRANT UPDATE (gate, partition) ON dpflow_data TO dpflow_interactive;
GRANT SELECT, INSERT ON dpflow_answer TO dpflow_interactive;
GRANT INSERT ON dpflow_verdict TO dpflow_interactive;

-- What holds for everybody, the owner included: sums grow, and a release only goes forward.

CREATE OR REPLACE FUNCTION dpflow_only_forward() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'what is spent or settled stays so'; END $$;

CREATE OR REPLACE TRIGGER dpflow_account_only_grows BEFORE UPDATE ON dpflow_account FOR EACH ROW
    WHEN (NEW.epsilon < OLD.epsilon OR NEW.delta < OLD.delta OR NEW.renyi < OLD.renyi)
    EXECUTE FUNCTION dpflow_only_forward();

CREATE OR REPLACE TRIGGER dpflow_witness_only_forward BEFORE UPDATE ON dpflow_witness FOR EACH ROW
    WHEN (NEW.size < OLD.size OR (NEW.size = OLD.size AND NEW.charges < OLD.charges))
    EXECUTE FUNCTION dpflow_only_forward();

CREATE OR REPLACE TRIGGER dpflow_release_only_forward BEFORE UPDATE ON dpflow_release FOR EACH ROW
    WHEN (OLD.state IN ('settled', 'fenced', 'closed')
        OR NEW.version < OLD.version OR NEW.attempts < OLD.attempts OR NEW.fenced_below < OLD.fenced_below
        OR (NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN
            (('reserved', 'settled'), ('reserved', 'fenced'), ('open', 'closed'))))
    EXECUTE FUNCTION dpflow_only_forward();

CREATE OR REPLACE FUNCTION dpflow_gate_stays() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an open gate and a partition stay so'; END $$;

-- Its body is bound now: a temporary table of the same name means nothing to it.
CREATE OR REPLACE FUNCTION dpflow_is_open(id text) RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC SELECT EXISTS (SELECT 1 FROM dpflow_release r WHERE r.id = $1 AND r.state = 'open'); END;

CREATE OR REPLACE TRIGGER dpflow_data_stays BEFORE UPDATE ON dpflow_data FOR EACH ROW
    WHEN (NEW.name <> OLD.name OR NEW.first <> OLD.first OR (OLD.partition IS NOT NULL AND NEW.partition IS DISTINCT FROM OLD.partition)
        OR (NEW.gate IS DISTINCT FROM OLD.gate AND dpflow_is_open(OLD.gate)))
    EXECUTE FUNCTION dpflow_gate_stays();

-- What only the owner decides: the policies bind everybody but the tables' owner.

ALTER TABLE dpflow_entry ENABLE ROW LEVEL SECURITY;
ALTER TABLE dpflow_release ENABLE ROW LEVEL SECURITY;
ALTER TABLE dpflow_data ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS dpflow_reads ON dpflow_data;
CREATE POLICY dpflow_reads ON dpflow_data FOR SELECT USING (true);
DROP POLICY IF EXISTS dpflow_no_gate ON dpflow_data;
CREATE POLICY dpflow_no_gate ON dpflow_data FOR INSERT TO dpflow_spender WITH CHECK (gate IS NULL AND partition IS NULL);
DROP POLICY IF EXISTS dpflow_gate ON dpflow_data;
CREATE POLICY dpflow_gate ON dpflow_data FOR ALL TO dpflow_interactive USING (true) WITH CHECK (true);

DROP POLICY IF EXISTS dpflow_reads ON dpflow_entry;
CREATE POLICY dpflow_reads ON dpflow_entry FOR SELECT USING (true);
DROP POLICY IF EXISTS dpflow_no_decision ON dpflow_entry;
CREATE POLICY dpflow_no_decision ON dpflow_entry FOR INSERT TO dpflow_spender
    WITH CHECK (kind NOT IN ('grant', 'propose', 'resolve', 'import', 'reanchor', 'recover', 'rotate', 'suite'));

DROP POLICY IF EXISTS dpflow_reads ON dpflow_release;
CREATE POLICY dpflow_reads ON dpflow_release FOR SELECT USING (true);
DROP POLICY IF EXISTS dpflow_charges ON dpflow_release;
CREATE POLICY dpflow_charges ON dpflow_release FOR INSERT TO dpflow_spender
    WITH CHECK (state = 'reserved' AND result IS NULL AND attempts = 1 AND fenced_below = 0 AND version = 0);
DROP POLICY IF EXISTS dpflow_settles ON dpflow_release;
CREATE POLICY dpflow_settles ON dpflow_release FOR UPDATE TO dpflow_spender
    USING (state = 'reserved') WITH CHECK (state IN ('reserved', 'settled'));
DROP POLICY IF EXISTS dpflow_opens ON dpflow_release;
CREATE POLICY dpflow_opens ON dpflow_release FOR INSERT TO dpflow_interactive
    WITH CHECK (state = 'open' AND result IS NULL AND attempts = 1 AND fenced_below = 0 AND version = 0);
DROP POLICY IF EXISTS dpflow_answers ON dpflow_release;
CREATE POLICY dpflow_answers ON dpflow_release FOR UPDATE TO dpflow_interactive
    USING (state = 'open') WITH CHECK (state IN ('open', 'closed'));
