#!/bin/sh
# Slurm's TaskProlog: every task gets the settings of NCCL, UCX, Gloo and libfabric that its job's network needs.
#
#   TaskProlog=/usr/local/lib/fabricd/slurm/fabricd-task-prolog.sh       (slurm.conf)
#
# It runs as the job's user, with the task's environment, and Slurm takes what it prints: `export NAME=value`. A variable
# that the user has set stays. It never fails: without the daemon a task goes on with its libraries' own choice, and says
# so. A user leaves it out by FABRICD_SLURM=off; ENGINES, TIMEOUT_SECONDS and the like are set in fabricd-slurm.conf.
config=${FABRICD_SLURM_CONF:-/etc/fabricd/slurm.conf}
# shellcheck source=/dev/null # the site's own
[ ! -r "$config" ] || . "$config"

# Into the job's output, which is all that Slurm offers, and by the first task of each node alone.
complain() {
    [ "${SLURM_LOCALID:-0}" != 0 ] || echo "print fabricd: $*; the job goes on with its libraries' own choice"
    exit 0
}

[ "${FABRICD_SLURM:-on}" != off ] || exit 0
told=$(timeout "${TIMEOUT_SECONDS:-20}" "${FABRICCTL:-/usr/local/bin/fabricctl}" env --format slurm \
    ${ENGINES:+--engine "$ENGINES"} 2>&1)
status=$?
case $status in
    0) ;;
    124) complain "no settings within ${TIMEOUT_SECONDS:-20} s" ;;
    *) complain "no settings ($(printf '%s' "$told" | head -n 1 | cut -c 1-200))" ;;
esac
printf '%s\n' "$told" | while IFS= read -r line; do
    case $line in "export "*=*) ;; *) continue ;; esac
    name=${line#export }
    printenv "${name%%=*}" >/dev/null || printf '%s\n' "$line"
done
exit 0
