"""What counts as the epoch of a leader, and above what the next one begins."""

from sentinel.core.agents.epochs import AGAIN_S, LEASE, MAX_TOLD, NEAR, Epochs, Where, agent_of, later

N1, N2 = Where("nodes", "n1"), Where("nodes", "n2")


def test_a_later_leader_is_one_whose_epoch_is_above_and_can_have_been_counted_to() -> None:
    assert [later(epoch, 7) for epoch in (0, 6, 7, 8, 7 + NEAR, 8 + NEAR, 2**40)] == [
        *(False, False, False, True, True),
        *(False, False),
    ]


def test_the_highest_that_was_met_is_kept_with_where_it_stood() -> None:
    epochs = Epochs()
    assert epochs.met(41, N1)
    assert epochs.met(3, N2)
    assert (epochs.top, epochs.where) == (41, N1)


def test_what_no_leader_can_have_counted_to_is_not_believed() -> None:
    epochs = Epochs()
    epochs.met(5, Where(LEASE))
    for nonsense in (6 + NEAR, 999_999_999, 1_000_000_000, 2**31 - 1, 2**62):
        assert not epochs.met(nonsense, Where("quarantines", "n1-1"))
    assert epochs.top == 5


def test_where_what_is_not_believed_stands_is_known_until_it_is_gone() -> None:
    epochs = Epochs()
    for where in (N1, N2):
        assert not epochs.met(2 * NEAR, where)
    assert epochs.unbelieved == {N1: 2 * NEAR, N2: 2 * NEAR}
    assert epochs.met(3, N1)
    epochs.forget(N2)
    assert epochs.unbelieved == {}


def test_however_often_the_most_is_told_a_lease_can_count_on() -> None:
    epochs = Epochs()
    while epochs.met(epochs.top + NEAR, agent_of("n1")):
        assert epochs.top <= MAX_TOLD < 2**31 - NEAR


def test_each_node_may_tell_once_an_hour() -> None:
    epochs = Epochs()
    assert epochs.may_tell("n1", 10.0)
    assert epochs.may_tell("n2", 20.0)
    assert not epochs.may_tell("n1", 9.0 + AGAIN_S)
    assert epochs.may_tell("n1", 10.0 + AGAIN_S)
    assert not epochs.may_tell("n2", 11.0 + AGAIN_S)
    assert epochs.may_tell("n2", 20.0 + AGAIN_S)
