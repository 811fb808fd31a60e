"""Replays what was recorded of a kubelet's gRPC sockets, and tells what differs:

  python recorded_sockets.py RECORDINGS ROOT KUBECONFIG NODE IMAGE SCRATCH

RECORDINGS is the folder with the .proto and .json files, ROOT the agent's root folder, SCRATCH an empty folder."""
import json
import os
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict

from common import compile_protos, kubectl_with, until

recordings, root, kubeconfig, node, image, scratch = sys.argv[1:]
names = ["podresources", "podsapi", "deviceplugin", "registration"]
compile_protos(recordings, scratch, names)
import deviceplugin_pb2 as dp  # noqa: E402
import deviceplugin_pb2_grpc as dp_rpc  # noqa: E402
import podresources_pb2 as pr  # noqa: E402
import podresources_pb2_grpc as pr_rpc  # noqa: E402
import podsapi_pb2 as pods  # noqa: E402
import registration_pb2 as reg  # noqa: E402

WIDGET = "example.com/widget"
wrong = []
kubectl = kubectl_with(kubeconfig)


def recorded(name):
    with open(f"{recordings}/{name}.json") as file:
        return json.load(file)


def same(what, have, want):
    if have != want:
        wrong.append(f"{what}: {json.dumps(have)} instead of {json.dumps(want)}")


def ask(method, request):
    """The answer as JSON, or its code and text."""
    try:
        return MessageToDict(method(request, timeout=15))
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}


def by_name(things):
    """Lists without an order of their own, in one."""
    for thing in things:
        thing.get("containers", []).sort(key=lambda c: c["name"])
        for container in thing.get("containers", []):
            container.get("devices", []).sort(key=lambda d: d["deviceIds"])
    return sorted(things, key=lambda t: t["name"])


resources = pr_rpc.PodResourcesListerStub(grpc.insecure_channel(f"unix://{root}/pod-resources/kubelet.sock"))
registration = dp_rpc.RegistrationStub(grpc.insecure_channel(f"unix://{root}/device-plugins/kubelet.sock"))


def containers(pod):
    return [{"name": name} for name in {"two": ["a", "b"], "web": ["main"]}.get(pod, ["c"])]


def pod(name, wanted, initial=None):
    def container(name, widgets, command):
        limits = {"limits": widgets} if widgets else {}
        return {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command, "resources": limits}

    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "initContainers": [container("first", initial, ["true"])] if initial else [],
        "containers": [container(name, widgets, ["sleep", "100000"]) for name, widgets in wanted.items()],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns1"}, "spec": spec})


