"""What tests of dpflow and of its plugins share: anchors of their ledgers are not this user's."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Before anything opens a ledger, and for every process that a test starts. Workers of xdist inherit
# the folder, which the process that made it removes.
if "DPFLOW_TEST_STATE" not in os.environ:
    folder = tempfile.mkdtemp(prefix="dpflow-state-")
    os.environ |= {"DPFLOW_TEST_STATE": folder, "XDG_STATE_HOME": folder}
    # Their login on PostgreSQL is a superuser.
    os.environ["DPFLOW_LEDGER_OWNER"] = "1"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
