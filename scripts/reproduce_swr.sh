#!/bin/sh
# Oh et al. (2024), Figures 2 to 4 and Table 1: warm start, growing data, data in chunks, stationary; strengths of Tables 2 to 4.
#
#   scripts/reproduce_swr.sh [FOLDER]            5 seeds (3 for VGG-16); downloads the data sets
#   QUICK=1 scripts/reproduce_swr.sh [FOLDER]    minutes: the digits, 20 epochs, 3 seeds; shows that it runs
#
# Run again it continues what is there.
set -eu
out=${1:-results/swr}
python=${PYTHON:-python}
many=seeds=5 epochs=100

run() ( # FOLDER SETTING..., in a subshell: its variables are its own
    folder=$1; shift
    if [ -e "$folder/checkpoints" ]; then "$python" -m rl_plasticity.supervised "resume=$folder"
    else "$python" -m rl_plasticity.supervised "out=$folder" "$@"; fi
)

# methods FOLDER L2 L2_INIT SWR SWR_CLASSIFIER SHRINK_PERTURB SETTING...
methods() (
    folder=$1 l2=$2 l2_init=$3 swr=$4 classifier=$5 shrink=$6; shift 6
    run "$folder/none" "$@" reg=none
    run "$folder/l2" "$@" reg=l2 "reg.coef=$l2"
    run "$folder/l2_init" "$@" reg=l2_init "reg.coef=$l2_init"
    run "$folder/swr" "$@" reg=swr "reg.coef=$swr" "reg.coef_classifier=$classifier"
    case $folder in */stationary*) exit ;; esac # nothing changes there
    run "$folder/shrink_perturb" "$@" reset=shrink_perturb "reset.coef=$shrink"
    run "$folder/head" "$@" reset=head
)

# experiment NAME SEEDS, for each kind of task its strengths as `methods` takes them, SETTING...
experiment() {
    name=$1 seeds=$2 warm=$3 full=$4 limited=$5 stationary=$6; shift 6
    for seed in $seeds; do
        [ "$seed" = all ] && own=$many || own="seed=$seed"
        methods "$out/$name/warm_start/$seed" $warm "$@" task=warm_start "$own" "epochs_per_task=$epochs"
        methods "$out/$name/continual_full/$seed" $full "$@" task=continual_full "$own" "epochs_per_task=$epochs"
        methods "$out/$name/continual_limited/$seed" $limited "$@" task=continual_limited "$own" "epochs_per_task=$epochs"
        methods "$out/$name/stationary/$seed" $stationary "$@" task=stationary "$own" "epochs_per_task=$((2 * epochs))"
    done
    for task in warm_start continual_full continual_limited stationary; do
        "$python" -m rl_plasticity.compare "$out/$name/$task" "out=$out/comparison_${name}_$task" baseline=none
    done
}

if [ "${QUICK:-}" ]; then
    many=seeds=3 epochs=20
    experiment digits all "1e-5 1e-5 1e-4 1e-4 0.4" "1e-4 1e-4 1e-4 1e-4 0.6" "1e-5 1e-5 1e-4 1e-4 0.2" \
        "1e-5 1e-5 1e-4 1e-4 0" data=digits net=mlp batch_size=50 threads=1
    exit
fi
# Strengths: L2, L2 Init, SWR for features, SWR for the classifier, shrink and perturb.
experiment mnist all "1e-5 1e-5 1e-4 1e-4 0.4" "1e-4 1e-4 1e-4 1e-4 0.6" "1e-5 1e-5 1e-4 1e-4 0.2" \
    "1e-5 1e-5 1e-4 1e-4 0" preset=swr-mnist
experiment cifar10 all "1e-2 1e-2 1e-3 1e-3 0.8" "1e-2 1e-2 1e-3 1e-3 0.8" "1e-2 1e-2 1e-1 1e-1 0.4" \
    "1e-2 1e-2 1e-3 1e-3 0" preset=swr-cifar10
experiment cifar100 all "1e-2 1e-2 1e-3 1e-3 0.8" "1e-2 1e-2 1e-3 1e-3 0.8" "1e-2 1e-2 1e-1 1e-1 0.6" \
    "1e-2 1e-2 1e-3 1e-3 0" preset=swr-cifar100
experiment cifar100_bn all "1e-2 1e-2 1e-4 1 0.8" "1e-2 1e-2 1e-4 1e-1 0.8" "1e-2 1e-2 1e-1 1e-2 0.4" \
    "1e-2 1e-2 1e-4 1e-1 0" preset=swr-cifar100-bn
experiment tiny "0 1 2" "1e-5 1e-5 1e-2 1e-1 0.8" "1e-4 1e-4 1e-2 1e-2 0.8" "1e-4 1e-3 1e-4 1 0.4" \
    "1e-5 1e-5 1e-2 1e-1 0" preset=swr-tiny
