"""What an agent says of processes that do not end decides whether their pod may be removed by force."""

import pytest

from sentinel.core.reports import Answer

STUCK = ("pid 42 (D in nvidia_close)",)


@pytest.mark.parametrize(
    ("answer", "may_run"),
    [
        (Answer(order="a", able=0), False),
        (Answer(order="a", texts=STUCK, able=0), False),
        (Answer(order="a", texts=STUCK, able=1), True),
        (Answer(order="a", texts=STUCK), True),  # of an older agent, which does not tell
        (Answer(order="a"), False),
    ],
)
def test_what_may_still_run_is_never_guessed_to_be_over(answer: Answer, may_run: bool) -> None:
    assert answer.may_run is may_run