def without_devices():
    want = recorded("podresources")
    for name in ["crash", "done", "noimage", "two", "web"]:
        wanted = {c["name"]: None for c in containers(name)}
        kubectl("create", "-f", "-", given=pod(name, wanted))
    kubectl("wait", "-n", "ns1", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
    have = ask(resources.List, pr.ListPodResourcesRequest())
    have["podResources"] = by_name(have.get("podResources", []))
    same("List", have, want["List"])
    same("GetAllocatableResources", ask(resources.GetAllocatableResources, pr.AllocatableResourcesRequest()), want["GetAllocatableResources"])
    for case, name in (("Get ns1/web", "web"), ("Get unknown", "none")):
        same(case, ask(resources.Get, pr.GetPodResourcesRequest(pod_name=name, pod_namespace="ns1")), want[case])
    with futures.ThreadPoolExecutor(60) as many:
        answers = list(many.map(lambda _: ask(resources.List, pr.ListPodResourcesRequest()).get("details"), range(60)))
    refused = answers.count("rejected by rate limit")
    if not (0 < refused < 60 and refused + answers.count(None) == 60):
        wrong.append(f"60 Lists at once: {answers}")


def pods_api():
    channel = grpc.insecure_channel(f"unix://{root}/pods/kubelet.sock")
    call = lambda name, request, answer: channel.unary_unary(f"/v1alpha1.Pods/{name}", type(request).SerializeToString, answer.FromString)  # noqa: E731
    request = pods.GetPodRequest(podUID="no-such")
    same("GetPod unknown", ask(call("GetPod", request, pods.GetPodResponse), request), recorded("podsapi")["GetPod unknown"])
    request = pods.ListPodsRequest()
    listed = call("ListPods", request, pods.ListPodsResponse)(request, timeout=15).pods
    uids = kubectl("get", "pods", "-n", "ns1", "-o", "jsonpath={.items[*].metadata.uid}").split()
    for want in recorded("podsapi")["ListPods"]:
        if sum(want["name"].encode() in each for each in listed) != 1:
            wrong.append(f"ListPods: {want['name']} is not there once")
        for annotation in want["annotations"]:
            # What only kubectl apply writes, and a note that these pods do not have.
            if annotation.startswith("kubernetes.io/") and not all(annotation.encode() in each for each in listed):
                wrong.append(f"ListPods: {annotation} is missing")
    same("ListPods uids", [sum(uid.encode() in each for each in listed) for uid in uids], [1] * len(uids))


def fields(message):
    """Numbers and values of an encoded message: numbers as they are, all else as bytes."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
            continue
        length = number() if tag & 7 == 2 else {1: 8, 5: 4}[tag & 7]
        yield tag >> 3, message[at:at + length]
        at += length


def shown(encoded):
    """What was recorded of a core v1 Pod."""
    parts = dict(fields(encoded))
    metadata, status = list(fields(parts.get(1, b""))), list(fields(parts.get(3, b"")))
    text = {number: value.decode() for number, value in metadata if number in (1, 3)}
    pair = lambda entry: tuple(dict(fields(entry)).get(n, b"").decode() for n in (1, 2))  # noqa: E731
    pod = {"name": text.get(1), "namespace": text.get(3)}
    if 2 not in parts and 3 not in parts:
        return pod
    pod["deletionTimestamp"] = any(number == 9 for number, _ in metadata)
    pod["labels"] = sorted("=".join(pair(value)) for number, value in metadata if number == 11)
    pod["annotations"] = sorted(pair(value)[0] for number, value in metadata if number == 12)
    pod["phase"] = dict(status).get(1, b"").decode()
    pod["conditions"] = ["=".join(pair(value)) for number, value in status if number == 2]
    return pod


def told_of(name, events):
    """The events of one pod. A state that is told twice is one; between a pod's deletion and its end there may be looks."""
    kept = []
    for event in events:
        pod = {key: value for key, value in (event["pod"] or {}).items() if key != "uid"}
        if pod.get("name") != name:
            continue
        if "annotations" in pod:
            # kubectl apply was the recorded one's.
            pod["annotations"] = [a for a in pod["annotations"] if not a.startswith("kubectl.")]
        ends = pod.get("deletionTimestamp") and pod["phase"] == "Running" and kept and kept[-1][1]["deletionTimestamp"]
        if not ends and (not kept or kept[-1] != (event["type"], pod)):
            kept.append((event["type"], pod))
    return kept


def pods_watch():
    channel = grpc.insecure_channel(f"unix://{root}/pods-api/pods-api.sock")
    watch = channel.unary_stream("/v1alpha1.Pods/WatchPods", pods.WatchPodsRequest.SerializeToString, pods.WatchPodsEvent.FromString)
    types = ["UNSPECIFIED", "ADDED", "MODIFIED", "DELETED", "INITIAL_SYNC_COMPLETE"]
    want = [event for event in recorded("podsapi-watch") if "type" in event]
    events, stream = [], watch(pods.WatchPodsRequest())

    def follow():
        try:
            for event in stream:
                events.append({"type": types[event.type], "pod": shown(event.pod) if event.pod else None})
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error

    def heard(kind, name):
        def told():
            return any(e["type"] == kind and (e["pod"] or {}).get("name") == name for e in events)

        until(lambda: f"no {kind} of {name} in {events}", told)

    thread = threading.Thread(target=follow)
    thread.start()
    heard("ADDED", "web")
    ends = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    watched = json.loads(pod("watched", {"c": None}))
    watched["metadata"]["labels"] = {"step": "1"}
    watched["spec"]["containers"][0]["command"] = ["sh", "-c", ends]
    kubectl("create", "-f", "-", given=json.dumps(watched))
    # Nothing will run of one that the node refuses, and one ends by itself while its object stays.
    refused = json.loads(pod("refused", {"c": None}))
    refused["spec"]["nodeSelector"] = {"no": "where"}
    kubectl("create", "-f", "-", given=json.dumps(refused))
    brief = json.loads(pod("brief", {"c": None}))
    brief["spec"]["restartPolicy"] = "Never"
    brief["spec"]["containers"][0]["command"] = ["true"]
    kubectl("create", "-f", "-", given=json.dumps(brief))
    kubectl("wait", "-n", "ns1", "--for=condition=Ready", "pod/watched", "--timeout=60s")
    kubectl("label", "-n", "ns1", "pod", "watched", "step=2", "--overwrite")
    kubectl("annotate", "-n", "ns1", "pod", "watched", "a=b")
    heard("DELETED", "brief")
    kubectl("wait", "-n", "ns1", "--for=jsonpath={.status.phase}=Failed", "pod/refused", "--timeout=30s")
    same("events of a refused pod", [kind for kind, _ in told_of("refused", events)], ["ADDED"])
    kubectl("delete", "pod", "-n", "ns1", "watched", "refused", "brief", "--timeout=60s")
    heard("DELETED", "watched")
    heard("DELETED", "refused")
    stream.cancel()
    thread.join(10)
    kinds = [event["type"] for event in events]
    first = kinds.index("INITIAL_SYNC_COMPLETE")
    same("events before all is told", set(kinds[:first]), {"ADDED"})
    same("the event that all is told", events[first]["pod"], None)
    same("events of a pod", told_of("watched", events), told_of("watched", want))
    # The recorded one had ended when the watch began.
    same("the end of a pod", told_of("brief", events)[-2:], [
        (kind, {**what, "name": "brief"}) for kind, what in told_of("done", want)[-2:]
    ])


def refusals():
    for case, what in recorded("device-plugin-register-refusals").items():
        same(f"Register: {case}", ask(registration.Register, dp.RegisterRequest(**what["message"])), what["answer"])


class Registrant(grpc.GenericRpcHandler):
    """A socket in plugins_registry that says what a recorded one said, and writes down what it is asked."""

    def __init__(self, case, what):
        path = f"{root}/plugins_registry/{case.replace(' ', '-')}.sock"
        answer = {key: value.replace("/var/lib/kubelet", root) if isinstance(value, str) else value for key, value in what["answer"].items()}
        self.case, self.info, self.calls = case, reg.PluginInfo(**answer), []
        self.want = [{key: call[key] for key in ("call", "message") if key in call} for call in what["calls"]]
        self.server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[self])
        self.server.add_insecure_port(f"unix://{path}")
        self.server.start()

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        if name == "GetInfo":
            self.calls.append({"call": name})
            return grpc.unary_unary_rpc_method_handler(lambda *_: self.info, response_serializer=reg.PluginInfo.SerializeToString)
        if name != "NotifyRegistrationStatus":
            self.calls.append({"call": details.method})
            return None

        def told(raw, _):
            status = reg.RegistrationStatus.FromString(raw)
            message = {"pluginRegistered": status.plugin_registered, "error": status.error.replace(root, "/var/lib/kubelet")}
            self.calls.append({"call": name, "message": message})
            return reg.RegistrationStatusResponse()

        return grpc.unary_unary_rpc_method_handler(told, response_serializer=reg.RegistrationStatusResponse.SerializeToString)

    def compare(self, end):
        # How often it is tried again is a matter of time: the first three tries are waited for.
        tries = [at for at, call in enumerate(self.want) if call["call"] == "GetInfo"]
        length = tries[3] if len(tries) > 3 else len(self.want)
        while len(self.calls) < length and time.time() < end:
            time.sleep(0.1)
        self.server.stop(None)
        # Calls of another service have a connection of their own, so that either may be first.
        ours = lambda calls: sorted(calls[:length], key=lambda call: "/" in call["call"])  # noqa: E731
        same(f"a plugin registers: {self.case}", ours(self.calls), ours(self.want))


