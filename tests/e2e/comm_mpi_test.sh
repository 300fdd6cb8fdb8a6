#!/bin/bash
# comm_mpi_test.sh PROGRAM CASE: runs comm_mpi_test under mpirun. A process that is stopped or killed, and a rank that
# skips a collective, must be named with step, group and collective by the others within 10 s; nobody may be left.
set -u
program=$1
case=$2
dir=$(mktemp -d)
touch "$dir/out" "$dir/err"
launcher=

# Ends the launcher and whatever it left, by id.
cleanup() {
  [ -n "$launcher" ] && kill -KILL "$launcher" 2>/dev/null
  awk '$1 == "ready" { print $3 }' "$dir/out" 2>/dev/null | sort -u | xargs -r kill -KILL 2>/dev/null
  rm -rf "$dir"
}
trap cleanup EXIT

fail() {
  echo "comm_mpi_test.sh $case: $1"
  cat "$dir/out" "$dir/err"
  exit 1
}

start() {  # PROCESSES MODE WORLD
  mpirun --allow-run-as-root --oversubscribe --bind-to none -np "$1" "$program" "$2" "$3" >"$dir/out" 2>"$dir/err" &
  launcher=$!
}

# Waits until all N ranks (or processes) are ready; sets pid_of[first rank].
declare -A pid_of
await_ready() {
  for _ in $(seq 300); do
    [ "$(grep -c '^ready' "$dir/out")" -ge "$1" ] && break
    sleep 0.1
  done
  while read -r _ rank pid; do pid_of[$rank]=$pid; done < <(grep '^ready' "$dir/out")
  [ "${#pid_of[@]}" -ge "$1" ] || fail "only ${#pid_of[@]} of $1 are ready"
}

# Seconds until stderr holds the pattern; fails after 10.
await_report() {
  local begin=$EPOCHREALTIME
  for _ in $(seq 100); do
    if grep -Eq "$1" "$dir/err"; then
      echo "named after $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begin }") s: $(grep -Eom1 "$1" "$dir/err")"
      return
    fi
    sleep 0.1
  done
  fail "no report like '$1' within 10 s"
}

# All processes of the run must be gone within 10 s.
await_end() {
  for _ in $(seq 100); do
    local left=0
    for pid in "${pid_of[@]}"; do
      [ -e "/proc/$pid" ] && ! grep -q '^State:.*Z' "/proc/$pid/status" && left=1
    done
    [ $left = 0 ] && return
    sleep 0.1
  done
  fail "processes outlive the run"
}

collective="step [0-9]+, group tp, all_reduce '(attn|moe)_out' #[0-9]+ \(2048 bytes\)"
case $case in
  cases)
    for processes in 1 2 4; do
      for world in 4 8; do
        start $processes cases $world
        wait "$launcher" || fail "$processes processes, $world ranks: not all right"
        [ "$(grep -c ': right' "$dir/out")" = $processes ] || fail "$processes processes: not all done"
        echo "$processes processes, $world ranks: $(grep -o 'all_reduce.*' "$dir/out" | tr '\n' ';')"
      done
    done
    start 4 cases 6
    wait "$launcher" && fail "6 ranks over 4 processes were accepted"
    grep -q "a world of 6 ranks over 4 processes: .* such as 4 or 8" "$dir/err" || fail "no rule, no legal sizes"
    ;;
  skip)
    start 2 skip 4
    wait "$launcher" && fail "a skipped collective was not noticed"
    await_report "rank 2 called step 12, group tp, all_reduce 'moe_out' #2 .*; rank 3 called step 12, group tp, all_gather 'logits' #2"
    ;;
  stop)
    start 4 loop 8
    await_ready 8
    sleep 1
    kill -STOP "${pid_of[4]}"
    await_report "$collective: ranks 4 and 5 did not arrive|ranks 4 and 5: lost, process 2 .* is stopped.*$collective"
    grep -q "process 2 (pid ${pid_of[4]} on .*) is stopped" "$dir/err" || fail "not said to be stopped"
    await_end
    ;;
  kill)
    start 4 loop 8
    await_ready 8
    sleep 1
    kill -KILL "${pid_of[4]}"
    await_report "ranks 4 and 5: lost, process 2 \(pid ${pid_of[4]} on .*\) is gone; rank [0-9] is waiting in $collective"
    await_end
    reports=$(grep -Ec "error .*ranks 4 and 5: lost.*$collective" "$dir/err")  # one per surviving process
    [ "$reports" = 3 ] || fail "$reports of 3 surviving processes reported"
    ;;
  idle)  # waiting for control messages costs little, and process 0 is missed when it dies
    start 2 idle 4
    await_ready 2
    sleep 4
    grep '^idle' "$dir/out"
    ticks=$(awk '{ print $14 + $15 }' "/proc/${pid_of[2]}/stat")
    sleep 5
    spent=$(($(awk '{ print $14 + $15 }' "/proc/${pid_of[2]}/stat") - ticks))  # hundredths of a second in 5 s
    echo "waiting for control messages: $((spent / 5)) % of a core"
    [ $spent -lt 50 ] || fail "waiting costs more than a tenth of a core"
    kill -KILL "${pid_of[0]}"
    await_report "ranks 0 and 1: lost, process 0 \(pid ${pid_of[0]} on .*\) is gone"
    await_end
    ;;
  terminate)  # SIGTERM while all are well is the program's: every process ends in its own way, nobody is called lost
    start 2 terminate 4
    await_ready 2
    kill -TERM "$launcher"
    await_end
    sleep 0.2
    [ "$(grep -c ': right' "$dir/out")" = 2 ] || fail "not every process ended by itself"
    grep -q "lost" "$dir/err" && fail "a process that ended in good order was called lost"
    ;;
  launcher)  # nobody outlives mpirun
    start 2 loop 4
    await_ready 4
    kill -KILL "$launcher"
    await_end
    ;;
  *) fail "no such case" ;;
esac
exit 0
