"""The mechanisms everything else is built from: exponential, stability, choosing, RecConcave, noisy counts."""
