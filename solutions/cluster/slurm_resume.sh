# Train, and go on after the job's time limit. The Slurm scripts beside it source this.
#
# A job that asks for --signal=B:USR1@120 gets USR1 two minutes before its time is up:
# then the training is ended, and the job goes back to the queue under its own number.
# When its turn comes, the program finds its newest checkpoint in $RUN/checkpoints.
# --requeue does the same when a node fails.
# shellcheck shell=bash

if [ -z "$CONDA_PREFIX" ]; then
    # shellcheck disable=SC1091 # it is there after `make setup`
    . "${VENV:-.venv}/bin/activate" || exit
fi
RUN=${RUN:-logs/slurm-$SLURM_JOB_ID} # on storage that all nodes share
# shellcheck disable=SC2034 # who sources this, uses it
TRAIN=(python "${PROGRAM:-solutions/survive_solution.py}"
    --checkpoint "$RUN/checkpoints" --log-dir "$RUN")

# One thread for each core of a task; a task that waits leaves its core to others.
THREADS=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$THREADS TF_NUM_INTRAOP_THREADS=$THREADS
export TF_NUM_INTEROP_THREADS=$THREADS OMPI_MCA_mpi_yield_when_idle=1

checkpoints() { find "$RUN/checkpoints" -name '*.index' 2>/dev/null | sort; }

# Run a command to its end, or until USR1 comes; exit with its status.
resume() {
    local before status again=
    before=$(checkpoints)
    "$@" &
    trap 'again=yes; kill -TERM "$!"' USR1
    wait "$!" # a signal ends the waiting, too
    status=$?
    if [ "$again" ]; then
        wait "$!"
        status=$?
    fi
    if [ "$status" -eq 0 ] || [ -z "$again" ]; then
        exit "$status"
    fi
    if [ "$(checkpoints)" = "$before" ]; then
        echo "No checkpoint was made within the time limit, so nothing would be gained" \
            "by going on. Give the job more with --time." >&2
        exit 1
    fi
    echo "Time is nearly up: job $SLURM_JOB_ID goes back to the queue." >&2
    scontrol requeue "$SLURM_JOB_ID"
}
