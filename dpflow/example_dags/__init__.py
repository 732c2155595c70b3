"""The example workflows, their tables and the owner's script: what `dpflow demo` copies and runs."""
