import signal
import subprocess

import pytest

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module", autouse=True)
def _ignored_as_by_nohup():
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    yield
    ignored = [signal.getsignal(number) == signal.SIG_IGN for number in STOPPING]
    for number, handler in before.items():
        signal.signal(number, handler)
    assert all(ignored)  # each test put back what it found


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_is_ignored_when_the_suite_starts_still_ends_what_a_test_starts(number):
    done = subprocess.run(["sh", "-c", f"kill -{number:d} $$; echo survived"], capture_output=True)
    assert (done.returncode, done.stdout) == (-number, b"")


def test_an_interrupt_that_is_ignored_when_the_suite_starts_still_reaches_a_test():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
