#!/bin/sh
# Slurm's Prolog: is this node's daemon ready?
#
#   Prolog=/usr/local/lib/fabricd/slurm/fabricd-prolog.sh                (slurm.conf)
#   PrologFlags=Alloc                                  # when the job is given its nodes, not with its first step
#
# It runs as root before a job begins on the node. What becomes of a node whose daemon is not ready decides ON_UNREADY in
# fabricd-slurm.conf: "warn" (the default) logs it and the job goes on; with "drain" this ends with status 1, upon which
# Slurm drains the node and queues the job again.
config=${FABRICD_SLURM_CONF:-/etc/fabricd/slurm.conf}
# shellcheck source=/dev/null # the site's own
[ ! -r "$config" ] || . "$config"

told=$(curl --silent --show-error --max-time "${READY_SECONDS:-5}" --write-out ' %{http_code}' \
    --unix-socket "${FABRICD_SOCKET:-/run/fabricd/fabricd.sock}" http://localhost/readyz 2>&1)
status=$?
if [ "$status" -eq 0 ] && [ "${told##* }" = 200 ]; then exit 0; fi

said=$(printf '%s' "$told" | tr '\n' ' ' | cut -c 1-200)
message="job ${SLURM_JOB_ID:-?}: fabricd on ${SLURMD_NODENAME:-this node} is not ready: $said"
echo "$message" >&2
logger -t fabricd-prolog -p daemon.warning -- "$message" 2>/dev/null
[ "${ON_UNREADY:-warn}" != drain ] || exit 1
exit 0
