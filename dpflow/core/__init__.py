"""Pure mathematics: amounts, events, filters, exact samplers, declarations, protocols. No I/O, no
clock.
"""
