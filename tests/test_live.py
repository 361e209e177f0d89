"""The page of runs at work: what it shows, to whom, and that it changes nothing."""

import http.client
import re
import socket
import threading
from contextlib import contextmanager

import pytest
from conftest import refused, wait_for
from folders import curve, write_run
from test_status import at_work, said, timed

from rl_plasticity.live import Server
from rl_plasticity.status import PORT, parse

RL = ["total_env_steps=3000"]


@contextmanager
def serving(*places, every=5.0):
    with Server([str(place) for place in places], 0, every) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            with server.comparing:  # what is being drawn has matplotlib's settings changed
                pass


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


@pytest.fixture
def runs(tmp_path):
    for reg, best in (("none", 3.0), ("swr", 50.0)):
        rows = {str(seed): curve([1.0 + seed, best + seed]) for seed in range(5)}
        write_run(tmp_path / "runs" / reg, [f"reg={reg}", *RL], rows)
    return tmp_path / "runs"


def test_the_page_has_each_run_with_how_far_it_is_the_one_at_work_first(runs):
    said(runs / "none", "finished")
    timed(runs / "swr", env_steps_done=2000.0, env_steps_left=1000.0, updates_per_second=118.0, seconds_left=600.0)
    with at_work(runs / "swr"), serving(runs) as server:
        status, text, _ = ask(server)
    assert status == 200
    assert "2 runs: 1 running, 1 finished, 0 failed" in text
    assert "<title>1 running, 1 finished, 0 failed</title>" in text
    assert f"in {runs}, at " in text
    assert text.index("<td>swr</td>") < text.index("<td>none</td>")
    assert '<progress max="3000" value="2000"></progress> 66% of 3000' in text
    assert "118/s" in text
    assert "(10 min)" in text


def test_the_comparison_is_of_what_is_there_and_made_anew_when_a_run_writes_and_only_then(runs, monkeypatch):
    with serving(runs) as server:
        monkeypatch.setattr("rl_plasticity.live.SHARE", -1)
        made = []
        compare = server._compare
        monkeypatch.setattr(server, "_compare", lambda: made.append(1) or compare())
        _, text, _ = ask(server, "/comparison")
        assert "47.0 above none" in text
        assert text.count("<svg") == 2
        assert 'data-key="1"' in text
        assert '{"label": "swr"' in text
        ask(server, "/comparison")
        assert len(made) == 1
        with (runs / "swr" / "metrics.csv").open("a") as file:
            file.writelines(f"{seed},2500,eval/return,90.0\n" for seed in range(5))
        with (runs / "none" / "metrics.csv").open("a") as file:
            file.writelines(f"{seed},2500,eval/return,10.0\n" for seed in range(5))
        _, text, _ = ask(server, "/comparison")
        assert "80.0 above none" in text
        assert len(made) == 2


def test_what_the_comparison_leaves_out_is_said_and_it_comes_back_when_it_is_mended(runs, monkeypatch):
    monkeypatch.setattr("rl_plasticity.live.SHARE", -1)
    config = (runs / "swr" / "config.yaml").read_text()
    with serving(runs) as server:
        (runs / "swr" / "config.yaml").write_text("a: [")
        text = ask(server, "/comparison")[1]
        assert "1 group of 5 seeds" in text
        assert "left out: " in text
        (runs / "swr" / "config.yaml").write_text(config)
        assert "2 groups of 5 seeds" in ask(server, "/comparison")[1]


def test_what_goes_wrong_while_the_page_is_made_is_an_error_of_the_server(runs, monkeypatch, capsys):
    with serving(runs) as server:
        monkeypatch.setattr(server, "_status", lambda: 1 / 0)
        assert ask(server)[0] == 500
        said = []  # by a thread of the server's, when it has answered
        wait_for(lambda: said.append(capsys.readouterr().err) or "ZeroDivisionError" in "".join(said))


