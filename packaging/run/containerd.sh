#!/usr/bin/env bash
# Writes config.toml for a containerd of our own and its CNI network:  containerd.sh RUN_DIR SOCKET BRIDGE SUBNET [SUBNET6]
#
# With SUBNET6 pods have an IPv6 address as well. RUN_DIR/certs.d is the folder of registries (NAME/hosts.toml), which
# containerd reads at each pull.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/say.sh"
run=$1 socket=$2 bridge=$3 subnet=$4 subnet6=${5:-}
mkdir -p "$run/containerd" "$run/cni/net.d" "$run/certs.d"

# Lowering a process's OOM score takes CAP_SYS_RESOURCE (bit 24). Without it runc fails with an unrelated text, so
# containerd is told not to try.
restrict=false
caps=$((16#$(sed -n 's/^CapEff:\s*//p' /proc/self/status)))
if ((!(caps >> 24 & 1))); then
    restrict=true
    note 'no CAP_SYS_RESOURCE here: containerd keeps OOM scores as they are (restrict_oom_score_adj)'
fi
snapshotter=overlayfs
probe=$(mktemp -d "$run/overlay.XXXX")
mkdir "$probe"/{lower,upper,work,merged}
if mount -t overlay overlay -o "lowerdir=$probe/lower,upperdir=$probe/upper,workdir=$probe/work" "$probe/merged" 2>/dev/null; then
    umount "$probe/merged"
else
    snapshotter=native
    note 'overlay does not mount here: containerd copies image layers (native snapshotter)'
fi
rm -rf "$probe"
apparmor=
if [ -e /sys/module/apparmor/parameters/enabled ] && ! command -v apparmor_parser >/dev/null; then
    apparmor='disable_apparmor = true'
fi
major=$(containerd --version | sed -n 's/.* v\?\([0-9]\+\)\.[0-9].*/\1/p')
case ${major:-1} in
    1)
        version=2
        cri='[plugins."io.containerd.grpc.v1.cri"]'
        runtime='[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
        containerd_table='[plugins."io.containerd.grpc.v1.cri".containerd]'
        cni='[plugins."io.containerd.grpc.v1.cri".cni]'
        sandbox='sandbox_image = "registry.k8s.io/pause:3.10"'
        pinned=
        snapshot_table=
        registry='[plugins."io.containerd.grpc.v1.cri".registry]'
        ;;
    *)
        version=3
        cri='[plugins."io.containerd.cri.v1.runtime"]'
        runtime='[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc'
        containerd_table='[plugins."io.containerd.cri.v1.runtime".containerd]'
        cni='[plugins."io.containerd.cri.v1.runtime".cni]'
        sandbox=
        pinned=$'[plugins."io.containerd.cri.v1.images".pinned_images]\n  sandbox = "registry.k8s.io/pause:3.10"'
        registry='[plugins."io.containerd.cri.v1.images".registry]'
        snapshot_table=$'[plugins."io.containerd.cri.v1.images"]\n  snapshotter = "'$snapshotter'"'
        ;;
esac
# A shim that is late is taken for dead when containerd starts again, and its containers go. Five seconds and two, the
# defaults, are little where two cores do everything.
cat >"$run/containerd/config.toml" <<CONFIG
version = $version
root = "$run/containerd/root"
state = "$run/containerd/state"

[grpc]
  address = "$socket"

[timeouts]
  "io.containerd.timeout.shim.load" = "30s"
  "io.containerd.timeout.task.state" = "10s"

$cri
  $sandbox
  restrict_oom_score_adj = $restrict
  $apparmor

$containerd_table
  default_runtime_name = "runc"
  $([ "$version" = 2 ] && echo "snapshotter = \"$snapshotter\"")

$runtime]
  runtime_type = "io.containerd.runc.v2"

$runtime.options]
  SystemdCgroup = false

$cni
  bin_dir = "/usr/lib/cni"
  conf_dir = "$run/cni/net.d"

$registry
  config_path = "$run/certs.d"

$snapshot_table
$pinned
CONFIG
masquerade=true
iptables -t nat -L -n >/dev/null 2>&1 || masquerade=false
ports=
[ "$masquerade" = true ] && ports=',
    {"type": "portmap", "capabilities": {"portMappings": true}}'
[ "$masquerade" = true ] || note 'iptables does not work here: pods reach the node but not the world, and host ports are off'
ranges="[{\"subnet\": \"$subnet\"}]" routes='{"dst": "0.0.0.0/0"}'
if [ -n "$subnet6" ]; then
    ranges+=", [{\"subnet\": \"$subnet6\"}]" routes+=', {"dst": "::/0"}'
fi
cat >"$run/cni/net.d/10-pods.conflist" <<CONFIG
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "$bridge",
      "isGateway": true,
      "ipMasq": $masquerade,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "dataDir": "$run/cni/ipam",
        "ranges": [$ranges],
        "routes": [$routes]
      }
    }$ports
  ]
}
CONFIG
