# A backup brings the cluster back, restored by root for a server that is another user; nodes and pods go on with it.
maps=/api/v1/namespaces/default/configmaps
map() { printf '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "%s"}}' "$1"; }
web
before=$(process web)
api DELETE $maps/suite-kept -o /dev/null 2>/dev/null || true
post $maps "$(map suite-kept)"
rm -f /root/backup
apiserver-lite backup /root/backup || fail 'no backup'
post $maps "$(map suite-later)"
systemctl stop apiserver-lite
rm -rf /var/lib/apiserver-lite/store.old
mv /var/lib/apiserver-lite/store /var/lib/apiserver-lite/store.old
apiserver-lite restore /root/backup || fail 'no restore'
same 'files of the store that are not of the server' '' "$(find /var/lib/apiserver-lite/store ! -user apiserver-lite)"
systemctl start apiserver-lite || fail 'the server does not start on what was restored'
until_true 120 'the API server is ready' api_up
api GET $maps/suite-kept -o /dev/null || fail 'what was in the backup is not there'
! api GET $maps/suite-later -o /dev/null 2>/dev/null || fail 'what came after the backup is there'
ok 'what was in the backup is there, what came later is not'
sleep 5
ready
web
same 'the process of the pod' "$before" "$(process web)"
# What is written from now on reaches the agent: it has begun anew, at a revision that it had never seen.
pod again
runs again
remove again
api DELETE $maps/suite-kept -o /dev/null
rm -rf /var/lib/apiserver-lite/store.old
