#!/usr/bin/env bash
# Runs inside the machine, one stage at a time: suite.sh STAGE. A stage that fails says what it saw and ends with 1.
set -euo pipefail
export KUBECONFIG=/var/lib/apiserver-lite/admin.conf
server=https://10.0.2.15:6443
fail() {
    echo "FAILED: $*" >&2
    journalctl -q --no-pager -n 40 -u node-agent -u apiserver-lite >&2 || true
    exit 1
}
ok() { echo "  ok: $*"; }
until_true() { # until_true SECONDS TEXT COMMAND...
    local limit=$((SECONDS + $1)) text=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$limit" ] || fail "$text"
        sleep 1
    done
    ok "$text"
}
# There is no kubectl in Debian that fits: curl as the administrator.
secret() { sed -n "s/^ *$1: //p" "$KUBECONFIG" | head -n 1 | base64 -d; }
api() { # api METHOD PATH [CURL OPTION...]
    local method=$1 path=$2
    shift 2
    [ -e /run/suite/key ] || { mkdir -m 0700 -p /run/suite; secret client-certificate-data >/run/suite/crt; secret client-key-data >/run/suite/key; }
    curl -fsS -A suite --max-time 30 --cacert /var/lib/apiserver-lite/pki/ca.crt --cert /run/suite/crt --key /run/suite/key -X "$method" "$@" "$server$path"
}
pid() { systemctl show -P MainPID "$1"; }
node_ready() { api GET /api/v1/nodes/node | grep -q '"type":"Ready",[^}]*"status":"True"'; }
node_not_ready() { ! node_ready; }
pod_ready() { api GET /api/v1/namespaces/default/pods/web | grep -q '"type":"Ready",[^}]*"status":"True"'; }
# The process of the pod's container, as the host sees it.
pod_process() { pgrep -f '^sleep 86399$'; }

install_packages() { dpkg -i /root/packages/*.deb; }

stage_install() {
    install_packages || fail 'dpkg -i'
    systemd-analyze verify /usr/lib/systemd/system/{node-agent.service,apiserver-lite.service,kubepods.slice} || fail 'systemd-analyze verify'
    systemd-analyze security --no-pager --threshold=15 apiserver-lite.service >/dev/null || fail 'apiserver-lite.service is too open'
    ctr -n k8s.io images import /usr/share/node-agent/pause.tar >/dev/null
    ctr -n k8s.io images import /root/busybox.tar >/dev/null
    systemctl enable --now apiserver-lite || fail 'apiserver-lite does not start'
    [ "$(ps -o user= -p "$(pid apiserver-lite)")" != root ] || fail 'apiserver-lite runs as root'
    until_true 120 'the API server is ready' curl -fsSk "$server/readyz"
    # Refused: a config that is wrong, before anything runs on it.
    ! apiserver-lite serve --check --secure-port=0 2>/dev/null || fail 'wrong settings pass'
}

stage_join() {
    local command
    command=$(apiserver-lite token create --print-join-command --server "$server")
    ! ${command%sha256:*}sha256:$(printf '0%.0s' {1..64}) || fail 'joined a cluster of another authority'
    $command || fail "$command"
    until_true 180 'the node is Ready' node_ready
    api POST /api/v1/namespaces/default/pods -H 'Content-Type: application/json' -o /dev/null --data-binary '{"apiVersion": "v1",
        "kind": "Pod", "metadata": {"name": "web"}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "86399"]}]}}'
    until_true 180 'a pod runs' pod_ready
    case $(cat "/proc/$(pod_process)/cgroup") in 0::/kubepods.slice/*) ok 'its cgroup is below kubepods.slice' ;; *) fail "cgroup $(cat "/proc/$(pod_process)/cgroup")" ;; esac
}

stage_watchdog() {
    local unit before pod
    pod=$(pod_process)
    for unit in node-agent apiserver-lite; do
        before=$(pid $unit)
        kill -STOP "$before"
        until_true 90 "$unit is started again after it hung" eval '[ "$(pid '$unit')" != '"$before"' ] && systemctl -q is-active '$unit
    done
    [ "$(pod_process)" = "$pod" ] || fail 'the pod has another process'
    ok 'the pod has its process still'
    until_true 180 'the node is Ready' node_ready
}

stage_upgrade() {
    local pod agent
    pod=$(pod_process)
    agent=$(pid node-agent)
    printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\n' >/etc/orchestrator-lite/node-agent.conf.d/90-bad.conf
    install_packages 2>&1 | tee /run/suite/upgrade
    grep -q 'NOT restarted' /run/suite/upgrade || fail 'nothing is said about a configuration that is refused'
    [ "$(pid node-agent)" = "$agent" ] || fail 'the agent was restarted on a configuration that it refuses'
    ok 'a refused configuration leaves the old agent running'
    rm /etc/orchestrator-lite/node-agent.conf.d/90-bad.conf
    install_packages
    until_true 120 'the upgrade restarted the agent' eval '[ "$(pid node-agent)" != '"$agent"' ]'
    until_true 180 'the node is Ready' node_ready
    [ "$(pod_process)" = "$pod" ] || fail 'the upgrade touched the pod'
    ok 'the pod has its process still'
    apiserver-lite backup /root/backup
    apiserver-lite check /root/backup || fail 'the backup is damaged'
    sync
}

stage_after_power() {
    until_true 240 'the API server is ready' curl -fsSk "$server/readyz"
    apiserver-lite check || fail 'the store is damaged'
    until_true 240 'the node is Ready' node_ready
    until_true 240 'the pod runs again' eval 'pod_ready && pod_process'
    [ "$(pod_process | wc -l)" = 1 ] || fail 'a container runs twice'
}

stage_purge() {
    node-agent pods stop
    dpkg --purge node-agent apiserver-lite || fail 'dpkg --purge'
    local left
    for left in /etc/orchestrator-lite /var/lib/apiserver-lite /var/lib/kubelet /usr/bin/node-agent; do
        [ ! -e "$left" ] || fail "$left is left: $(find "$left" | head)"
    done
    ok 'nothing is left'
}

"stage_${1:?which stage}"
