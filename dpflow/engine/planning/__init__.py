"""Forecasts before anything is spent: precheck, simulation of schedules, solving for noise."""
