"""One module per kind of request: what it checks beforehand and what it answers."""
