"""Labels, one key each: the finished run whose label is worth most, and what the person said of it, written with it."""

from __future__ import annotations

import os
from functools import partial

import anyio.to_thread
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from grampus_uq.errors import DataError
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.visits import Section, Visit, for_role
from grampus_uq.recording.label_queue import KEYS, label_by_key, label_queue, shown_rows
from grampus_uq.recording.runs import RunSummary, find_run


class _Labels:
    """The queue of each person, read anew once it is done with."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder
        self._queues: dict[tuple[str, bool], list[RunSummary]] = {}

    async def _queue(self, name: str, second: bool) -> list[RunSummary]:
        queue = self._queues.setdefault((name, second), [])
        if not queue:
            ask = partial(label_queue, self._folder, by=name, second=second, on_refused=lambda error: None)
            queue += await anyio.to_thread.run_sync(ask)
        return queue

    async def page(self, visit: Visit) -> Response:
        """The next run, without what others said of it."""
        second = "second" in visit.request.query_params
        queue = await self._queue(visit.person.name, second)
        if not queue:
            return visit.page("label.html", run=None, second=second)
        run = await anyio.to_thread.run_sync(find_run, self._folder, queue[0].session_id)
        return visit.page("label.html", run=queue[0], rows=shown_rows(run), left=len(queue), second=second)

    async def label(self, visit: Visit) -> Response:
        """Write one label, or pass the run on to the end of the queue."""
        said = await visit.form()
        second, key, name = said.get("second") == "yes", said.get("key", ""), visit.person.name
        queue = await self._queue(name, second)
        run = next((one for one in queue if one.session_id == said.get("session")), None)
        if run is None or key not in (*KEYS, "n"):
            raise DataError("This run is no longer yours to label. Continue with the next one.")
        step = said.get("step", "").strip()[:200] or None
        if key == "e" and step is None:
            raise DataError("An error needs the step where it was made.")
        queue.remove(run)
        if key == "n":
            queue.append(run)
        elif not (key == "u" and second):  # unknown would take the first label back
            write = partial(label_by_key, self._folder, run.session_id, key, by=name, step=step if key == "e" else None)
            try:
                await anyio.to_thread.run_sync(write)
            except DataError:
                queue.insert(0, run)
                raise
        return RedirectResponse("/labels?second=yes" if second else "/labels", 303)


def labels_section(folder: str | os.PathLike[str]) -> Section:
    """The section that labels the finished runs of a folder of recordings."""
    labels = _Labels(folder)
    page, label = for_role(Role.LABEL)(labels.page), for_role(Role.LABEL)(labels.label)
    routes = (Route("/labels", page), Route("/labels", label, methods=["POST"]))
    return Section(path="/labels", label="Labels", role=Role.LABEL, routes=routes)
