# What fences a pod in: seccomp, AppArmor, user namespace, read-only mounts, sysctls.
mkdir -p /var/lib/kubelet/seccomp
echo '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}' \
    >/var/lib/kubelet/seccomp/no-mkdir.json
cat >/etc/apparmor.d/suite-no-etc <<'PROFILE'
profile suite-no-etc flags=(attach_disconnected,mediate_deleted) {
  file,
  network,
  capability,
  signal,
  ptrace,
  deny /etc/** w,
}
PROFILE
apparmor_parser -r /etc/apparmor.d/suite-no-etc
mkdir -p /run/suite-mount/below
mountpoint -q /run/suite-mount/below || mount -t tmpfs below /run/suite-mount/below

pod seccomp '{"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "no-mkdir.json"}}}'
pod defaults '{}' '{"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}'
pod armour '{"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "suite-no-etc"}}}'
pod unarmed '{"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}'
pod users '{}' '{"hostUsers": false}'
# Before containerd 2 there are no user namespaces and no recursively read-only mounts, and the node says neither of them.
if runtime_is 2.0; then newer=1 deep=Enabled became=Enabled; else newer= deep=IfPossible became=Disabled; fi
# A class that is called otherwise than its handler.
api GET /apis/node.k8s.io/v1/runtimeclasses/suite-usual -o /dev/null 2>/dev/null ||
    post /apis/node.k8s.io/v1/runtimeclasses '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "suite-usual"}, "handler": "runc"}'
pod mounts '{"volumeMounts": [{"name": "v", "mountPath": "/plain", "readOnly": true}, {"name": "v", "mountPath": "/deep", "readOnly": true, "recursiveReadOnly": "'$deep'"}],
    "securityContext": {"readOnlyRootFilesystem": true}}' '{"runtimeClassName": "suite-usual", "volumes": [{"name": "v", "hostPath": {"path": "/run/suite-mount"}}]}'
pod sysctls '{}' '{"securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}, {"name": "kernel.shm_rmid_forced", "value": "1"}]}}'
pod unsafe '{}' '{"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "4096"}]}}'
pod missing '{"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "suite-not-there"}}}'
[ -n "$newer" ] || pod deeper '{"volumeMounts": [{"name": "v", "mountPath": "/deep", "readOnly": true, "recursiveReadOnly": "Enabled"}]}' \
    '{"volumes": [{"name": "v", "hostPath": {"path": "/run/suite-mount"}}]}'
for name in seccomp defaults armour unarmed ${newer:+users} mounts sysctls; do runs $name; done

! inside seccomp mkdir /tmp/x 2>/dev/null || fail 'the profile lets mkdir through'
inside seccomp touch /tmp/x || fail 'the profile forbids more than mkdir'
ok 'a seccomp profile forbids what it should'
same 'seccomp of RuntimeDefault' 2 "$(awk '/^Seccomp:/ {print $2}' "/proc/$(process defaults)/status")"
same 'seccomp without a profile' 0 "$(awk '/^Seccomp:/ {print $2}' "/proc/$(process unarmed)/status")"
same 'AppArmor by default' 'cri-containerd.apparmor.d (enforce)' "$(cat "/proc/$(process defaults)/attr/current")"
same 'AppArmor of one of ours' 'suite-no-etc (enforce)' "$(cat "/proc/$(process armour)/attr/current")"
# Debian's profile of that name for runc confines nothing.
same 'AppArmor off' unconfined "$(sed 's/^runc (\(.*\))$/\1/' "/proc/$(process unarmed)/attr/current")"
! inside armour touch /etc/x 2>/dev/null || fail 'the AppArmor profile lets writes to /etc through'
held_back() { ! pod_is missing && [ -n "$(seen missing '.status.containerStatuses[0].state.waiting.message // .status.message // empty')" ]; }
until_true 60 'a pod whose AppArmor profile is not loaded does not start' held_back
ok "$(seen missing '.status | [.phase, .reason, .message, .containerStatuses[0].state.waiting.message] | map(select(. != null)) | join(": ")')"
waits() { look "$1" && seen "$1" '.status.containerStatuses[0].state.waiting.message' | grep -qF "$2"; } # waits POD TEXT
event_of() { # event_of POD REASON TEXT
    field "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=$1,reason=$2" '.items[].message' | grep -qF "$3"
}
features=$(field "/api/v1/nodes/$node" '[.status.runtimeHandlers[]? | select(.name == "").features | .userNamespaces, .recursiveReadOnlyMounts] | join(" ")')
if [ -n "$newer" ]; then
    same 'what the node says of its runtime' 'true true' "$features"
    read -r inner outer size <"/proc/$(process users)/uid_map"
    if [ "$inner" = 0 ] && [ "$outer" -ge 65536 ] && [ "$size" = 65536 ]; then ok "user namespace: 0 is $outer"; else fail "uid_map $inner $outer $size"; fi
    same 'who it is inside' 0 "$(inside users id -u)"
    same 'whose process it is outside' "$outer" "$(stat -c %u "/proc/$(process users)")"
else
    same 'what the node says of its runtime' '' "$features"
    until_true 60 'a pod of its own users is refused' event_of users FailedCreatePodSandBox 'the handler "" is not known'
    until_true 60 'so is a recursively read-only mount' waits deeper 'requested recursive read-only mode, but it is not supported by the runtime'
    remove deeper
fi
! inside mounts touch /x 2>/dev/null || fail 'the root file system is written to'
! inside mounts touch /plain/x 2>/dev/null || fail 'a read-only mount is written to'
inside mounts touch /plain/below/x || fail 'a mount below a read-only one that is not recursive is read-only'
if [ -n "$newer" ]; then
    ! inside mounts touch /deep/below/x 2>/dev/null || fail 'a mount below a recursively read-only one is written to'
else
    inside mounts touch /deep/below/x || fail 'a mount is recursively read-only, of which the runtime says nothing'
fi
ok 'read-only mounts'
same 'recursiveReadOnly in the status' "/plain Disabled
/deep $became" "$(seen mounts '.status.containerStatuses[0].volumeMounts[] | select(.name == "v") | "\(.mountPath) \(.recursiveReadOnly)"')"
same 'a sysctl of the network' 80 "$(inside sysctls cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
same 'a sysctl of IPC' 1 "$(inside sysctls cat /proc/sys/kernel/shm_rmid_forced)"
until_true 60 'an unsafe sysctl is refused' phase_is unsafe Failed
same 'the reason' SysctlForbidden "$(seen unsafe .status.reason)"
remove seccomp defaults armour unarmed users mounts sysctls unsafe missing
umount /run/suite-mount/below
