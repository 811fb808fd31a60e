# What the stages share. Sourced by suite.sh; runs inside the machine.
export KUBECONFIG=/var/lib/apiserver-lite/admin.conf
server=https://10.0.2.15:6443
state=/run/suite
mkdir -m 0700 -p "$state"

fail() {
    echo "FAILED: $*" >&2
    journalctl -q --no-pager -o cat -n 40 -u node-agent -u apiserver-lite >&2 || true
    exit 1
}
ok() { echo "  ok: $*"; }
until_true() { # until_true SECONDS TEXT COMMAND...; PATIENCE times the seconds
    local since=$SECONDS limit=$((SECONDS + $1 * ${PATIENCE:-1})) text=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$limit" ] || fail "never: $text"
        sleep 1
    done
    ok "$text, after $((SECONDS - since)) s"
}
# same TEXT WANTED GOT
same() { if [ "$2" = "$3" ]; then ok "$1: $3"; else fail "$1: wanted $2, got $3"; fi; }

# There is no kubectl in Debian that fits: curl as the administrator.
secret() { sed -n "s/^ *$1: //p" "$KUBECONFIG" | head -n 1 | base64 -d; }
api() { # api METHOD PATH [CURL OPTION...]
    local method=$1 path=$2
    shift 2
    [ -s "$state/key" ] || { secret client-certificate-data >"$state/crt"; secret client-key-data >"$state/key"; }
    curl -fsS -A suite --max-time 60 --cacert /var/lib/apiserver-lite/pki/ca.crt --cert "$state/crt" --key "$state/key" -X "$method" "$@" "$server$path"
}
post() { api POST "$1" -H 'Content-Type: application/json' -o /dev/null --data-binary "$2"; }
field() { api GET "$1" | jq -r "$2"; }
pods=/api/v1/namespaces/default/pods
pid() { systemctl show -P MainPID "$1"; }

# runtime_is VERSION: containerd of this version or a newer one.
runtime_is() { printf '%s\n' "$1" "$(containerd --version | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)" | sort -VC; }

node=${NODE:-node}
node_condition() { field "/api/v1/nodes/${2:-$node}" ".status.conditions[] | select(.type == \"$1\").status"; }
node_is() { [ "$(node_condition Ready "${2:-}")" = "$1" ]; }
# A request costs seconds in an emulator, so the last state that was seen of each pod is kept.
look() { api GET "$pods/$1" -o "$state/pod-$1.new" && mv "$state/pod-$1.new" "$state/pod-$1"; }
seen() { jq -r "$2" "$state/pod-$1"; } # seen POD FILTER
pod_is() { look "$1" && [ "$(seen "$1" '.status.conditions[]? | select(.type == "Ready").status')" = True ]; }
phase_is() { look "$1" && [ "$(seen "$1" .status.phase)" = "$2" ]; }
pod_gone() { ! api GET "$pods/$1"; }
api_up() { curl -fsSk "$server/readyz"; }
ready() { until_true 240 "the node is Ready" node_is True; }

# pod NAME CONTAINER [SPEC]: one container of busybox that sleeps; both are members of JSON objects, which win. A stage that
# failed and runs again goes on with the pods that are there.
pod() {
    ! look "$1" 2>/dev/null || return 0
    post "$pods" "$(jq -n --arg name "$1" --argjson container "${2:-{\}}" --argjson spec "${3:-{\}}" '{apiVersion: "v1", kind: "Pod",
        metadata: {name: $name}, spec: ({terminationGracePeriodSeconds: 1, containers: [
        {name: "c", image: "localhost/busybox:1", command: ["sleep", "86399"]} + $container]} + $spec)}')" || fail "pod $1 is refused"
}
runs() { until_true 240 "pod $1 is ready" pod_is "$1"; }
# One after another: a runtime that is asked to end many at once in an emulator misses its own deadlines.
remove() {
    local name
    for name; do
        api DELETE "$pods/$name?gracePeriodSeconds=1" -o /dev/null || true
        until_true 180 "pod $name is gone" pod_gone "$name"
    done
}
# The pod that the stages share; one that was ended is made anew.
web() {
    ! phase_is web Failed 2>/dev/null || remove web
    pod web '{"ports": [{"containerPort": 8080, "hostPort": 8081}]}' '{"restartPolicy": "Always"}'
    runs web
}
uid() { seen "$1" .metadata.uid; }
container_id() { seen "$1" '.status.containerStatuses[0].containerID' | sed 's|.*//||'; }
# By the container's cgroup, which has the id in its name; asking the runtime takes long.
scope() { find /sys/fs/cgroup/kubepods* /sys/fs/cgroup/two* -type d -name "*$(container_id "$1")*" 2>/dev/null | head -n 1; }
# crun puts a container's processes one cgroup further down.
process() {
    local folder
    folder=$(scope "$1")
    [ -n "$folder" ] && find "$folder" -name cgroup.procs -exec cat {} + | sort -n | head -n 1
}
cgroup_of() { scope "$1" | sed 's|^/sys/fs/cgroup||'; }
cgroup_file() { cat "/sys/fs/cgroup$1/$2" 2>/dev/null || echo missing; }
# What a command says inside a pod's container.
inside() { # inside POD COMMAND...
    local pod=$1
    shift
    ctr -n k8s.io tasks exec --exec-id "suite-$RANDOM$RANDOM" "$(container_id "$pod")" "$@"
}
# A request to the agent's own server, as the administrator.
agent() { # agent PATH [CURL OPTION...]
    local path=$1
    shift
    api GET /healthz >/dev/null
    curl -fsSk --max-time 60 --cert "$state/crt" --key "$state/key" "$@" "https://127.0.0.1:10250$path"
}
conf=/etc/orchestrator-lite/node-agent.conf.d
# driver_is DRIVER: said to the agent when the runtime does not tell its own, which those before containerd 2 do not.
driver_is() {
    runtime_is 2.0 || printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: %s\n' "$1" >"$conf/20-suite-driver.conf"
}
# configure NAME YAML: a drop-in for the agent's configuration, which is restarted with it.
configure() {
    printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n%s\n' "$2" >"$conf/$1.conf"
    restart_agent
}
unconfigure() { rm -f "$conf/$1.conf"; restart_agent; }
restart_agent() {
    systemctl restart node-agent || fail 'the agent does not start again'
    ready
}
