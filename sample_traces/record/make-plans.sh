#!/usr/bin/env bash
# Writes the orders that record.sh runs, from tracekit's own schedules: ./make-plans.sh FOLDER
set -euo pipefail
mkdir -p "$1"
tracekit schedule interleaved-overlap --pp 4 --microbatches 8 --virtual 2 --json > "$1/vpp.json"
tracekit schedule 1f1b --pp 4 --microbatches 8 --json > "$1/1f1b.json"
tracekit schedule 1f1b --pp 2 --microbatches 2 --json > "$1/1f1b-small.json"
