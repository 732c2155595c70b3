"""How a file is opened and named: the sandbox, SQL text, stored fingerprints of blocks."""
