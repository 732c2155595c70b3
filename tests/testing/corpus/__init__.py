"""Mechanisms that break their privacy guarantee on purpose, and the check that finds each.

A suite that lets one of these pass is itself broken.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.testing.examples import EXAMPLE_TABLE, AnyMechanism, Example
from tests.testing.corpus import (
    broken_compositions,
    broken_deltas,
    broken_moves,
    broken_ranges,
    broken_releases,
    broken_sensitivities,
    broken_sessions,
    broken_structures,
    broken_unions,
)


@dataclass(frozen=True)
class Control:
    """A broken mechanism, and the check of `dpflow.testing.conformance` that finds it on one of
    these examples, or on the standard ones.
    """

    mechanism: AnyMechanism
    caught_by: str
    examples: tuple[Example, ...] | None = None


_EXACT, _AUDIT = "guarantee_holds_exactly", "guarantee_survives_audit"
_GENERATED, _STRUCTURE = "guarantee_holds_on_generated_tables", "structure_is_public"
_LONE, _MOVES, _ORDER = "delta_covers_lone_units", "statistics_move_as_stated", "order_is_public"
_NEVER, _SOURCE, _LAW = "draw_never_raises", "randomness_is_the_source", "randomness_has_a_law"

#: So large an epsilon that four draws have few values between them, and are followed within the time.
_FEW_VALUES = Example(EXAMPLE_TABLE, {"epsilon": "60"})

CONTROLS = (
    Control(broken_releases.TooLittleNoise(), _EXACT),
    Control(broken_releases.RemovalOnly(), _EXACT),
    Control(broken_releases.OneRowSensitivity(), _EXACT),
    Control(broken_releases.LowThreshold(), _EXACT),
    Control(broken_releases.SmallDelta(), _EXACT),
    Control(broken_releases.ShowsAllKeys(), _EXACT),
    Control(broken_releases.ShortRadius(), _EXACT),
    Control(broken_releases.WrongDivergence(), _EXACT),
    Control(broken_releases.ExpOfVotes(), _EXACT),
    Control(broken_releases.FloatSum(), _EXACT),
    Control(broken_releases.OneSeedForAll(), _EXACT),
    Control(broken_releases.AveragesRetries(), _EXACT, (_FEW_VALUES,)),
    Control(broken_releases.RedrawsBadOnes(), _EXACT),
    Control(broken_compositions.StopsByLosses(), _EXACT),
    Control(broken_compositions.LiteralDistance(), _EXACT),
    Control(broken_compositions.SeedSharedOverForks(), _EXACT),
    Control(broken_releases.RowsInDocument(), _EXACT),
    Control(broken_releases.RowsInSynthetic(), _EXACT),
    Control(broken_releases.RowsInError(), _EXACT),
    Control(broken_releases.ExactFirst(), _EXACT),
    Control(broken_releases.NumberOfRows(), _EXACT),
    Control(broken_releases.OneRowSensitivity(), _AUDIT),
    Control(broken_releases.LowThreshold(), _AUDIT),
    Control(broken_releases.FloatLaplace(), _AUDIT),
    Control(broken_releases.SometimesExact(), _AUDIT),
    Control(broken_releases.SeldomExact(), _GENERATED),
    Control(broken_releases.HalfTheCost(), _AUDIT),
    Control(broken_releases.RowsInDocument(), _AUDIT),
    Control(broken_releases.RowsInSynthetic(), _AUDIT),
    Control(broken_releases.RowsInError(), _AUDIT),
    Control(broken_releases.ExactFirst(), _AUDIT),
    Control(broken_releases.NumberOfRows(), _AUDIT),
    Control(broken_releases.FloatLaplace(), _LAW),
    Control(broken_releases.FloatGaussian(), _LAW),
    Control(broken_releases.PublicSeed(), _SOURCE),
    Control(broken_releases.NumpyNoise(), _SOURCE),
    Control(broken_releases.ReadsClock(), _SOURCE),
    Control(broken_releases.CostFollowsRows(), _NEVER),
    Control(broken_releases.RaisesOnEmpty(), _NEVER),
    Control(broken_releases.Talkative(), _NEVER),
    Control(broken_releases.Warns(), _NEVER),
    Control(broken_releases.WritesFile(), _NEVER),
    Control(broken_releases.ChangesAnswer(), _NEVER),
    Control(broken_releases.KeepsNoise(), _NEVER),
    Control(broken_releases.OrderOfRows(), _ORDER),
    Control(broken_releases.BoastfulError(), "error_bound_holds"),
    Control(broken_sessions.FixedNoise(), _SOURCE),
    Control(broken_sessions.ChangesState(), "state_is_secret"),
    Control(broken_sessions.TellsValue(), _EXACT, (broken_sessions.ONE_FAILURE,)),
    Control(broken_sessions.NoiseForOneFailure(), _EXACT, (broken_sessions.TWO_FAILURES,)),
    Control(broken_sessions.NoValueNoise(), _EXACT, (broken_sessions.ONE_FAILURE,)),
    Control(broken_sessions.NeverCloses(), _EXACT, (broken_sessions.ONE_FAILURE,)),
    Control(broken_sessions.HalfTheNoise(), _EXACT, (broken_sessions.ONE_FAILURE,)),
    Control(broken_sessions.NeverCounts(), _EXACT, (broken_sessions.ONE_FAILURE,)),
    Control(broken_sensitivities.WidthForPeak(), _GENERATED),
    Control(broken_sensitivities.UpperForPeak(), _GENERATED),
    Control(broken_sensitivities.LowerForPeak(), _GENERATED),
    Control(broken_sensitivities.PeakForReplace(), _GENERATED),
    Control(broken_sensitivities.StepsForgotten(), _GENERATED),
    Control(broken_sensitivities.TableGroupsForNoise(), _GENERATED),
    Control(broken_sensitivities.TableRowsForNoise(), _GENERATED),
    Control(broken_sensitivities.OneGroup(), _GENERATED),
    Control(broken_sensitivities.OneRow(), _GENERATED),
    Control(broken_sensitivities.AddRemoveRate(), _GENERATED),
    Control(broken_sensitivities.DoubledScores(), _GENERATED),
    Control(broken_sensitivities.OneRowScores(), _GENERATED),
    Control(broken_sensitivities.MiddleAtAddRemoveRate(), _GENERATED),
    Control(broken_sensitivities.HalfTheMove(), _GENERATED),
    Control(broken_sensitivities.MiddleOfOneRow(), _GENERATED),
    Control(broken_structures.SuppressesBelow10(), _STRUCTURE),
    Control(broken_structures.SuppressesBelow11(), _STRUCTURE),
    Control(broken_structures.SuppressesBelow20Units(), _STRUCTURE),
    Control(broken_structures.SuppressesBelow75(), _STRUCTURE),
    Control(broken_structures.ExactFrom10(), _STRUCTURE),
    Control(broken_structures.ExactFrom50(), _STRUCTURE),
    Control(broken_structures.NoiseBelow1000(), _STRUCTURE),
    Control(broken_structures.LessNoiseFrom300(), _STRUCTURE),
    Control(broken_structures.WidthByMagnitude(), _STRUCTURE),
    Control(broken_structures.RemarkOnFewRows(), _STRUCTURE),
    Control(broken_structures.BrokenLiteral(), _GENERATED),
    Control(broken_structures.BrokenFlag(), _GENERATED),
    Control(broken_structures.BrokenEnum(), _GENERATED),
    Control(broken_structures.ScaleCap(), _GENERATED),
    Control(broken_structures.ScaleCapOf500(), _GENERATED),
    Control(broken_structures.ScaleFloorInEpsilon(), _GENERATED),
    Control(broken_structures.NoNoiseAtLargeEpsilon(), _GENERATED),
    Control(broken_structures.DeltaForOneKey(), _LONE),
    Control(broken_moves.RowsForSum(), _MOVES),
    Control(broken_moves.UnitsForRows(), _MOVES),
    Control(broken_moves.FactorForgotten(), _MOVES),
    Control(broken_moves.TotalForKeys(), _MOVES),
    Control(broken_moves.CentredElsewhere(), _MOVES),
    Control(broken_moves.RowsAndUnitsAtOnce(), _MOVES),
    Control(broken_moves.Differences(), _MOVES),
    Control(broken_moves.RunningTotals(), _MOVES),
    Control(broken_moves.LengthForSquares(), _MOVES),
    Control(broken_moves.DeclaredTooSmall(), _MOVES),
    Control(broken_moves.OneSide(), _MOVES),
    Control(broken_moves.SquaredRows(), _MOVES),
    Control(broken_moves.DistanceFromMean(), _MOVES),
    Control(broken_moves.SortedByRows(), _STRUCTURE),
    Control(broken_moves.LargestFirst(), _GENERATED),
    Control(broken_moves.TiesByRows(), _GENERATED),
    Control(broken_moves.SeldomLessNoise(), _GENERATED),
    Control(broken_moves.SeldomOneKeyExact(), _GENERATED),
    Control(broken_moves.SeldomMarked(), _GENERATED),
    Control(broken_moves.SortedByRows(), _ORDER),
    Control(broken_moves.LargestFirst(), _ORDER),
    Control(broken_deltas.DeltaTenfold(), _LONE),
    Control(broken_deltas.ThresholdOfTheNoise(), _LONE),
    Control(broken_deltas.ShowsHalfOfTheLone(), _LONE),
    Control(broken_deltas.TwiceTheEpsilon(), _GENERATED),
    Control(broken_deltas.RuleOfAddRemove(), _GENERATED),
    Control(broken_unions.HalfTheUnionNoise(), _GENERATED),
    Control(broken_unions.RhoInEveryRound(), _GENERATED),
    Control(broken_unions.OneSideOfUnion(), _GENERATED),
    Control(broken_unions.ThresholdOfOneKey(), _GENERATED),
    Control(broken_unions.DeltaInEveryRound(), _LONE),
    Control(broken_unions.WeightsOfOne(), _MOVES),
    Control(broken_ranges.HalfFromFiveKeys(), _GENERATED),
    Control(broken_ranges.HalfFromManyKeys(), _GENERATED),
    Control(broken_ranges.HalfAtSomeKeys(), _GENERATED),
    Control(broken_ranges.TwoGroups(), _GENERATED),
    Control(broken_ranges.SevenGroups(), _GENERATED),
    Control(broken_ranges.TwoRows(), _GENERATED),
    Control(broken_ranges.ElevenRows(), _GENERATED),
    Control(broken_ranges.PeakOfOneSign(), _GENERATED),
    Control(broken_ranges.FloatPeak(), _GENERATED),
    Control(broken_ranges.PeakCapped(), _GENERATED),
    Control(broken_ranges.PeakCappedHigh(), _GENERATED),
    Control(broken_ranges.QuarterWhereMissingIsZero(), _GENERATED),
    Control(broken_ranges.HalfWhereMissingIsLow(), _GENERATED),
    Control(broken_ranges.WholeEpsilons(), _GENERATED),
    Control(broken_ranges.WrongWeight(), _GENERATED),
    Control(broken_ranges.HalfInBlocks(), _GENERATED),
    Control(broken_ranges.HalfOnAHoldout(), _GENERATED),
    Control(broken_ranges.NarrowDoor(), _GENERATED),
    Control(broken_ranges.NarrowDoorForGroups(), _GENERATED),
    Control(broken_ranges.CheaperDoor(), _GENERATED),
    Control(broken_ranges.ExactAt300(), _STRUCTURE),
    Control(broken_ranges.ExactFrom10000(), _STRUCTURE),
    Control(broken_ranges.ExactFromAComputedNumber(), _STRUCTURE),
    Control(broken_ranges.ExactAtALongText(), _STRUCTURE),
    Control(broken_ranges.CappedSquares(), _MOVES),
)

#: Sound mechanisms beside the broken ones: a suite that refuses one of these is broken, too.
TWINS = (
    broken_sensitivities.SoundSum(),
    broken_sensitivities.SoundChoice(),
    broken_sensitivities.SoundMiddle(),
    broken_structures.SoundSuppression(),
    broken_structures.SoundSettings(),
    broken_moves.SoundKeyed(),
    broken_moves.SoundFactor(),
    broken_moves.SoundDifferences(),
    broken_moves.SoundRunningTotals(),
    broken_moves.SoundGaussian(),
    broken_moves.SoundPick(),
    broken_moves.SoundDistance(),
    broken_moves.SortedByNoise(),
    broken_moves.SeldomMoreNoise(),
    broken_deltas.SoundRule(),
    broken_unions.SoundUnion(),
    broken_ranges.MoreFromFiveKeys(),
    broken_ranges.SoundWeight(),
    broken_ranges.SoundTenfold(),
    broken_ranges.WiderDoor(),
)

#: Mechanisms that are wrong at values which no audit guesses, and parameters at which they are: no certificate may cover
#: such a plan.
HIDDEN = (
    (broken_ranges.HalfInAWindow(), {"epsilon": "0.81"}),
    (broken_ranges.WrongHiddenWeight(), {"weight": 61}),
    (broken_ranges.WrongLabel(), {"label": "cheap"}),
    (broken_ranges.WrongLabels(), {"label": "yxone"}),
    (broken_ranges.HalfForBoth(), {"by": "kind"}),
)
