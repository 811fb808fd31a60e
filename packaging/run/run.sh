#!/usr/bin/env bash
# `make run`: a one-node cluster in the foreground, with everything it writes under .run/ in the checkout.
#
# Order: prerequisites, release binaries, a CRI runtime (its own containerd only where no socket answers), images,
# apiserver-lite, node-agent, the first pods. Ctrl-C stops all of it again; the next run continues with the same data.
# Environment: RUN_DIR (default .run), SECURE_PORT (6443), AGENT_PORT (10250), CRI_SOCKET (skip the search), NODE_NAME,
# BIN_DIR (binaries that are there already, instead of a build).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
. "$here/say.sh"

# Where a step's output goes elsewhere, the traps still speak to the person.
exec 6>&1 7>&2
run=${RUN_DIR:-$top/.run}
port=${SECURE_PORT:-6443}
agent_port=${AGENT_PORT:-10250}
node=$(tr '[:upper:]' '[:lower:]' <<<"${NODE_NAME:-$(hostname)}")
export LOGS=$run/logs
[ "$(id -u)" = 0 ] || die 'make run starts containers and has to be root: sudo make run'
for value in "$port" "$agent_port"; do
    [[ $value =~ ^[1-9][0-9]{0,4}$ ]] && [ "$value" -le 65535 ] || die "$value is no port (SECURE_PORT, AGENT_PORT)"
done
[ "$port" != "$agent_port" ] || die "SECURE_PORT and AGENT_PORT are both $port; each needs its own"
[[ $node =~ ^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$ ]] ||
    die "$node is no name for a node: letters, digits, '-' and '.' (NODE_NAME)"
