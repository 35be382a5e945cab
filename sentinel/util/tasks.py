"""Tasks in the background, one for each job at most."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class JobTasks:
    """`what`: of which kind, in the tasks' names."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def busy(self, job: str) -> bool:
        return job in self._tasks

    def start(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        """Instead of the one that is under way."""
        self.forget(job)
        task = asyncio.create_task(work, name=f"{job}:{self._what}")
        self._tasks[job] = task
        task.add_done_callback(lambda done: self._done(job, done))

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(job) is task:
            del self._tasks[job]

    def forget(self, job: str) -> None:
        task = self._tasks.pop(job, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
