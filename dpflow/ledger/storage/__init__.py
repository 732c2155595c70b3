"""Databases: connections, statements, the schema, turns of writers."""
