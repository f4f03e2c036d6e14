"""Progress of a run in the terminal: a monitor with remaining time."""

from __future__ import annotations

import signal
import threading
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ..runs.monitors import Snapshot

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

__all__ = ["TIMED", "ProgressMonitor", "progress_bars", "terminated_like_interrupted"]

#: Seconds between updates of a bar.
UPDATE_EVERY = 0.5

#: Label of a bar over a time span.
TIMED = "{task.description:<16} t = {task.fields[time]:<7.4g}"


def progress_bars(console: Console, label: str) -> Progress:
    """Bars with a label, elapsed and remaining time, drawn about once a second."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.text import Text

    class Remaining(TimeRemainingColumn):
        """Remaining time, also of tasks that advance less than once in the estimate's period."""

        def render(self, task: Task) -> Text:
            return Text(remaining(task), style="progress.remaining")

    return Progress(
        BarColumn(),
        TaskProgressColumn(),
        TextColumn(label),
        Elapsed(),
        TextColumn("elapsed,"),
        Remaining(),
        TextColumn("left", style="progress.remaining"),
        console=console,
        refresh_per_second=1,
        speed_estimate_period=60,
    )


def remaining(task: Task) -> str:
    """Remaining time: from the last minute's speed, or else from the mean since the start.

    A task that advances by few large parts has the field ``lumpy`` and is given the mean: two of its
    parts that end together say nothing of its speed.
    """
    seconds: float | None = None if task.fields.get("lumpy") else task.time_remaining
    begun = task.fields.get("begun", 0.0)
    done = task.completed - begun
    if seconds is None and task.total is not None and task.elapsed is not None and done > 0:
        seconds = task.elapsed * max(task.total - task.completed, 0.0) / done
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:d}:{minutes:02d}:{rest:02d}"


class ProgressMonitor:
    """One bar over the time span of a run."""

    def __init__(
        self, bars: Progress, title: str, span: tuple[float, float], reached: float
    ) -> None:
        self._bars, (self._start, self._end) = bars, span
        begun = reached - span[0]
        self._task = bars.add_task(title, total=span[1] - span[0], time=reached, begun=begun)
        bars.update(self._task, completed=reached - span[0])
        self._shown = clock.monotonic()

    def snapshot(self, snapshot: Snapshot) -> None:
        """States are not shown."""

    def progress(self, time: float) -> None:
        """Move the bar, unless it was moved a moment ago."""
        if time < self._end and clock.monotonic() - self._shown < UPDATE_EVERY:
            return
        self._shown = clock.monotonic()
        self._bars.update(self._task, completed=time - self._start, time=time)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Within it, a termination signal (a scheduler's, say) acts as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
