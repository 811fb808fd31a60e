# Standard input has the names of objects that were acknowledged before the power went: each is there, whole.
cat >"$state/acknowledged"
until_true 300 'the API server is ready' api_up
[ -s "$state/acknowledged" ] || fail 'nothing was written before the cut'
field /api/v1/namespaces/default/configmaps '.items[] | select((.data.k // "") | length == 512).metadata.name' | sort >"$state/there"
lost=$(sort "$state/acknowledged" | comm -23 - "$state/there")
[ -z "$lost" ] || fail "lost: $(wc -l <<<"$lost") of $(wc -l <"$state/acknowledged"): $(head -n 3 <<<"$lost" | xargs)"
ok "all $(wc -l <"$state/acknowledged") objects that were acknowledged are there"
apiserver-lite check || fail 'the store is damaged'
api DELETE /api/v1/namespaces/default/configmaps -o /dev/null
ready
web_again() { pod_is web && [ -n "$(process web)" ]; }
until_true 240 'the pod runs again' web_again
same 'processes of the pod' 1 "$(pgrep -fc '^sleep 86399$')"
