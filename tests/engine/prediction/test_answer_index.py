"""What a session has answered: every name finds its own answer, however batches came, and nothing
new is missed.
"""

from __future__ import annotations

import secrets

import pytest

from dpflow.engine.prediction.answer_index import AnswerIndex, pack_answers, unpack_answers


def test_names_find_their_answers_in_any_order_of_batches():
    """Batches of every size, with repeats inside and among them, against a dictionary."""
    answered, known = AnswerIndex(), {}
    for size in (3, 1, 40, 0, 7, 400, 2, 100):
        fresh = [secrets.token_bytes(16) for _ in range(size)]
        names = fresh + list(known)[:: max(1, len(known) // 5)] + fresh[:2]
        new = answered.find_new(names)
        expected = {name for name in names if name not in known}
        assert (set(names) if new is None else set(new)) == expected
        assert new is not None or len(names) == len(expected)
        assert new is None or all(names[place] == name for name, place in new.items())
        fresh_answers = list(range(len(known), len(known) + len(fresh)))
        answered.add_answers(fresh, fresh_answers)
        known |= dict(zip(fresh, fresh_answers))
        assert answered.look_up(names) == [known[name] for name in names]


def test_a_batch_that_is_all_new_is_seen_at_once():
    """None says so; one known name, or one that comes twice, is noticed."""
    answered = AnswerIndex()
    first, second = ([secrets.token_bytes(16) for _ in range(1000)] for _ in range(2))
    assert answered.find_new(first) is None
    answered.add_answers(first, [0] * 1000)
    assert answered.find_new(second) is None
    assert answered.find_new([*second, first[500]]) == {
        name: place for place, name in enumerate(second)
    }
    assert answered.find_new([*second, second[3]]) == {
        name: place if place != 3 else 1000 for place, name in enumerate(second)
    }


def test_names_that_share_their_first_half_are_two_names():
    """The sorted halves only say that nothing can be there; names decide."""
    answered, half = AnswerIndex(), secrets.token_bytes(8)
    one, other = half + b"1" * 8, half + b"2" * 8
    answered.add_answers([one], ["a"])
    assert answered.find_new([other]) == {other: 0} and answered.find_new([one]) == {}
    answered.add_answers([other], ["b"])
    assert answered.look_up([other, one]) == ["b", "a"]


@pytest.mark.parametrize(
    "answers",
    [
        [],
        ["no", "yes", "no"],
        [1, 0, 1],
        [True, False],
        [True, 1, 0, False, 1.0],
        [None, None],
        ["a", None],
        [0.5, -0.0, 1e-300],
        list(range(257)),
        list(range(-128, 128)),
        ['"', "\\", "\u2028"],
    ],
)
def test_answers_are_read_as_they_were_packed(answers):
    """Values and their types."""
    found = unpack_answers(pack_answers(answers))
    assert found == answers and list(map(repr, found)) == list(map(repr, answers))


@pytest.mark.parametrize("answers", [[float("nan")], [float("inf"), 1.0], [object()], [{1, 2}]])
def test_what_json_does_not_hold_is_not_packed(answers):
    """A mechanism's slip is an error here, and there a failure that is settled as none."""
    with pytest.raises((TypeError, ValueError)):
        pack_answers(answers)


@pytest.mark.parametrize(
    "text", ["", "3", "{}", '{"labels": ["a"], "places": "AQ=="}', '{"labels": [], "places": "?"}']
)
def test_a_damaged_text_is_an_error(text):
    """The session turns it into its own, see tests/engine/prediction/test_prediction_session.py."""
    with pytest.raises((LookupError, TypeError, ValueError)):
        unpack_answers(text)
