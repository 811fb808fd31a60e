# A wrong authority is refused; the printed command makes the machine a node; a pod runs below kubepods.slice.
command=$(apiserver-lite token create --print-join-command --server "$server")
if [ ! -e /etc/orchestrator-lite/node-agent.kubeconfig ]; then
    ! ${command%sha256:*}sha256:"$(printf '0%.0s' {1..64})" || fail 'joined a cluster of another authority'
    ok 'a wrong authority is refused'
    $command || fail "$command"
fi
ready
web
case $(cgroup_of web) in /kubepods.slice/*) ok 'its cgroup is below kubepods.slice' ;; *) fail "cgroup $(cgroup_of web)" ;; esac