def registrations(cases):
    every = [Registrant(case, what) for case, what in recorded("plugin-registration").items() if cases(case)]
    end = time.time() + 40
    for each in every:
        each.compare(end)


def flow():
    log = f"{scratch}/flow.log"
    program = [sys.executable, f"{recordings}/device_plugin.py", f"{root}/device-plugins", log, "--prestart", "--preferred"]
    plugin = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": scratch})
    try:
        def listened_to():
            assert plugin.poll() is None, "the plugin has ended"
            return os.path.exists(log) and "ListAndWatch sends" in open(log).read()

        until("the plugin is listened to", listened_to, 30)
        # The node counts the devices when its next status is made.
        wanted = {"a": {WIDGET: "1"}, "b": {WIDGET: "2"}}
        kubectl("create", "-f", "-", given=pod("dev", wanted, initial={WIDGET: "1"}))
        kubectl("create", "-f", "-", given=pod("dev-unknown", {"a": {"example.com/nothing": "1"}}))
        kubectl("wait", "-n", "ns1", "--for=condition=Ready", "pod/dev", "pod/dev-unknown", "--timeout=90s")
        want = recorded("podresources-devices")
        have = by_name(ask(resources.List, pr.ListPodResourcesRequest())["podResources"])
        same("List with devices", [p for p in have if p["name"].startswith("dev")], want["with the plugin: List"])
        have = ask(resources.GetAllocatableResources, pr.AllocatableResourcesRequest())
        have.get("devices", []).sort(key=lambda d: d["deviceIds"])
        same("GetAllocatableResources with devices", have, want["with the plugin: GetAllocatableResources"])
        have = ask(resources.Get, pr.GetPodResourcesRequest(pod_name="dev", pod_namespace="ns1"))
        have["podResources"] = by_name([have["podResources"]])[0]
        same("Get with devices", have, want["with the plugin: Get dev"])
        kubectl("create", "-f", "-", given=pod("too-many", {"a": {WIDGET: "4"}}))
        reason = ["get", "pod", "-n", "ns1", "too-many", "-o", "jsonpath={.status.reason}"]
        kubectl("wait", "-n", "ns1", "--for=jsonpath={.status.phase}=Failed", "pod/too-many", "--timeout=30s")
        same("a pod that asks for too many", kubectl(*reason), "UnexpectedAdmissionError")
        with open(log) as file:
            lines = [json.loads(line) for line in file]
        # The same plugin once more, in the way of the others.
        registrations(lambda case: case == "DevicePlugin type")
    finally:
        plugin.terminate()
        plugin.wait(10)

    def call(line):
        message = line.get("message", {})
        for request in message.get("containerRequests", []):
            # Sets, which have no order.
            for key in ("availableDeviceIDs", "devicesIds"):
                request.get(key, []).sort()
        return {key: line[key] for key in ("from", "call", "code", "details") if key in line} | {"message": message}

    def answer_first(calls):
        # Either end of two connections may be written down first.
        return sorted(calls, key=lambda line: (line["call"] != "Register", line["call"] != "Register answers"))

    have = answer_first([call(line) for line in lines])
    want = answer_first([call(line) for line in recorded("device-plugin-flow")])
    for number, (have_line, want_line) in enumerate(zip(have, want)):
        same(f"call {number} of the plugin", have_line, want_line)
    same("calls of the plugin", len(have), len(want))


kubectl("create", "namespace", "ns1")
without_devices()
pods_api()
pods_watch()
refusals()
flow()
registrations(lambda case: case != "DevicePlugin type")
print("\n".join(wrong) or "as recorded")
sys.exit(bool(wrong))
