"""What the ledger keeps: grants, charges, releases, sessions, data claims."""