mkdir -p "$run" "$LOGS" 2>/dev/null || die "cannot make the folder $run (RUN_DIR)"
run=$(cd "$run" && pwd)
[ ${#run} -le 70 ] || die "$run is too long for the unix sockets in it; set RUN_DIR to a shorter path"
exec 8>"$run/lock"
flock -n 8 || die "another make run uses $run"

for program in apiserver-lite node-agent; do
    [ -z "${BIN_DIR:-}" ] || [ -x "$BIN_DIR/$program" ] || die "there is no $program in BIN_DIR=$BIN_DIR"
done
"$here/prerequisites.sh"
bin=${BIN_DIR:-${CARGO_TARGET_DIR:-$top/target}/release}
[ -n "${BIN_DIR:-}" ] || step 'building release binaries (some minutes the first time)' "$LOGS/build.log" \
    env BUILD_PROFILE=release "$top/packaging/package/compile.sh"

# Each cluster has a bridge and pod addresses of its own, so that two of them get along.
hash=$(printf %s "$run" | sha256sum)
bridge=olite-${hash:0:8}
subnet=10.244.$((16#${hash:8:2})).0/24
began=$(date -u +%Y-%m-%dT%H:%M:%S)
pids=()   # in start order; stopped in reverse
names=()
started_containerd=
start() { # start NAME COMMAND...: in a process group of its own, so that Ctrl-C reaches only this script
    local name=$1
    shift
    setsid "$@" >>"$LOGS/$name.log" 2>&1 </dev/null 6>&- 7>&- 8>&- &
    pids+=($!)
    names+=("$name")
}
stop_all() {
    local code=$? i pid
    exec 1>&6 2>&7
    trap '' INT TERM
    end_step
    printf '\n'
    [ ${#pids[@]} -eq 0 ] || note 'stopping; pods get up to 10 s to end'
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        pid=${pids[i]}
        if kill -TERM "$pid" 2>/dev/null; then
            for _ in $(seq 100); do
                kill -0 "$pid" 2>/dev/null || break
                sleep 0.1
            done
            kill -KILL "$pid" 2>/dev/null && note "${names[i]} had to be killed"
            wait "$pid" 2>/dev/null || true
        fi
        # The agent leaves containers alone when it stops, as it must on an upgrade. Here the whole cluster goes.
        [ "${names[i]}" != node-agent ] || stop_containers
    done
    # Only what this run's own containerd ran on it; containers that are left need it when the next run takes them over.
    [ -z "$started_containerd" ] || [ -z "$stopped" ] || ip link delete "$bridge" 2>/dev/null || true
    find /var/log/containers -maxdepth 1 -lname "$run/*" -delete 2>/dev/null || true
    [ ${#pids[@]} -eq 0 ] || ok "stopped$([ -z "$came_up" ] || echo '; make run continues from here')"
    exit "$code"
}
stopped=
came_up=
stop_containers() {
    local last=$((${#pids[@]} - 1))
    if [ -n "$started_containerd" ] && ! answers "$cri" >/dev/null 2>&1; then
        note 'containerd is not there any more; starting it again to stop the containers'
        start containerd containerd --config "$run/containerd/config.toml"
        for _ in $(seq 100); do
            answers "$cri" >/dev/null 2>&1 && break
            sleep 0.1
        done
    fi
    if "$bin/node-agent" pods stop --container-runtime-endpoint "unix://$cri" --root-dir "$run/kubelet" >>"$LOGS/stop.log" 2>&1; then
        stopped=1
    else
        note "some containers could not be stopped; see $LOGS/stop.log"
    fi
    # A containerd that was started just for this is no longer needed.
    if [ ${#pids[@]} -gt $((last + 1)) ]; then
        kill -TERM "${pids[last + 1]}" 2>/dev/null || true
        wait "${pids[last + 1]}" 2>/dev/null || true
    fi
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

wait_for() { # wait_for SECONDS TEXT NAME COMMAND...: until it succeeds; fails at once when the process NAME has ended
    local limit=$((SECONDS + $1)) text=$2 name=$3 i
    shift 3
    until "$@" >/dev/null 2>&1; do
        spin "waiting: $text"
        for i in "${!names[@]}"; do
            if [ "${names[i]}" = "$name" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
                unspin
                tail -n 20 "$LOGS/$name.log" >&2
                die "$name ended; its log is $LOGS/$name.log"
            fi
        done
        [ "$SECONDS" -lt "$limit" ] || {
            unspin
            tail -n 20 "$LOGS/$name.log" >&2
            die "timed out waiting until $text; see $LOGS/$name.log"
        }
        sleep 0.1
    done
    unspin
    ok "$text"
}

# --- runtime -------------------------------------------------------------------------------------------------------
answers() { [ -S "$1" ] && "$bin/node-agent" runtime version --container-runtime-endpoint "unix://$1"; }
cri=${CRI_SOCKET:-}
if [ -n "$cri" ]; then
    answers "$cri" >/dev/null 2>&1 || die "no container runtime answers at CRI_SOCKET=$cri"
else
    for socket in /run/containerd/containerd.sock /run/crio/crio.sock; do
        if answers "$socket" >/dev/null 2>&1; then
            cri=$socket
            break
        fi
    done
fi
if [ -n "$cri" ]; then
    ok "using the runtime at $cri"
else
    cri=$run/containerd/containerd.sock
    "$here/containerd.sh" "$run" "$cri" "$bridge" "$subnet"
    started_containerd=1
    start containerd containerd --config "$run/containerd/config.toml"
    wait_for 30 'containerd is up' containerd answers "$cri"
fi

# --- images --------------------------------------------------------------------------------------------------------
pause=registry.k8s.io/pause:3.10
if command -v ctr >/dev/null && [ "${cri##*/}" = containerd.sock ]; then
    [ -n "$started_containerd" ] || pause=$(containerd config dump 2>/dev/null | sed -n 's/^ *sandbox\(_image\)\? = "\(.*\)"/\2/p' | head -n 1)
    have() { grep -qxF "$1" <<<"$(ctr -a "$cri" -n k8s.io images ls -q)"; }
    if ! have "$pause" || ! have localhost/busybox:1; then
        step 'building the pause and example images' "$LOGS/images.log" "$top/packaging/images/build.sh" "$run/images" "$pause"
        for image in pause busybox; do
            step "importing the $image image" "$LOGS/images.log" ctr -a "$cri" -n k8s.io images import "$run/images/$image.tar"
        done
    fi
else
    note "images cannot be imported into $cri from here; the example needs localhost/busybox:1 there"
fi

# --- API server ----------------------------------------------------------------------------------------------------
export KUBECONFIG=$run/admin.conf
start apiserver-lite "$bin/apiserver-lite" serve --data-dir "$run/apiserver" --bind-address 127.0.0.1 --secure-port "$port"
ready() { curl -fsS --max-time 2 --cacert "$run/apiserver/pki/ca.crt" "https://127.0.0.1:$port/readyz"; }
wait_for 30 "apiserver-lite listens on https://127.0.0.1:$port" apiserver-lite ready
install -m 0600 "$run/apiserver/admin.conf" "$KUBECONFIG"
"$bin/apiserver-lite" kubeconfig --data-dir "$run/apiserver" --server "https://127.0.0.1:$port" \
    --user "system:node:$node" --group system:nodes --out "$run/agent.conf"

# --- node agent ----------------------------------------------------------------------------------------------------
mkdir -p "$run/kubelet" "$run/manifests"
reduced=
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then
    reduced=$'cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n'
    note 'cgroup v1 here: pods run without the QoS cgroup tree (cgroupsPerQOS: false)'
fi
cat >"$run/agent.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$cri
cgroupDriver: cgroupfs
address: 127.0.0.1
port: $agent_port
healthzPort: 0
staticPodPath: $run/manifests
podLogsDir: $run/pod-logs
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 50Mi
  nodefs.available: 16Mi
failSwapOn: false
resolvConf: $([ -e /run/systemd/resolve/resolv.conf ] && echo /run/systemd/resolve/resolv.conf || echo /etc/resolv.conf)
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: $run/apiserver/pki/ca.crt
authorization:
  mode: Webhook
$reduced
CONFIG
start node-agent "$bin/node-agent" run --config "$run/agent.yaml" --kubeconfig "$run/agent.conf" --root-dir "$run/kubelet" \
    --cert-dir "$run/kubelet/pki" --hostname-override "$node" --node-ip 127.0.0.1
embedded() { sed -n "s/^ *$1: //p" "$KUBECONFIG" | head -n 1 | base64 -d >"$run/$2"; }
(
    umask 077
    embedded client-certificate-data admin.crt
    embedded client-key-data admin.key
)
api() { # api METHOD PATH [CURL OPTION...]
    local method=$1 path=$2
    shift 2
    # Named, because curl's own name gets indented answers.
    curl -fsS -A make-run --max-time 10 --cacert "$run/apiserver/pki/ca.crt" --cert "$run/admin.crt" --key "$run/admin.key" \
        -X "$method" "$@" "https://127.0.0.1:$port$path"
}
# Said by this run's agent, and not left from an earlier one: the lease is renewed at once, the status only when it changes.
node_ready() {
    local lease
    lease=$(api GET "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/$node") || return 1
    [[ $(sed -n 's/.*"renewTime":"\([^"]*\)".*/\1/p' <<<"$lease") > $began ]] || return 1
    api GET "/api/v1/nodes/$node" | grep -q '"type":"Ready",[^}]*"status":"True"'
}
wait_for 60 "node $node is Ready" node-agent node_ready

# --- first pods ----------------------------------------------------------------------------------------------------
example=$top/docs/examples/first-pod.yaml
# The status in the API may be left from an earlier run until the agent has seen to the pod, so the agent is asked too.
pod_ready() {
    "$bin/node-agent" pods --root-dir "$run/kubelet" | awk -v name="$1" '
        $1 == "default" && $2 == name && $4 == "Running" { split($3, ready, "/"); up = ready[1] == ready[2] }
        END { exit !up }' || return 1
    api GET "/api/v1/namespaces/default/pods/$1" | grep -q '"type":"Ready",[^}]*"status":"True"'
}
if command -v kubectl >/dev/null; then
    # A pod that an earlier version of the example left cannot be changed; it runs on as it is.
    kubectl apply -f "$example" 2>"$LOGS/example.log" | sed 's/^/  /' ||
        note "the example differs from what runs already ($LOGS/example.log); kubectl replace --force -f $example"
else
    note 'no kubectl here (README.md says how to get it): applying the example with curl'
    mkdir -p "$run/example"
    rm -f "$run/example"/*
    awk -v dir="$run/example" 'BEGIN{n=1} /^---$/{n++; next} {print > (dir "/" n ".yaml")}' "$example"
    for document in "$run/example"/*.yaml; do
        kind=$(sed -n 's/^kind: *//p' "$document" | head -n 1)
        name=$(sed -n 's/^  name: *//p' "$document" | head -n 1)
        case $kind in ConfigMap) plural=configmaps ;; *) plural=pods ;; esac
        api PATCH "/api/v1/namespaces/default/$plural/$name?fieldManager=make-run&force=true" \
            -H 'Content-Type: application/apply-patch+yaml' --data-binary "@$document" >/dev/null
        say "  $kind/$name applied"
    done
fi
for pod in web hello; do
    wait_for 120 "pod $pod is ready" node-agent pod_ready "$pod"
done
say
if command -v kubectl >/dev/null; then
    kubectl get nodes,pods -o wide
    say
    kubectl logs --tail=5 --prefix --all-containers pod/web
    kubectl logs --tail=5 --prefix pod/hello
else
    for pod in web hello; do
        say "logs of $pod:"
        api GET "/api/v1/namespaces/default/pods/$pod/log?tailLines=5"
    done
fi
came_up=1
cat <<DONE

${c_bold}The cluster is up.${c_off} In another terminal:

  export KUBECONFIG=$KUBECONFIG

Logs are in $LOGS. Ctrl-C stops everything.
DONE
# Ends when any of the daemons does; a signal ends the wait through the traps. Ctrl-C is the wished end from here on.
trap 'exit 0' INT TERM
set +e
wait -n "${pids[@]}" 2>/dev/null
for i in "${!pids[@]}"; do
    kill -0 "${pids[i]}" 2>/dev/null || die "${names[i]} ended by itself; its log is $LOGS/${names[i]}.log"
done
