"""Prediction sessions: answers from models that stay inside."""
