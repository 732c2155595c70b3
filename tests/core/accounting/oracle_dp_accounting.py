"""Records what dp-accounting says, for tests/core/accounting/test_privacy_filters.py. It does not
install beside Airflow: own environment.

    make oracle

Writes oracle_dp_accounting.json next to this file.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

DELTA = 1e-6


def main() -> None:
    import dp_accounting as da  # type: ignore[import-not-found,unused-ignore]
    from dp_accounting.pld import PLDAccountant  # type: ignore[import-not-found,unused-ignore]
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.rdp import RdpAccountant  # type: ignore[import-not-found,unused-ignore]

    def jobs(event: Any, epsilon: float, order: float) -> int:
        """Charges before the first refusal by one fixed order."""
        low, high = 0, 100_000
        while high - low > 1:
            middle = (low + high) // 2
            fits = (
                RdpAccountant(orders=[order]).compose(event, middle).get_epsilon(DELTA) <= epsilon
            )
            low, high = (middle, high) if fits else (low, middle)
        return low

    laplace, gaussian = da.LaplaceDpEvent(100.0), da.GaussianDpEvent(50.0)
    tenfold = da.GaussianDpEvent(10.0)
    discrete = pld.from_discrete_laplace_mechanism(0.01, value_discretization_interval=1e-7)
    record = {
        "dp-accounting": version("dp-accounting"),
        "delta": DELTA,
        "jobs": {
            "laplace 0.01, eps 1, order 22.0": jobs(laplace, 1, 22.0),
            "laplace 0.01, eps 3, order 8.9": jobs(laplace, 3, 8.9),
            "gaussian 50, eps 1, order 22.0": jobs(gaussian, 1, 22.0),
        },
        "gaussian 10, k 100": {
            "rdp eps": RdpAccountant().compose(tenfold, 100).get_epsilon(DELTA),
            "pld eps": PLDAccountant().compose(tenfold, 100).get_epsilon(DELTA),
        },
        "rdp eps at one order, one laplace": [
            [
                scale,
                order,
                RdpAccountant(orders=[order]).compose(da.LaplaceDpEvent(scale)).get_epsilon(DELTA),
            ]
            for scale in (0.5, 2.0, 10.0)
            for order in (1.5, 8.9, 22.0, 64.0)
        ],
        "pld delta, discrete laplace 0.01, k 490, eps 1": discrete.self_compose(
            490
        ).get_delta_for_epsilon(1.0),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
