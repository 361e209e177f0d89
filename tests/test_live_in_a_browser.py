"""The live page in a real browser, while a real sweep runs."""

import subprocess
import sys

from test_live import serving

SWEEP = ["task=random_labels", "data.train_size=200", "net.widths=[16]", "num_tasks=4", "epochs_per_task=150"]
SWEEP += ["batch_size=50", "seeds=2", "device=cpu", "compile=false", "threads=1", "measure_every_updates=0"]


def test_a_sweep_is_watched_from_its_first_run_to_its_comparison_without_a_reload(opened, tmp_path):
    program = [sys.executable, "-m", "rl_plasticity.supervised", "-m", "reg=none,swr", *SWEEP]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
        try:
            while not [*tmp_path.glob("results/*/metrics.csv")]:
                assert sweep.poll() is None
            with serving(tmp_path / "results", every=0.2) as server:
                page = opened(server.address)
                page.evaluate("() => { window.here = true; }")
                page.wait_for_selector(".running")
                share = "() => document.querySelector('progress').position"
                first = page.evaluate(share)
                page.wait_for_function(f"first => ({share})() > first", arg=first)
                page.wait_for_function("() => document.querySelectorAll('span.finished').length == 2")
                page.wait_for_function("() => document.querySelectorAll('tr[data-group]').length == 2")
                page.wait_for_function("() => document.title == '0 running, 2 finished, 0 failed'")
                page.get_by_role("button", name="final", exact=True).click()
                for off in (1, 0, 1):  # after the status was put in anew, too
                    page.locator('svg [data-key="1"]').last.click()
                    assert page.locator("tr.off").count() == off
                    page.evaluate("() => { document.querySelector('#status').marked = true; }")
                    page.wait_for_function("() => !document.querySelector('#status').marked")
                # The comparison is put in anew as well.
                page.evaluate("() => { document.querySelector('#comparison').marked = true; last.clear(); }")
                page.wait_for_function("() => !document.querySelector('#comparison').marked")
                assert page.locator("tr.off").count() == page.locator('th[aria-sort="descending"]').count() == 1
                assert page.evaluate("() => window.here") is True
        finally:
            sweep.terminate()
    assert sweep.returncode == 0
    page.wait_for_selector("#lost:not([hidden])")  # the server has ended
