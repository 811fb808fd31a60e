# Writes objects as fast as it can until the machine dies, and says the name of each that was acknowledged.
api GET /healthz >/dev/null
prefix=$(tr -d - </proc/sys/kernel/random/uuid | head -c 8)
# One curl each, as a new process costs seconds in an emulator; it reads all of its orders before it begins.
writer() { # writer NUMBER
    awk -v name="cut-$prefix-$1" -v server="$server" -v state="$state" 'BEGIN {
        data = sprintf("%0512d", 0)
        for (i = 1; i <= 500; i++) {
            if (i > 1) print "next"
            printf "url = \"%s/api/v1/namespaces/default/configmaps\"\nrequest = POST\noutput = /dev/null\n", server
            print "header = \"Content-Type: application/json\"\ncacert = /var/lib/apiserver-lite/pki/ca.crt"
            printf "cert = %s/crt\nkey = %s/key\nwrite-out = \"%%{http_code} %s-%d\\n\"\n", state, state, name, i
            printf "data = \"{\\\"apiVersion\\\":\\\"v1\\\",\\\"kind\\\":\\\"ConfigMap\\\",\\\"metadata\\\":{\\\"name\\\":\\\"%s-%d\\\"},\\\"data\\\":{\\\"k\\\":\\\"%s\\\"}}\"\n", name, i, data
        }
    }' | stdbuf -oL curl -s -K - | sed -un 's/^201 //p'
}
for number in 1 2 3; do writer $number & done
wait
