#!/bin/sh
# A sweep on a real Slurm of one node, whose jobs meet their time limit, queue again and go on: scripts/test_slurm.sh
#
# Needs Debian or Ubuntu and root, best in a container: installs slurm-wlm and munge, and starts their daemons by hand (no
# systemd). At the end every run must have been queued again at least once, and its metrics.csv must be, byte for byte, that of
# an uninterrupted run. PYTHON is one with rl_plasticity[slurm].
set -eu
python=$(command -v "${PYTHON:-python}")
work=$(mktemp -d)
chmod 755 "$work"

command -v slurmctld >/dev/null && command -v munged >/dev/null || {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
}

# ---- munge, controller and node, each in the background; none outlives this script
daemons=
trap 'kill $daemons 2>/dev/null || true' EXIT
trap 'exit 1' INT TERM
mkdir -p /run/munge "$work/state" "$work/spool"
chown munge: /run/munge
[ -e /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null; chown munge: /etc/munge/munge.key; }
chmod 400 /etc/munge/munge.key
munge -n >/dev/null 2>&1 || { setpriv --reuid munge --regid munge --clear-groups munged --foreground >"$work/munged.log" 2>&1 & daemons="$daemons $!"; sleep 1; }
host=$(hostname -s)
cat >"$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPort=26817
SlurmdPort=26818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=10
JobRequeue=1
MpiDefault=none
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$work/slurm.conf"
slurmctld -D >"$work/slurmctld.log" 2>&1 & daemons="$daemons $!"
slurmd -D -N "$host" >"$work/slurmd.log" 2>&1 & daemons="$daemons $!"
for _ in $(seq 60); do [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break; sleep 1; done
sinfo || { tail "$work"/*.log; exit 1; }

# ---- as many epochs as take about two minutes of training here, which with starting up is more than the limit
epochs=100
sweep() { # OUT LAUNCHER...
    out=$1; shift
    "$python" -m rl_plasticity.supervised -m reg=none,swr seed=0 "out=$out" data.train_size=500 num_tasks=3 \
        "epochs_per_task=$epochs" batch_size=50 device=cpu compile=false threads=1 eval_every_epochs=100 \
        checkpoint_every_epochs=100 "$@"
}
sweep "$work/rate" launcher=joblib >/dev/null
epochs=$(cat "$work"/rate/*/timing.csv | awk -F, '$3 == "epochs_per_second" { n++; r += $4 } END { print int(40 * r / n) }')
echo "$epochs epochs for each task"

# ---- the same sweep here without a break, and there with a limit of 2 minutes (Slurm may signal a minute early)
status=0
sweep "$work/refused" launcher=slurm launcher.gpus_per_node=1 || status=$?
[ "$status" = 2 ] && [ ! -e "$work/refused" ] || { echo "a GPU that no node has must be refused" >&2; exit 1; }
sweep "$work/on_slurm" launcher=slurm launcher.timeout_min=2 launcher.signal_delay_s=30
sweep "$work/uninterrupted" launcher=joblib
for run in "$work"/uninterrupted/*/; do
    name=$(basename "$run")
    starts=$(grep -c '"time"' "$work/on_slurm/$name/provenance.json")
    cmp "$run/metrics.csv" "$work/on_slurm/$name/metrics.csv"
    [ "$starts" -gt 1 ] || { echo "$name was not queued again: it ended within the limit" >&2; exit 1; }
    saved=$(cat "$work"/on_slurm/.sweep/*/"$name.log" | tr '\r' '\n' | grep -c -e '^stopped; continue' -e '^done') || true
    [ "$saved" -eq "$starts" ] || { echo "$name started $starts times and saved $saved times" >&2; exit 1; }
    echo "$name: started $starts times, metrics identical"
done
sweep "$work/on_slurm" launcher=slurm | tail -n 1 # all skipped
echo "the sweep met its time limit, queued again and has the numbers of an uninterrupted one"
