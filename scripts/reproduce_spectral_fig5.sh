#!/bin/sh
# Lewandowski et al. (2024), Figure 5: SAC at replay ratio 16 with LayerNorm, with spectral regularization, with resets.
#
#   scripts/reproduce_spectral_fig5.sh [FOLDER]            10 seeds, 7 tasks: weeks on a CPU
#   QUICK=1 scripts/reproduce_spectral_fig5.sh [FOLDER]    minutes: cheetah-run, few steps, 2 seeds; shows that it runs
#
# Run again it continues what is there. The seven tasks are ours: the paper's text does not name them.
set -eu
out=${1:-results/spectral_fig5}
python=${PYTHON:-python}

run() ( # FOLDER SETTING...: every member of a list trains in the same process
    folder=$1; shift
    if [ -e "$folder/checkpoints" ]; then "$python" -m rl_plasticity.train "resume=$folder"
    else "$python" -m rl_plasticity.train "out=$folder" "$@"; fi
)

if [ "${QUICK:-}" ]; then
    set -- total_env_steps=3000 replay_ratio=1 eval_every_env_steps=500 log_every_updates=500 seeds=2 threads=1
    periods=[500,1000] presets=demo tasks=cheetah-run strengths=[1e-5,1e-4,1e-3]
else
    set -- seeds=10
    periods=[1280000,2560000,5120000] presets="paper bounded" strengths=[1e-5,1e-4,1e-3]
    tasks="acrobot-swingup cheetah-run finger-turn_hard hopper-hop humanoid-run quadruped-run walker-run"
fi
for preset in $presets; do
    for task in $tasks; do
        run "$out/$preset/$task/none" "env=$task" "preset=$preset" "$@" reg=none
        run "$out/$preset/$task/spectral" "env=$task" "preset=$preset" "$@" reg=spectral "reg.coef=$strengths"
        run "$out/$preset/$task/reset" "env=$task" "preset=$preset" "$@" reset=periodic "reset.every_updates=$periods"
    done
    "$python" -m rl_plasticity.compare "$out/$preset" "out=$out/comparison_$preset" mix=env.name baseline=none
done
