# Pods of crun beside those of runc, by their runtime class: started, looked into, probed, resized, restarted and ended; and what
# of a pod depends on how new the runtime is, as volumes from images do.
command -v crun >/dev/null || { ok 'skipped: there is no crun'; exit 0; }
ok "$(containerd --version | cut -d' ' -f3), $(runc --version | head -n 1), $(crun --version | head -n 1)"
api GET /apis/node.k8s.io/v1/runtimeclasses/crun -o /dev/null 2>/dev/null ||
    post /apis/node.k8s.io/v1/runtimeclasses '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "crun"}, "handler": "crun"}'
crun='{"runtimeClassName": "crun", "restartPolicy": "Always"}'
pod other '{"resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "48Mi"}},
    "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 20},
    "lifecycle": {"postStart": {"exec": {"command": ["touch", "/tmp/ready"]}}},
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000, "readOnlyRootFilesystem": true},
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}' \
    "$(jq -n "$crun"' + {volumes: [{name: "tmp", emptyDir: {medium: "Memory"}}]}')"
runs other
# Both keep a container's state in one folder, in files of other names.
state_of=/run/containerd/runc/k8s.io/$(container_id other)
[ -e "$state_of/status" ] && [ ! -e "$state_of/state.json" ] || fail "its container is not crun's: $(ls "$state_of")"
ok "its container is crun's"
same 'who it is' 1000 "$(inside other id -u)"
same 'its seccomp' 2 "$(awk '/^Seccomp:/ {print $2}' "/proc/$(process other)/status")"
! inside other touch /x 2>/dev/null || fail 'its root file system is written to'
same 'its quota' '20000 100000' "$(cgroup_file "$(cgroup_of other)" cpu.max)"
same 'its memory' $((48 << 20)) "$(cgroup_file "$(cgroup_of other)" memory.max)"
own=$(sed -n 's|^0::||p' "/proc/$(process other)/cgroup")
same 'memory.oom.group where its processes are' 1 "$(cgroup_file "$own" memory.oom.group)"

before=$(process other)
api PATCH "$pods/other/resize" -H 'Content-Type: application/strategic-merge-patch+json' -o /dev/null \
    --data-binary '{"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "400m", "memory": "64Mi"}}}]}}'
resized() { [ "$(cgroup_file "$(cgroup_of other)" cpu.max)" = '40000 100000' ] && [ "$(cgroup_file "$(cgroup_of other)" memory.max)" = $((64 << 20)) ]; }
until_true 120 'it is resized where it is' resized
same 'its process' "$before" "$(process other)"
actual() { look other && [ "$(seen other '.status.containerStatuses[0].resources.limits.cpu')" = 400m ]; }
until_true 60 'its status has the new limits' actual
restart_agent
same 'its process after a restart of the agent' "$before" "$(process other)"
kill -9 "$before"
again() { pod_is other && [ "$(seen other '.status.containerStatuses[0].restartCount')" = 1 ]; }
until_true 240 'it is started again after its end' again
same 'what its end was' 137 "$(seen other '.status.containerStatuses[0].lastState.terminated.exitCode')"
remove other

pod filled '{"volumeMounts": [{"name": "v", "mountPath": "/image"}]}' '{"volumes": [{"name": "v", "image": {"reference": "localhost/busybox:1", "pullPolicy": "Never"}}]}'
if runtime_is 2.1; then
    runs filled
    inside filled test -x /image/bin/busybox || fail 'the image is not in the volume'
    ! inside filled touch /image/x 2>/dev/null || fail 'a volume from an image is written to'
    ok 'a volume from an image, read-only'
else
    # The kubelet asks for it all the same, and an older runtime says no.
    refused() { look filled && seen filled '.status.containerStatuses[0].state.waiting | .reason, .message' | grep -qE 'CreateContainerError|ErrImagePull|ImageVolume|RunContainerError'; }
    until_true 120 'a runtime without volumes from images starts no container with one' refused
    ok "$(seen filled '.status.containerStatuses[0].state.waiting | "\(.reason): \(.message)"')"
fi
remove filled
