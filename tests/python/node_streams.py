"""Logs, commands and ports of a pod, as programs with the official Python client use them, through the API server:

  python node_streams.py KUBECONFIG NODE IMAGE"""
import json
import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, RESIZE_CHANNEL

from common import until

kubeconfig, node, image = sys.argv[1:]
config.load_kube_config(config_file=kubeconfig)
core = client.CoreV1Api()
SPACE, NAME = "default", "streams"


def say(lines):
    return "; ".join(f"echo {line}" for line in lines)


container = client.V1Container(
    name="main",
    image=image,
    image_pull_policy="Never",
    command=["sh", "-c", f"{say(['one', 'two'])}; echo bad >&2; while [ ! -e /go ]; do sleep 0.1; done; {say(['three'])}; exec httpd -f -p 8080 -h /www"],
)
spec = client.V1PodSpec(node_name=node, containers=[container], termination_grace_period_seconds=0)
core.create_namespaced_pod(SPACE, client.V1Pod(metadata=client.V1ObjectMeta(name=NAME), spec=spec))
for event in watch.Watch().stream(core.list_namespaced_pod, SPACE, field_selector=f"metadata.name={NAME}", timeout_seconds=60):
    if event["object"].status.phase == "Running":
        break
else:
    raise AssertionError("the pod does not run")


def logs(**options):
    return core.read_namespaced_pod_log(NAME, SPACE, **options)


until("all is logged", lambda: len(logs().splitlines()) == 3)
assert sorted(logs().splitlines()) == ["bad", "one", "two"], logs()
assert logs(tail_lines=0) == "" and len(logs(tail_lines=2).splitlines()) == 2
assert logs(limit_bytes=2) == logs()[:2]
stamped = logs(timestamps=True).splitlines()
assert all(line.split(" ", 1)[0].endswith("Z") and line[:2] == "20" for line in stamped), stamped
assert logs(since_seconds=3600) == logs()
answer = core.read_namespaced_pod_log(NAME, SPACE, _preload_content=False)
assert answer.headers.get("content-type") == "text/plain", answer.headers
for options, code in (({"tail_lines": -1}, 422), ({"container": "nobody"}, 400), ({"previous": True}, 400)):
    try:
        raise AssertionError(f"{options}: {logs(**options)!r}")
    except ApiException as error:
        assert error.status == code, (options, error)

# Follows, and hears what is said meanwhile.
heard, follower = [], watch.Watch()


def follow():
    for line in follower.stream(core.read_namespaced_pod_log, NAME, SPACE, follow=True):
        heard.append(line)


thread = threading.Thread(target=follow, daemon=True)
thread.start()
until("what was said before is heard", lambda: len(heard) == 3)


def run(command, **options):
    options = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    return stream(core.connect_get_namespaced_pod_exec, NAME, SPACE, command=command, _preload_content=False, **options)


def ended(session):
    """What it said on both channels, and how it ended."""
    session.run_forever(timeout=30)
    return session.read_stdout(timeout=1) or "", session.read_stderr(timeout=1) or "", session.returncode


assert ended(run(["sh", "-c", "echo out; echo err >&2; exit 3"])) == ("out\n", "err\n", 3)
assert ended(run(["true"])) == ("", "", 0)
missing = run(["/no/such"])
missing.run_forever(timeout=30)
status = json.loads(missing.read_channel(ERROR_CHANNEL) or "{}")
assert status.get("status") == "Failure" and "no such file" in status["message"], status
# Something typed is answered, line by line.
session = run(["cat"], stdin=True)
for word in ("a", "b"):
    session.write_stdin(f"{word}\n")
    assert session.readline_stdout(timeout=30) == word
session.close()
# A terminal has a size, and one stream.
session = run(["sh", "-c", "until [ \"$(stty size 2>/dev/null)\" = '41 123' ]; do sleep 0.1; done; stty size; echo err >&2"], stdin=True, tty=True)
session.write_channel(RESIZE_CHANNEL, json.dumps({"Width": 123, "Height": 41}))
said, errors, code = ended(session)
assert said.split() == ["41", "123", "err"] and errors == "" and code == 0, (said, errors, code)
try:
    stream(core.connect_get_namespaced_pod_exec, NAME, SPACE, command=["true"], container="nobody", stdout=True)
    raise AssertionError("a container of nobody took a command")
except ApiException as error:
    assert "nobody" in str(error) or error.status in (0, 400, 404), error

# A file is served on a port of the pod, and fetched through a tunnel.
assert ended(run(["sh", "-c", "mkdir -p /www && echo page >/www/index.html && touch /go"]))[2] == 0
until("the last line is heard", lambda: heard[3:] == ["three"])


def fetched():
    tunnel = portforward(core.connect_get_namespaced_pod_portforward, NAME, SPACE, ports="8080")
    socket = tunnel.socket(8080)
    socket.settimeout(30)
    socket.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
    answer = b""
    try:
        while piece := socket.recv(4096):
            answer += piece
    except TimeoutError:
        raise AssertionError(f"no end of {answer!r}") from None
    trouble = tunnel.error(8080)
    return trouble is None and answer.endswith(b"\r\n\r\npage\n")


until("the page is served", fetched)
core.delete_namespaced_pod(NAME, SPACE)
thread.join(30)
assert not thread.is_alive(), "who follows a log does not hear of the container's end"
print("logs, exec and port-forward through the API server")
