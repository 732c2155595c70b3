"""How a file is opened and named: the isolated database, SQL text, stored fingerprints of blocks."""
