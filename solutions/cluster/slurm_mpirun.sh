#!/bin/bash
# Train on a Slurm cluster, with the tasks started by mpirun.
#
#     sbatch solutions/cluster/slurm_mpirun.sh --epochs 20
#     sbatch --nodes 2 --ntasks-per-node 4 solutions/cluster/slurm_mpirun.sh --epochs 20
#     sbatch --gpus-per-node 2 --cpus-per-task 8 solutions/cluster/slurm_mpirun.sh
#     sbatch --export ALL,PROGRAM=exercises/survive.py solutions/cluster/slurm_mpirun.sh
#     sbatch --export ALL,RUN=logs/slurm-123 solutions/cluster/slurm_mpirun.sh
#
# The last goes on from the checkpoints of job 123. Options before the script's name
# are sbatch's and replace those below, options after it are the program's. Submit from
# the course's folder, set up (make setup) where all nodes see it.
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

# Slurm tells this mpirun where to start how many. No PMI is needed: mpirun has srun
# start a daemon on each node, and the daemons start the tasks.
resume mpirun --bind-to none "${TRAIN[@]}" "$@"
