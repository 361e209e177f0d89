"""What `diagnose` says about networks whose state is known, because they were trained long on their next task.

    python scripts/diagnose_known.py                            # make what is missing, then print the table
    python scripts/diagnose_known.py --only dropout --verdicts  # the verdicts on some cases
    python scripts/diagnose_known.py --rule later --set held_out
    python scripts/diagnose_known.py --rule after --show batches  # the table of what is there

papers/known.txt has the cases. In docs/results/diagnose, known.csv has the truth: copies of the network and
fresh ones learn the next task for 2000 updates, at the best of four learning rates, in three orders. A network that
removes at least 0.95 of the loss that fresh ones remove is healthy, at most 0.6 is lost. With an optimizer,
``as_trained`` is that share with its state and rate. verdicts.csv has the verdicts, from the next task's batches and
from drawn targets, by the name of the rule. A row that is there is not made again.
"""

import argparse
import math
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rl_plasticity import diagnose

sys.path.append(f"{Path(__file__).parents[1]}")
from papers.known import BATCH, TRUTH, Case, Jobs, cases, table, truth

VERDICTS = ["case", "seed", "rule", "call", "verdict", "score", "low", "high", "seconds", "causes"]
CALLS = ("batches", "drawn")
SAID = ("plastic", "losing", "lost", "something else", "not detectable")


def verdict(case: Case, call: str) -> dict[str, Any]:
    """A row of verdicts.csv."""
    net, make, task, optimizer = case.build()
    given: dict[str, Any] = {"make": make, "optimizer": optimizer, "remedies": False}
    if call == "batches":
        batches = list(zip(task.x.split(BATCH), task.y.split(BATCH), strict=True))
        given |= {"batches": batches, "loss": task.loss}
    begin = time.process_time()
    report = diagnose(net, None if call == "batches" else task.x, **given)
    row = dict(zip(("score", "low", "high"), map("{:.3f}".format, report.learned or [math.nan] * 3), strict=True))
    causes = "; ".join(cause.partition(":")[0] for cause in report.causes)
    return row | {"verdict": report.verdict, "seconds": f"{time.process_time() - begin:.1f}", "causes": causes}


def show(known: dict[str, dict[str, str]], rows: list[dict[str, str]]) -> None:
    """Print for each rule and call how often each verdict was given, by what is true, and the AUROC."""
    for one in dict.fromkeys((row["rule"], row["call"]) for row in rows):
        said: dict[str, Counter[str]] = {}
        scores: dict[str, list[float]] = {"lost": [], "healthy": []}
        for row in (row for row in rows if (row["rule"], row["call"]) == one and row["case"] in known):
            of = known[row["case"]]
            state = of["truth"] if of["expected"] in ("healthy", "lost") else "with a hindering optimizer"
            for name in (state, f"{state}, held out")[: 1 + (of["set"] == "held_out")]:
                said.setdefault(name, Counter())[row["verdict"]] += 1
            scores.setdefault(state, []).append(float(row["score"]))
        print(f"\n{', '.join(one)}:\n\n| networks | number | {' | '.join(SAID)} |\n{'|---' * (2 + len(SAID))}|")
        for state, found in sorted(said.items()):
            print(f"| {state} | {found.total()} | {' | '.join(str(found[word]) for word in SAID)} |")
        pairs = [(a < b) + (a == b) / 2 for a in scores["lost"] for b in scores["healthy"] if a + b == a + b]
        print(f"\nAUROC of lost {sum(pairs) / max(1, len(pairs)):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose line contains this")
    parser.add_argument("--set", choices=["tune", "held_out"])
    parser.add_argument("--rule", default="now", help="a name for the rule that gives the verdicts")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--truth", action="store_true", help="without verdicts")
    parts.add_argument("--show", choices=CALLS, help="make nothing: the table of this call")
    parts.add_argument("--verdicts", action="store_true", help="without the truth")
    a = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in cases() if a.only in " | ".join(case) and a.set in (None, case.set)]
    jobs: Jobs = {(c.name, "0"): partial(truth, c) for c in chosen if not (a.verdicts or a.show)}
    known = {row["case"]: row for row in table("known.csv", TRUTH, jobs)}
    calls = () if a.truth or a.show else CALLS
    jobs = {(c.name, "0", a.rule, call): partial(verdict, c, call) for call in calls for c in chosen}
    rows = table("verdicts.csv", VERDICTS, jobs)
    rows = [row for row in rows if not a.show or (row["rule"], row["call"]) == (a.rule, a.show)]
    show({case.name: known[case.name] for case in chosen if case.name in known}, rows)
