#!/bin/bash
# Train on a Slurm cluster, with the tasks started by srun: Slurm sees each of them.
#
#     sbatch solutions/cluster/slurm_srun.sh --epochs 20
#     sbatch --nodes 2 --ntasks-per-node 4 solutions/cluster/slurm_srun.sh --epochs 20
#     sbatch --gpus-per-task 1 --cpus-per-task 8 solutions/cluster/slurm_srun.sh
#     sbatch --export ALL,PMI=pmix_v4 solutions/cluster/slurm_srun.sh
#
# Everything that slurm_mpirun.sh says holds here, too.
#
#SBATCH --job-name=survive
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

. solutions/cluster/slurm_resume.sh || exit

# By PMI, tasks that srun has started find each other. The Open MPI of .venv has PMIx
# and nothing else, so Slurm must have PMIx as well: `srun --mpi=list` shows what it
# has. Without, each task fails or, with Open MPI 5, trains alone: try it first.
# srun does not take --cpus-per-task over from the job.
START=(srun --mpi="${PMI:-pmix}" --cpus-per-task="$THREADS")
TOGETHER="import sys; from mpi4py import MPI
sys.exit(MPI.COMM_WORLD.size != $SLURM_NTASKS)"
if ! SAID=$("${START[@]}" python -c "$TOGETHER" 2>&1); then
    echo "$SAID" >&2
    echo "srun --mpi=${PMI:-pmix} starts no $SLURM_NTASKS tasks that find each other." \
        "If srun --mpi=list shows another pmix, name it in PMI; if it shows none, use" \
        "slurm_mpirun.sh, which needs none." >&2
    exit 1
fi
resume "${START[@]}" "${TRAIN[@]}" "$@"
