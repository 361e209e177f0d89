"""A page of running trainings, for a browser on this machine: ``python -m rl_plasticity.status results --serve``.

The server changes nothing. It answers at two addresses, and only to a browser that asks for this machine by name.
"""

import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic

from rl_plasticity.compare import compare
from rl_plasticity.comparison import report
from rl_plasticity.comparison.figures import colours, draw
from rl_plasticity.comparison.svg import picture
from rl_plasticity.errors import SettingsError, printable
from rl_plasticity.runs import state
from rl_plasticity.runs.folder import RunFolder, find

HOST = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",  # in addition to the policy in the page
}
SHARE = 10  # at most 1/10 of the time goes into comparing, since training may need the same cores


def serve(places: Sequence[str], port: int, every: float) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        SettingsError: a place has no run, or the port is taken.
    """
    with Server(places, port, every) as server:
        print(printable(f"{server.address} shows {', '.join(places)}; Ctrl-C ends it"), flush=True)
        server.serve_forever()


class Server(ThreadingHTTPServer):
    """The server of the page of the runs in some places.

    Args:
        places: as `status` and `compare` take them.
        port: 0 for any free port.
        every: seconds between two updates of the page.

    Raises:
        SettingsError: a place has no run, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, places: Sequence[str], port: int, every: float) -> None:
        find(places)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise SettingsError(f"port {port} cannot be had ({error.strerror}): choose another, serve=PORT") from error
        self.places, self.every = list(places), every
        self.address = f"http://{HOST}:{self.server_port}/"
        self.comparing, self.seen = Lock(), ""
        self.compared, self.not_before = "", 0.0

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the browser was closed meanwhile
            traceback.print_exc()

    def page_of(self, path: str) -> str | None:
        """The page at an address; None if there is none."""
        if path == "/":
            title, section = self._status()
            to_come = '<section id="comparison"><p class="muted">comparing …</p></section>'
            return self._page(title, [section, to_come])
        return self._page("comparison", [self._comparison()]) if path == "/comparison" else None

    def _page(self, title: str, sections: Sequence[str]) -> str:
        again = f"python -m rl_plasticity.status {shlex.join(self.places)} serve={self.server_port}"
        lost = (
            "No answer: the command that shows this page has ended, or says in its terminal what went wrong. What is "
            f"below is old. To start it again: <code>{escape(again)}</code>"
        )
        lost = f'<p id="lost" class="warnings" hidden>{lost}</p>'
        heading = f"<h1>{escape(', '.join(self.places))}</h1>"
        return report.page(title, [heading, lost, *sections], {"every": f"{self.every:g}"}, live=True)

    def _status(self) -> tuple[str, str]:
        """A title, and a table of the runs, with the running ones first."""
        now = time.time()
        try:
            folders = self._folders()
        except SettingsError as error:
            return "no runs", f'<section id="status"><p class="lead">{escape(str(error))}</p></section>'
        states = ("running", *(s for s in reversed(state.STATES) if s != "running"))
        found = sorted(map(state.read, folders), key=lambda s: (states.index(s.state), s.folder.path))
        parents = {s.folder.path.parent for s in found}
        one_place = len(parents) == 1
        where = f"in {parents.pop()}, " if one_place else ""
        cells, header = [_cells(s, now, one_place) for s in found], ("run", "state", "done", "updates", "ends", "last")
        filled = [i for i in range(len(header)) if any(row[i] for row in cells)]
        rows = [f"<tr>{''.join(f'<td>{row[i]}</td>' for i in filled)}</tr>" for row in cells]
        table = report.rows_of([header[i] for i in filled], rows)
        counted, clock = state.counted(found), time.strftime("%H:%M:%S", time.localtime(now))
        lead = f'<p class="lead">{escape(counted)}</p><p class="muted">{escape(where)}at {clock}</p>'
        return counted.partition(": ")[2], f'<section id="status">{lead}{table}</section>'

    def _comparison(self) -> str:
        """The current statistics and curves, made again if a run has written something."""
        with self.comparing:
            start = monotonic()
            seen = self._written()
            if seen != self.seen and start >= self.not_before:
                self.compared, self.seen = self._compare(), seen
                self.not_before = monotonic() + SHARE * (monotonic() - start)
            return self.compared

    def _compare(self) -> str:
        try:
            comparison = compare(*self.places)
        except SettingsError as error:
            return f'<section id="comparison"><p class="muted">No comparison: {escape(str(error))}</p></section>'
        clock = time.strftime("%H:%M:%S")
        parts = [f"<h2>The comparison as it stood at {clock}</h2>"]
        parts.append(f'<p class="lead">{escape(comparison.verdict())}</p>')
        parts += [report.warned(comparison.warnings), report.table(comparison), report.HINT]
        for drawn in draw(comparison, whole=False):
            parts.append(report.figure(picture(comparison, drawn), f"<h3>{escape(drawn.title)}</h3>"))
        parts.append(report.groups_of(comparison, colours(comparison)))
        return f'<section id="comparison">{"".join(parts)}</section>'

    def _folders(self) -> list[RunFolder]:
        named, below = find(self.places)
        return [*named, *below]

    def _written(self) -> str:
        """A text that changes when a run writes a number, or when its settings change."""
        try:
            folders = self._folders()
        except SettingsError as error:
            return str(error)
        states = []
        for file in (file for folder in folders for file in (folder.config, folder.metrics_csv)):
            with suppress(OSError):  # it was deleted meanwhile
                found = file.stat()
                states.append((str(file), found.st_size, found.st_mtime_ns))
        return repr(states)


def _cells(s: state.Status, now: float, one_place: bool) -> tuple[str, ...]:
    """A row of the table of runs, as HTML."""
    word, *others = map(escape, state.cells_of(s, now))
    name = escape(s.folder.path.name if one_place else str(s.folder))
    note = f'<div class="muted">{escape(s.note)}</div>' if s.note else ""
    if s.total:
        others[0] = f'<progress max="{s.total}" value="{min(s.done, s.total)}"></progress> {others[0]}'
    return (name + note, f'<span class="{word}">{word}</span>', *others)


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "rl_plasticity", ""

    def do_GET(self) -> None:
        """Answer ``/`` and ``/comparison``; a HEAD request gets the headers alone."""
        name = self.headers.get("Host", "").lower().partition(":")[0]
        if name not in (HOST, "localhost"):  # the page of a stranger whose name was made to lead to this machine
            self.send_error(HTTPStatus.FORBIDDEN, f"Ask for {self.server.address}")
            return
        try:
            page = self.server.page_of(self.path)
        except Exception:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = page.encode(errors="backslashreplace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def end_headers(self) -> None:
        """Add the headers that all answers have, errors included."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal belongs to the user."""
