"""Saves that can wait, of thousands of jobs, spread over time. Pure."""


class SavePace:
    """At most `per_s` a second of all jobs together, and a second's worth at once, however many are due."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = 0.0

    def due(self, jobs: int, last_s: float, now_s: float) -> bool:
        """May one of so many jobs, saved last at `last_s`, be saved now? Then it is. Monotonic seconds."""
        if now_s - last_s < jobs / self._per_s or now_s < self._next_s:
            return False
        # Jobs that came under policies together would stay in step for ever, else.
        self._next_s = max(self._next_s, now_s - 1.0) + 1.0 / self._per_s
        return True
