"""Exact samplers against OpenDP's, in an environment of its own, and against the cost of entropy
itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

from bench.timing import medians, show
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import discrete_gaussian, discrete_laplace

SIZE, ALONE = 10**6, 10**4
PEER = """
import json, time
import opendp.prelude as dp
dp.enable_features("contrib")
def rate(make, size):
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int) if make is dp.m.make_laplace else dp.l2_distance(T=float)
    measure, data = make(*space, scale=10.0), [0] * size
    start = time.process_time(); measure(data)
    return size / (time.process_time() - start)
def alone(make, metric):
    measure = make(dp.atom_domain(T=int), metric, scale=10.0)
    start = time.process_time(); [measure(0) for _ in range(2000)]
    return 2000 / (time.process_time() - start)
print(json.dumps({
    "Laplace": rate(dp.m.make_laplace, 100000),
    "Gaussian": rate(dp.m.make_gaussian, 100000),
    "Laplace, one at a time": alone(dp.m.make_laplace, dp.absolute_distance(T=int)),
    "Gaussian, one at a time": alone(dp.m.make_gaussian, dp.absolute_distance(T=float)),
}))
"""


def opendp() -> dict[str, float]:
    """OpenDP's rates, in draws a second; an empty mapping if it cannot be installed."""
    place = Path(__file__).parents[1] / ".tools" / "opendp"
    python = place / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    try:
        if not python.exists():
            subprocess.run([uv, "venv", "--quiet", place], check=True)
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", python, "opendp==0.16.0"], check=True
            )
        done = subprocess.run([python, "-c", PEER], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(json.loads(done.stdout))


def main() -> None:
    """Vectors of a million draws, and single draws; in processor time on both sides, since neither
    waits for anything.
    """
    source, peer = SystemSource(), opendp()
    scale, variance = Fraction(10), Fraction(100)
    taken = medians(
        {
            "Laplace": lambda: discrete_laplace(scale, SIZE, source),
            "Gaussian": lambda: discrete_gaussian(variance, SIZE, source),
            "entropy alone": lambda: os.urandom(8 * SIZE),
            "Laplace, one at a time": lambda: [
                discrete_laplace(scale, 1, source) for _ in range(ALONE)
            ],
            "Gaussian, one at a time": lambda: [
                discrete_gaussian(variance, 1, source) for _ in range(ALONE)
            ],
        },
        clock=time.process_time,
    )
    rows = []
    for name, seconds in taken.items():
        rate = (ALONE if "one at" in name else SIZE) / seconds
        against = f"{rate / peer[name]:.1f}" if name in peer else ""
        rows.append((name, f"{rate:,.0f}/s", against))
    show("exact samplers, scale 10", ("sampler", "rate", "times OpenDP 0.16"), rows)
