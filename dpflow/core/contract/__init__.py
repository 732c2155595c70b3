"""What a mechanism author implements and what a declaration says: models and protocols, nothing
that draws.
"""
