# Writes objects as fast as it can until the machine dies, and says the name of each that was acknowledged.
api GET /healthz >/dev/null
prefix=$(tr -d - </proc/sys/kernel/random/uuid | head -c 8)
writer() { # writer NUMBER
    local i
    for i in $(seq 2000); do
        printf 'next\nurl = "%s/api/v1/namespaces/default/configmaps"\nrequest = POST\noutput = /dev/null\nheader = "Content-Type: application/json"\n' "$server"
        printf 'write-out = "%%{http_code} cut-%s-%s-%s\\n"\n' "$prefix" "$1" "$i"
        printf 'data = "{\\"apiVersion\\":\\"v1\\",\\"kind\\":\\"ConfigMap\\",\\"metadata\\":{\\"name\\":\\"cut-%s-%s-%s\\"},\\"data\\":{\\"k\\":\\"%0512d\\"}}"\n' "$prefix" "$1" "$i" 0
        printf 'cacert = /var/lib/apiserver-lite/pki/ca.crt\ncert = %s\nkey = %s\n' "$state/crt" "$state/key"
    done | sed 1d | stdbuf -oL curl -s -K - | sed -un 's/^201 //p'
}
for number in 1 2 3; do writer $number & done
wait
