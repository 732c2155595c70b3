"""Mechanisms that break their privacy guarantee on purpose, and the check that finds each.

A suite that lets one of these pass is itself broken.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.testing.corpus import releases, sessions
from dpflow.testing.examples import AnyMechanism, Example


@dataclass(frozen=True)
class Control:
    """A broken mechanism, and the check of `dpflow.testing.conformance` that finds it on one of
    these examples, or on the standard ones.
    """

    mechanism: AnyMechanism
    caught_by: str
    examples: tuple[Example, ...] | None = None


_EXACT, _AUDIT = "guarantee_holds_exactly", "guarantee_survives_audit"
_NEVER, _SOURCE, _LAW = "draw_never_raises", "randomness_is_the_source", "randomness_has_a_law"

CONTROLS = (
    Control(releases.TooLittleNoise(), _EXACT),
    Control(releases.RemovalOnly(), _EXACT),
    Control(releases.OneRowSensitivity(), _EXACT),
    Control(releases.LowThreshold(), _EXACT),
    Control(releases.SmallDelta(), _EXACT),
    Control(releases.ShowsAllKeys(), _EXACT),
    Control(releases.ShortRadius(), _EXACT),
    Control(releases.WrongDivergence(), _EXACT),
    Control(releases.ExpOfVotes(), _EXACT),
    Control(releases.FloatSum(), _EXACT),
    Control(releases.OneSeedForAll(), _EXACT),
    Control(releases.AveragesRetries(), _EXACT),
    Control(releases.RedrawsBadOnes(), _EXACT),
    Control(releases.RowsInDocument(), _EXACT),
    Control(releases.RowsInSynthetic(), _EXACT),
    Control(releases.RowsInError(), _EXACT),
    Control(releases.ExactFirst(), _EXACT),
    Control(releases.NumberOfRows(), _EXACT),
    Control(releases.OneRowSensitivity(), _AUDIT),
    Control(releases.LowThreshold(), _AUDIT),
    Control(releases.FloatLaplace(), _AUDIT),
    Control(releases.SometimesExact(), _AUDIT),
    Control(releases.HalfTheCost(), _AUDIT),
    Control(releases.RowsInDocument(), _AUDIT),
    Control(releases.RowsInSynthetic(), _AUDIT),
    Control(releases.RowsInError(), _AUDIT),
    Control(releases.ExactFirst(), _AUDIT),
    Control(releases.NumberOfRows(), _AUDIT),
    Control(releases.FloatLaplace(), _LAW),
    Control(releases.FloatGaussian(), _LAW),
    Control(releases.PublicSeed(), _SOURCE),
    Control(releases.NumpyNoise(), _SOURCE),
    Control(releases.ReadsClock(), _SOURCE),
    Control(releases.CostFollowsRows(), _NEVER),
    Control(releases.RaisesOnEmpty(), _NEVER),
    Control(releases.Talkative(), _NEVER),
    Control(releases.Warns(), _NEVER),
    Control(releases.WritesFile(), _NEVER),
    Control(releases.ChangesAnswer(), _NEVER),
    Control(releases.KeepsNoise(), _NEVER),
    Control(releases.OrderOfRows(), "order_is_public"),
    Control(releases.BoastfulError(), "error_bound_holds"),
    Control(sessions.FixedNoise(), _SOURCE),
    Control(sessions.ChangesState(), "state_is_secret"),
)
