#!/bin/sh
# Slurm Prolog and HealthCheckProgram (slurm.conf):
#   Prolog=/etc/slurm/prolog.d/*.sh          a node that fails it is drained, and its job is queued again
#   HealthCheckProgram=/etc/slurm/prolog.d/sentinel.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE
# What is broken (2) keeps a job off the node: also cards that do not answer within 25 s, and a check that does not end
# (124, 137). A warning (1) is told in the log of slurmd; unknown (3) too: a node is not taken out of service because
# something could not be looked at.

# Where the agent of examples/systemd keeps what it knows: that is part of the answer.
export SENTINEL_STATE_DIR="${SENTINEL_STATE_DIR:-/var/lib/sentinel}"
SETTINGS=${SENTINEL_SETTINGS:-/etc/sentinel/settings.yaml}
[ -e "$SETTINGS" ] && set -- --settings "$SETTINGS" || set --
# Into a file: of a pipe, a check that hangs in the kernel would hold one end, and this one wait at the other.
out=$(mktemp -p /run sentinel.XXXXXX 2>/dev/null || mktemp) || out=/dev/null
began=$(date +%s)
timeout -k 5 30 sentinel check --within 25s "$@" >"$out" 2>&1
code=$?
found=$(cat "$out")
[ "$out" = /dev/null ] || rm -f "$out"
# What was killed before its time, as by the kernel for want of memory, tells nothing of the node.
[ $code -eq 137 ] && [ $(($(date +%s) - began)) -lt 30 ] && code=3
case $code in
0) exit 0 ;;
2) reason=$(echo "$found" | grep -m 1 -E ' (fatal|degraded) ' | tr -s ' ' | cut -c1-120) ;;
124 | 137)
	reason="sentinel check did not end"
	found=$(printf '%s\n%s' "$reason" "$found")
	;;
*)
	logger -t sentinel "$(echo "$found" | tail -n 1)"
	exit 0
	;;
esac
echo "$found" | head -n 20
if [ -z "$SLURM_JOB_ID" ]; then # as HealthCheckProgram: Slurm does not drain by itself
	scontrol update nodename="${SLURMD_NODENAME:-$(hostname -s)}" state=drain reason="sentinel: $reason"
fi
exit 1
