"""What each method gains in our RL studies, in one table: ``python -m papers.gains > docs/results/rl/gains.csv``.

A gain is the mean return of a method minus that of no method, seed by seed, with a 95 % interval that holds for all
methods of the study at once. It is shown if the interval excludes 0.
"""

import csv
import re
import sys

from papers.shown import rows

# The problem, the study, and of a study with several panels which one.
STUDIES = {
    "CartPole, 30 tasks (DQN)": "cartpole-30-tasks",
    "Pendulum, 20 tasks (SAC)": "continual-pendulum",
    "Space Invaders, 10 orders of channels (DQN)": "channels",
    "cheetah-run, 20 changes of dynamics (SAC)": "continual-dynamics",
    "walker, three tasks in turn (SAC)": "continual-walker",
    "Breakout at replay ratio 4 (DQN)": "replay-ratios return, 4",
    "cheetah-run primed (SAC)": "priming cheetah-run, 30000",
    "cheetah-run primed, with LayerNorm (SAC)": "priming cheetah-run, LayerNorm, 30000",
    "cartpole-swingup primed (SAC)": "priming cartpole-swingup, 30000",
    "cartpole-swingup primed, with LayerNorm (SAC)": "priming cartpole-swingup, LayerNorm, 30000",
    "cheetah-run at replay ratio 16, with LayerNorm (SAC)": "high-replay-ratio",
}


def main() -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["problem", "method", "return", "gain", "is shown"])
    for problem, of in STUDIES.items():
        study, _, panel = of.partition(" ")
        found = rows(f"papers.results_table docs/results/rl/{study}/figure.csv --against none")
        for row in found:
            method, first, *_ = row.values()
            mean, gap = row[panel] if panel else first, row[f"{panel} for all gaps at once".strip()]
            ends = [*map(float, re.findall(r"[-+][\d.]+", gap.partition("[")[2]))]
            shown = "yes" if ends and (ends[0] > 0 or ends[1] < 0) else "no" if ends else ""
            table.writerow([problem, "no method" if method == "none" else method, mean, gap, shown])


if __name__ == "__main__":
    main()
