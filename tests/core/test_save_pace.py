from collections import Counter

from sentinel.core.job.save_pace import SavePace


def test_jobs_that_are_due_together_are_saved_one_after_the_other_and_none_is_left_out() -> None:
    jobs, per_s = 2000, 20.0
    pace, last_s = SavePace(per_s), dict.fromkeys(range(jobs), 0.0)
    in_second: Counter[int] = Counter()
    # Every job is looked at every 5 s, 400 of them in each second, as the rounds of a controller do.
    for look in range(1000, 1000 + 44):
        for name in range(jobs):
            now_s = look * 5 + name / 400
            if pace.due(jobs, last_s[name], now_s):
                last_s[name] = now_s
                in_second[int(now_s)] += 1
    assert max(in_second.values()) <= 2 * per_s
    assert min(last_s.values()) > 5100, "each was saved twice in 220 s"


def test_a_few_jobs_wait_for_nothing() -> None:
    pace = SavePace(20.0)
    assert all(pace.due(10, 0.0, 5000.0) for _ in range(10))
    assert not pace.due(10, 5000.0, 5000.1)
    assert pace.due(10, 5000.0, 5000.6)
