"""Calculators, sample sizes, bounds, attacks and auditors: nothing here reads private rows."""
