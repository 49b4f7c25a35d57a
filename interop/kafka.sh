#!/usr/bin/env bash
# One real Kafka broker (KRaft, combined roles) and Kafka's tools, from Maven artifacts.
#
#   kafka.sh check [JARS]                          say what is missing, one line each; nothing if all is there
#   kafka.sh fetch JARS                            resolve the jars into JARS, compile our client there
#   kafka.sh start JARS HOME PORT [key=value ...]  format HOME/data when new, start, wait until it serves
#   kafka.sh stop  HOME                            clean stop
#   kafka.sh kill  HOME                            kill -9
#   kafka.sh run   JARS CLASS [args ...]           a class; short names are those of org.apache.kafka.tools, or ours
#
# HOME gets server.properties, log4j2.properties, broker.log, broker.pid and data/. The controller listens on PORT + 1.
# Environment: BROKER_JAVA_OPTS, TOOL_JAVA_OPTS, START_SECONDS (60).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CLUSTER_ID=b25jZWxvZy1pbnRlcm9wMQ

[ -z "${JAVA_HOME:-}" ] || PATH=$JAVA_HOME/bin:$PATH

die() { echo "$*" >&2; exit 2; }
fetched() { compgen -G "$1/kafka_2.13-*.jar" >/dev/null; }

check() {
  local version programs="mvn java javac"
  ! fetched "${1:-/nowhere}" || programs="java javac" # Maven only fetches
  for program in $programs; do
    command -v "$program" >/dev/null || echo "no $program on the PATH"
  done
  if command -v java >/dev/null; then
    version=$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -1)
    [ "${version:-0}" -ge 17 ] || echo "Java ${version:-of unknown version}, where 17 is the least"
  fi
}

fetch() {
  mkdir -p "$1"; local jars; jars=$(cd "$1" && pwd)
  if ! fetched "$jars"; then
    # Half of the jars look like all of them, so they come to their place together.
    rm -rf "$jars/part"
    mvn -B -q -f "$HERE/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars/part" >&2 ||
      { rm -rf "$jars/part"; rmdir "$jars" 2>/dev/null || true; die "Kafka's jars could not be fetched"; }
    mv "$jars"/part/* "$jars"; rmdir "$jars/part"
  fi
  mkdir -p "$jars/classes"
  javac -nowarn -proc:none -cp "$jars/*" -d "$jars/classes" "$HERE"/java/*.java
}

properties() { # HOME PORT [key=value ...]
  local home=$1 port=$2; shift 2
  cat >"$home/log4j2.properties" <<L
status=error
appender.f.type=File
appender.f.name=f
appender.f.fileName=$home/broker.log
appender.f.append=false
appender.f.layout.type=PatternLayout
appender.f.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.f.ref=f
L
  cat >"$home/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$home/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.cleaner.enable=false
transaction.abort.timed.out.transaction.cleanup.interval.ms=2147483647
P
  local pair; for pair in "$@"; do echo "$pair" >>"$home/server.properties"; done
}

start() {
  local jars home port=$3
  jars=$(cd "$1" && pwd); mkdir -p "$2/data"; home=$(cd "$2" && pwd); shift 3
  properties "$home" "$port" "$@"
  if [ ! -f "$home/data/meta.properties" ]; then
    java -Xmx256m -Dlog4j2.configurationFile="$home/log4j2.properties" -cp "$jars/*" kafka.tools.StorageTool \
      format -t "$CLUSTER_ID" -c "$home/server.properties" >"$home/format.out" 2>&1 || { cat "$home/format.out" >&2; die "format failed"; }
  fi
  rm -f "$home/broker.log"
  # shellcheck disable=SC2086
  setsid nohup java ${BROKER_JAVA_OPTS:--Xmx512m} -Djava.awt.headless=true -Dlog4j2.configurationFile="$home/log4j2.properties" \
    -cp "$jars/*" kafka.Kafka "$home/server.properties" >"$home/broker.out" 2>&1 </dev/null &
  local pid=$! left=$(( ${START_SECONDS:-60} * 10 ))
  echo "$pid" >"$home/broker.pid"
  until grep -q 'Kafka Server started' "$home/broker.log" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || { tail -20 "$home/broker.out" "$home/broker.log" >&2; die "the broker died"; }
    left=$((left - 1)); [ "$left" -gt 0 ] || { kill -9 "$pid"; die "the broker did not start in time"; }
    sleep 0.1
  done
}

end() { # HOME SIGNAL
  [ -f "$1/broker.pid" ] || return 0 # it was never started
  local pid left=600; pid=$(cat "$1/broker.pid")
  kill "$2" "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
  ! kill -0 "$pid" 2>/dev/null || die "the broker, process $pid, still runs"
  rm -f "$1/broker.pid"
}

run() {
  local jars class=$2; jars=$(cd "$1" && pwd); shift 2
  [ -f "$jars/classes/$class.class" ] || class=org.apache.kafka.tools.$class
  # shellcheck disable=SC2086
  exec java ${TOOL_JAVA_OPTS:--Xmx512m} -Dlog4j2.configurationFile="$HERE/tool-log4j2.properties" -cp "$jars/classes:$jars/*" "$class" "$@"
}

case ${1:-} in
  check) [ $# -le 2 ] || die "usage: kafka.sh check [JARS]"; shift; check "$@" ;;
  fetch) [ $# -eq 2 ] || die "usage: kafka.sh fetch JARS"; fetch "$2" ;;
  start) [ $# -ge 4 ] || die "usage: kafka.sh start JARS HOME PORT [key=value ...]"; shift; start "$@" ;;
  stop)  [ $# -eq 2 ] || die "usage: kafka.sh stop HOME"; end "$2" -TERM ;;
  kill)  [ $# -eq 2 ] || die "usage: kafka.sh kill HOME"; end "$2" -KILL ;;
  run)   [ $# -ge 3 ] || die "usage: kafka.sh run JARS CLASS [args ...]"; shift; run "$@" ;;
  *)     sed -n '2,14p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