def test_comparing_takes_a_tenth_of_the_time_at_most(runs, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rl_plasticity.live.monotonic", lambda: now[0])

    def compared():
        now[0] += 3  # it took three seconds
        return f"<p>{now[0]}</p>"

    with serving(runs) as server:
        monkeypatch.setattr(server, "_compare", compared)
        seen = []
        for wait in (0, 29, 2):
            now[0] += wait
            with (runs / "swr" / "metrics.csv").open("a") as file:
                file.write("0,2600,eval/return,1.0\n")
            seen.append(server._comparison())
    assert seen == ["<p>103.0</p>", "<p>103.0</p>", "<p>137.0</p>"]


def test_runs_that_cannot_be_compared_are_listed_and_the_page_says_why(runs):
    write_run(runs / "other", ["total_env_steps=9000"], {"0": curve([1.0])})
    with serving(runs) as server:
        assert "<td>other</td>" in ask(server)[1]
        text = ask(server, "/comparison")[1]
    assert "No comparison: " in text
    assert "mix=total_env_steps" in text


def test_names_are_escaped(tmp_path):
    for place in (tmp_path / "<b>", tmp_path / "<b>" / "<i>"):  # the runs in one place, and in several
        folder = write_run(place / "<script>alert(1)", RL, {"0": curve([1.0])})
        said(folder, "failed: <img src=x onerror=alert(2)>")
        with serving(tmp_path) as server:
            text = ask(server)[1] + ask(server, "/comparison")[1]
        for part in ("&lt;script&gt;alert(1)", "&lt;b&gt;", "&lt;img src=x"):
            assert part in text, part
        assert not re.search(r"<(script>alert|img|b|i)\b", text)


def test_only_this_machine_is_listened_to_by_its_own_name_at_two_addresses_for_reading(runs):
    with serving(runs) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert server.address == f"http://127.0.0.1:{server.server_port}/"
        for host in (f"localhost:{server.server_port}", "LocalHost", "127.0.0.1:7000"):  # at port 80; through ssh
            assert ask(server, Host=host)[0] == 200, host
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1.evil.example", ""):
            status, text, answer = ask(server, Host=host)
            assert (status, server.address in text) == (403, True), host
            assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert ask(server, method="HEAD")[:2] == (200, "")
        for path in ("/config.yaml", "/../swr/config.yaml", "/swr/metrics.csv", "/?x"):
            assert ask(server, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask(server, method=method)[0] == 501, method
        _, text, answer = ask(server)
    assert answer.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert answer.getheader("Cache-Control") == "no-store"
    assert "default-src 'none'" in text
    assert "connect-src 'self'" in text


def test_looking_changes_no_file(runs):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [runs, *runs.rglob("*")]}
    with serving(runs) as server:
        for path in ("/", "/comparison"):
            assert ask(server, path)[0] == 200
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [runs, *runs.rglob("*")]} == before


def test_a_folder_that_goes_while_it_is_shown_is_said_and_comes_back(runs):
    with serving(runs) as server:
        runs.rename(runs.with_name("elsewhere"))
        assert f"there is no folder {runs}" in ask(server)[1]
        assert f"there is no folder {runs}" in ask(server, "/comparison")[1]
        runs.with_name("elsewhere").rename(runs)
        assert "<td>swr</td>" in ask(server)[1]


def test_a_place_without_runs_and_a_port_that_is_taken_are_one_line(runs, tmp_path):
    refused(lambda: Server([str(tmp_path / "nowhere")], 0, 5.0), "nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(lambda: Server([str(runs)], port, 5.0), f"port {port}", "serve=PORT")


def test_the_options_are_a_flag_or_a_port_and_others_are_refused_with_the_nearest():
    assert parse(["a", "--serve"]) == (["a"], None, PORT)
    assert parse(["a", "serve=0", "every=2"]) == (["a"], 2.0, 0)
    assert parse(["a", "--serve", "serve=70"]) == (["a"], None, 70)
    for wrong in ("serve=65536", "serve=-1", "serve=http", "serve=" + 5000 * "9"):
        refused(lambda wrong=wrong: parse(["a", wrong]), "serve", "0 to 65535")
    refused(lambda: parse(["a", "--server"]), "'--server'", "'--serve'")
