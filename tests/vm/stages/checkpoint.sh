# A container that runs is written to an archive by criu, and goes on.
pod counter '{"command": ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 1; done"]}'
runs counter
before=$(process counter)
answer=$(agent /checkpoint/default/counter/c -X POST) || fail "no checkpoint: $(agent /checkpoint/default/counter/c -X POST --no-fail)"
archive=$(jq -r '.items[0]' <<<"$answer")
[ -s "$archive" ] || fail "no archive: $answer"
same "mode of $archive" '600 root' "$(stat -c '%a %U' "$archive")"
for member in checkpoint/ config.dump spec.dump; do
    tar -tf "$archive" | grep -q "$member" || fail "$member is not in it: $(tar -tf "$archive" | head -n 20)"
done
ok 'it holds the container'
same 'whose it is' default/counter "$(node-agent checkpoint inspect --output json "$archive" | jq -r '"\(.namespace)/\(.pod)"')"
same 'the process that was dumped' "$before" "$(process counter)"
rm "$archive"
remove counter
