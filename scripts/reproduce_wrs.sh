#!/bin/sh
# Liu et al. (2021), Table I and Figure 2: weight decay, weight standardization with weight decay, weight rescaling.
#
#   scripts/reproduce_wrs.sh [FOLDER]            3 seeds, 3 networks, 3 data sets, Adam and SGD; downloads the data
#   QUICK=1 scripts/reproduce_wrs.sh [FOLDER]    minutes: the digits, a small CNN with BatchNorm, 20 epochs, 3 seeds
#
# Run again it continues what is there. Strengths: SGD with weight decay 5e-4 and lr 0.1, Adam with decoupled weight decay
# 5e-2 and lr 1e-3 (the paper's Figure 2), as coef = lr * weight decay.
set -eu
out=${1:-results/wrs}
python=${PYTHON:-python}

run() ( # FOLDER SETTING..., in a subshell: its variables are its own
    folder=$1; shift
    if [ -e "$folder/checkpoints" ]; then "$python" -m rl_plasticity.supervised "resume=$folder"
    else "$python" -m rl_plasticity.supervised "out=$folder" "$@"; fi
)

# table FOLDER DECAY SETTING...
table() {
    folder=$1 decay=$2; shift 2
    run "$folder/none" "$@" reg=none
    run "$folder/weight_decay" "$@" reg=weight_decay "reg.coef=$decay"
    run "$folder/standardization" "$@" reg=weight_decay "reg.coef=$decay" net.parametrization=weight_standardization
    run "$folder/wrs" "$@" reg=wrs reg.rescale_head=true
}

compare() { # FOLDER
    "$python" -m rl_plasticity.compare "$out/$1" "out=$out/comparison_$1" mix=net.parametrization
}

if [ "${QUICK:-}" ]; then
    table "$out/digits" 5e-5 data=digits net=cnn_bn task=stationary "task.decay_at_epochs=[10,15]" \
        epochs_per_task=20 batch_size=100 seeds=3 threads=1 eval_every_epochs=5
    compare digits
    exit
fi
for data in cifar10 cifar100 tiny; do
    for net in vgg16_bn resnet18 wrn28_10; do
        for optimizer in adam sgd; do
            [ "$optimizer" = adam ] && step="5e-5 lr=1e-3" || step="5e-5 lr=0.1"
            for seed in 0 1 2; do
                table "$out/${data}_${net}_$optimizer/$seed" $step "preset=wrs-$data" "net=$net" \
                    "optimizer=$optimizer" "seed=$seed"
            done
            compare "${data}_${net}_$optimizer"
        done
    done
done
