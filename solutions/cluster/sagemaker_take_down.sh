#!/bin/bash
# What of SageMaker costs on when no job is running, and away with a part of it:
#
#     solutions/cluster/sagemaker_take_down.sh BUCKET
#     solutions/cluster/sagemaker_take_down.sh BUCKET --delete
#
# Without --delete it only looks. With it, what the jobs of sagemaker_launch.py left in
# s3://BUCKET/survive goes: models, checkpoints, logs. The data stays, and so do jobs,
# notebook instances and endpoints: somebody may need them, so delete those by name.
# It needs AWS's command line, `aws`. No account was there to try it on.
set -euo pipefail
bucket=${1:?the name of the bucket is missing}

named() { # title, command, the fields to show
    echo "== $1"
    aws sagemaker "$2" --query "$3" --output text
}
named "jobs: their machines end with them" list-training-jobs \
    "TrainingJobSummaries[?TrainingJobStatus=='InProgress'].[TrainingJobName]"
named "notebook instances: one that is stopped keeps its disk" \
    list-notebook-instances \
    "NotebookInstances[].[NotebookInstanceName, NotebookInstanceStatus]"
named "endpoints: each runs until it is deleted" list-endpoints \
    "Endpoints[].[EndpointName, EndpointStatus]"

echo "== the bucket, until it is empty"
aws s3 ls --recursive --human-readable --summarize "s3://$bucket" | tail --lines 2
if [ "${2:-}" = --delete ]; then
    aws s3 rm --recursive --only-show-errors "s3://$bucket/survive/"
    echo "s3://$bucket/survive is gone."
fi
