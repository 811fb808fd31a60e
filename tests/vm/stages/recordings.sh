# Pods are run as a recorded kubelet runs them, with cgroups for pods and classes. Not one of the usual stages: it wants
# /root/node-recordings (noderec.py and its cases), /root/lab/ociimage.py, the runtime's protocol file, and python3 with yaml,
# grpc and grpc_tools (VM_EXTRA of image.sh). ONLY is a pattern of case names, EXTRA more arguments; with SHORT only
# the case that was recorded with cgroups.
dir=/root/recorded
rm -rf $dir
mkdir -p $dir/{got,static,images,kubelet}
systemctl stop node-agent
node-agent pods stop
for unit in recorded-api recorded-proxy recorded-agent; do systemctl stop $unit 2>/dev/null || true; systemctl reset-failed $unit 2>/dev/null || true; done
(
    cd $dir/images
    printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\napp:x:1000:2000::/:/bin/sh\n' >passwd
    printf 'root:x:0:\napp:x:2000:\nextra:x:3000:app\nnogroup:x:65534:\n' >group
    image() { # image NAME OPTION...
        python3 /root/lab/ociimage.py "$1.tar" "noderec.test/$1:1" "${@:2}" --cmd sh /usr/bin/busybox=/bin/busybox @busybox=/bin/sh @busybox=/bin/sleep \
            passwd=/etc/passwd:644 group=/etc/group:644 /tmp/:1777 /data/
        ctr -n k8s.io images import "$1.tar" >/dev/null
    }
    image box
    image user --user 1000
    image named --user app
    ctr -n k8s.io images tag --force localhost/busybox:1 docker.io/library/busybox:latest >/dev/null
)
printf 'nameserver 192.0.2.53\nsearch node.example\noptions timeout:1\n' >$dir/resolv.conf
systemd-run -q --unit recorded-api apiserver-lite serve --data-dir $dir/api --secure-port 7443 --controllers=-\* --scheduler=false
until_true 240 'an API server of its own' curl -fsSk https://127.0.0.1:7443/readyz
# Its waits are as patient as ours.
sed "s/step\.get('within', 40)/${PATIENCE:-1} * &/; s/time\.time() + 75/time.time() + 75 * ${PATIENCE:-1}/" /root/node-recordings/noderec.py >$dir/noderec.py
noderec() { # noderec MODE ARGUMENT...
    python3 $dir/noderec.py "$1" --runtime /run/containerd/containerd.sock --log $dir/calls.log \
        --proto /root/runtime_v1.proto --stubs $dir/stubs "${@:2}"
}
noderec proxy --listen $dir/proxy.sock >$dir/proxy.log 2>&1 &
proxy=$!
trap 'kill $proxy' EXIT
until_true 120 'the proxy listens' test -S $dir/proxy.sock
# Before containerd 2 the runtime says neither its cgroup driver nor a container's user.
if runtime_is 2.0; then driver= users=1; else driver='cgroupDriver: systemd' users=; fi
cat >$dir/agent.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$dir/proxy.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $dir/resolv.conf
staticPodPath: $dir/static
port: 20260
healthzPort: 20258
$driver
YAML
systemd-run -q --unit recorded-agent -p KillMode=process -p Delegate=yes node-agent run --config $dir/agent.yaml \
    --kubeconfig $dir/api/admin.conf --root-dir $dir/kubelet --cert-dir $dir/pki --hostname-override recorded
agent_is_up() { curl -fsS http://127.0.0.1:20258/healthz; }
until_true 120 'the agent is up' agent_is_up
sleep 20
# The one recording with cgroups was made on cgroup v1, without systemd, by containerd 1.6, on a machine with more memory:
# what it says of them is said in this machine's words.
cp -r /root/node-recordings/cases $dir/cases
# The player takes this machine's name out of all that it sees, the search domain too.
[ "$(hostname)" != node ] || sed -i 's/node\.example/<host>.example/g' $dir/cases/*.recorded.json
python3 - $dir/cases/resize.full "$users" <<'PYTHON'
import json, re, sys
cases, recorded = (open(sys.argv[1] + end).read() for end in (".yaml", ".recorded.json"))
cases = cases.replace("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max").replace("steps:", "mask: [['(kubepods-[a-z]+-pod)[0-9a-f_]{36}', '\\1<uid:p>']]\nsteps:", 1)
recorded, paths = re.subn(r'"/kubepods/(\w+)/pod<uid:p>"', r'"/kubepods.slice/kubepods-\1.slice/kubepods-\1-pod<uid:p>.slice"', recorded)
assert paths == 1, paths
memory = int(re.search(r"^MemTotal: *(\d+) kB", open("/proc/meminfo").read())[1]) * 1024
def here(value):
    if isinstance(value, list):
        return [here(v) for v in value]
    if not isinstance(value, dict):
        return value
    value = {k: here(v) for k, v in value.items()}
    if value.get("oom_score_adj") == "999":
        # Swap has a limit of its own in cgroup v2.
        del value["memory_swap_limit_in_bytes"]
        value |= {"oom_score_adj": str(1000 - 1000 * (8 << 20) // memory), "unified": {"memory.oom.group": "1", "memory.swap.max": "0"}}
    if value.get("call") == "RunPodSandbox":
        value["request"]["config"]["linux"]["resources"]["unified"] = {"memory.oom.group": "1"}
    if value.get("stdout") == ["20000", ""]:
        value["stdout"] = ["20000 100000", ""]
    if sys.argv[2] and "restartCount" in value and value.get("containerID"):
        value["user"] = {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}}
    return value
recorded = json.dumps(here(json.loads(recorded)))
for end, text in (".yaml", cases), (".recorded.json", recorded):
    open(sys.argv[1] + end, "w").write(text)
PYTHON
status=0
noderec check --kubeconfig $dir/api/admin.conf --node recorded --root-dir $dir/kubelet --static-dir $dir/static --got $dir/got --verbose --diffs 40 $dir/cases/resize.full.yaml || status=1
[ -n "${SHORT:-}" ] || noderec check --ignore-resources --kubeconfig $dir/api/admin.conf --node recorded --root-dir $dir/kubelet --static-dir $dir/static --got $dir/got --jobs "${JOBS:-2}" \
    ${ONLY:+--only "$ONLY"} ${EXTRA:-} || status=1
systemctl stop recorded-agent
node-agent pods stop --root-dir $dir/kubelet
systemctl stop recorded-api
systemctl start node-agent
web
# Of every other pod the recordings say no cgroup, as they were made without: it is the whole path to the slice of its class.
jq -r 'select(.method == "RunPodSandbox").request.config.linux.cgroup_parent' $dir/calls.log >$dir/parents
other=$(grep -vxE '/kubepods.slice/(kubepods-(burstable|besteffort).slice/kubepods-\2-pod|kubepods-pod)([0-9a-f]{32}|[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}).slice' $dir/parents || true)
same 'pods that the runtime was told another cgroup of' '' "$other"
[ -s $dir/parents ] || fail 'no pod was seen on its way to the runtime'
ok "$(sort $dir/parents | uniq | wc -l) pods had their slice, for one $(tail -n 1 $dir/parents)"
[ "$status" = 0 ] || fail 'some cases differ'
