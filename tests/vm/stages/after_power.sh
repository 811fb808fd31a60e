# After a power cut the store is whole, the node Ready, the pod there once.
until_true 300 'the API server is ready' api_up
apiserver-lite check || fail 'the store is damaged'
ready
web_again() { pod_is web && [ -n "$(process web)" ]; }
until_true 240 'the pod runs again' web_again
same 'processes of the pod' 1 "$(pgrep -fc '^sleep 86399$')"
