#!/bin/bash
#SBATCH --job-name=fedvisage
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
# One Ray node per machine of the job; the first one also runs the command:
#   sbatch deploy/ray/slurm.sh fedvisage study studies/pad --root /data --on ray
# Activate an environment with fedvisage[ray] before sbatch. The job ends with the command, and Slurm ends the nodes.
set -euo pipefail
umask 077 # Ray's own directories have mode 777, and are below one of mode 700

RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | cut -d' ' -f1)
port=$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a machine differ
scratch=/tmp/ray-$SLURM_JOB_ID

start_node() { # machine, options
  local machine=$1
  shift
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$machine" bash -c '
    umask 077
    mkdir -p -m 700 "$0" && exec ray start --block --temp-dir="$0/ray" "$@"
  ' "$scratch" --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" "$@" &
}

start_node "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
for _ in $(seq 60); do
  if ray health-check --address "$address:$port" 2> /dev/null; then break; fi
  sleep 2
done
for machine in "${machines[@]:1}"; do
  start_node "$machine" --address="$address:$port"
done

export RAY_ADDRESS=$address:$port
"$@"
