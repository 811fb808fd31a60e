"""What monitoring and device plugins in Python do with the sockets of a node:

  python node_sockets.py PROTOS ROOT KUBECONFIG NODE IMAGE SCRATCH

PROTOS is the folder of the .proto files, ROOT the agent's root folder, SCRATCH an empty folder. Needs grpcio and
grpcio-tools, which is not the agent's own implementation of gRPC."""
import json
import os
import sys
import threading
import time
from concurrent import futures

import grpc

from common import compile_protos, kubectl_with, until

protos, root, kubeconfig, node, image, scratch = sys.argv[1:]
names = ["pods_v1alpha1", "podresources_v1", "deviceplugin_v1beta1"]
compile_protos(protos, scratch, names)
import deviceplugin_v1beta1_pb2 as dp  # noqa: E402
import deviceplugin_v1beta1_pb2_grpc as dp_rpc  # noqa: E402
import podresources_v1_pb2 as pr  # noqa: E402
import podresources_v1_pb2_grpc as pr_rpc  # noqa: E402
import pods_v1alpha1_pb2 as pods_pb  # noqa: E402

WIDGET = "example.com/widget"
kubectl = kubectl_with(kubeconfig)


def refused(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"wanted {code}")


def pod(name, widgets=0):
    limits = {"limits": {WIDGET: str(widgets)}} if widgets else {}
    container = {"name": "main", "image": image, "command": ["sh", "-c", "echo WIDGETS=$WIDGETS; sleep 100000"], "resources": limits}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def phase(name):
    return kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")


class Pods:
    """The service of pods/kubelet.sock: v1alpha1's requests, answered with core v1 pods in the place of bytes."""

    def __init__(self):
        channel = grpc.insecure_channel(f"unix://{root}/pods/kubelet.sock")
        def call(kind, name, question, answer):
            return getattr(channel, kind)(f"/v1.Pods/{name}", question.SerializeToString, answer)
        self.list = call("unary_unary", "ListPods", pods_pb.ListPodsRequest, pods_pb.ListPodsResponse.FromString)
        self.get = call("unary_unary", "GetPod", pods_pb.GetPodRequest, pods_pb.GetPodResponse.FromString)
        self.watch = call("unary_stream", "WatchPods", pods_pb.WatchPodsRequest, lambda raw: raw)
        self.nothing = call("unary_unary", "NoSuchMethod", pods_pb.ListPodsRequest, lambda raw: raw)


def pods_api():
    assert os.stat(f"{root}/pods/kubelet.sock").st_mode & 0o777 == 0o600
    pods = Pods()
    kubectl("create", "-f", "-", given=pod("seen"))
    until("the pod runs", lambda: phase("seen") == "Running")
    uid = kubectl("get", "pod", "seen", "-o", "jsonpath={.metadata.uid}")
    whole = pods.get(pods_pb.GetPodRequest(podUID=uid)).pod
    assert b"seen" in whole and uid.encode() in whole
    listed = pods.list(pods_pb.ListPodsRequest()).pods
    assert any(uid.encode() in p for p in listed)
    masked = pods.list(pods_pb.ListPodsRequest(), metadata=[("x-field-mask", "status.phase,metadata.uid")]).pods
    mine = next(p for p in masked if uid.encode() in p)
    assert b"Running" in mine and len(mine) < len(whole) / 4 and image.encode() not in mine, mine
    mask = [("x-field-mask", "status.phaze")]
    assert "phaze" in refused(grpc.StatusCode.INVALID_ARGUMENT, lambda: pods.list(pods_pb.ListPodsRequest(), metadata=mask))
    refused(grpc.StatusCode.NOT_FOUND, lambda: pods.get(pods_pb.GetPodRequest(podUID="nobody")))
    refused(grpc.StatusCode.UNIMPLEMENTED, lambda: pods.nothing(pods_pb.ListPodsRequest()))
    events, stream = [], pods.watch(pods_pb.WatchPodsRequest())
    def follow():
        try:
            for raw in stream:
                events.append(raw)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error
    thread = threading.Thread(target=follow)
    thread.start()
    until("the first pods come", lambda: any(uid.encode() in raw for raw in events))
    kubectl("create", "-f", "-", given=pod("later"))
    until("a new pod is told of", lambda: any(b"later" in raw for raw in events))
    kubectl("delete", "pod", "later", "seen", "--timeout=60s")
    stream.cancel()
    thread.join(10)
    print("pods API: list, get, watch, masks")


class Plugin(dp_rpc.DevicePluginServicer):
    """Four widgets; the last can be made unhealthy."""

    def __init__(self):
        self.sick = threading.Event()
        self.ended = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        dp_rpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix://{root}/device-plugins/widget.sock")
        self.server.start()
        request = dp.RegisterRequest(version="v1beta1", endpoint="widget.sock", resource_name=WIDGET)
        channel = grpc.insecure_channel(f"unix://{root}/device-plugins/kubelet.sock")
        dp_rpc.RegistrationStub(channel).Register(request, timeout=10)

    def GetDevicePluginOptions(self, request, context):
        return dp.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        sick = None
        while context.is_active() and not self.ended.is_set():
            if sick != self.sick.is_set():
                sick = self.sick.is_set()
                health = lambda n: "Unhealthy" if sick and n == 3 else "Healthy"  # noqa: E731
                yield dp.ListAndWatchResponse(devices=[dp.Device(ID=f"w{n}", health=health(n)) for n in range(4)])
            time.sleep(0.1)

    def Allocate(self, request, context):
        answer = dp.AllocateResponse()
        for container in request.container_requests:
            answer.container_responses.add(envs={"WIDGETS": ",".join(sorted(container.devices_ids))})
        return answer

    def stop(self):
        self.ended.set()
        self.server.stop(1).wait()


def allocatable():
    return kubectl("get", "node", node, "-o", "jsonpath={.status.allocatable.example\\.com/widget}")


def device_plugin():
    channel = grpc.insecure_channel(f"unix://{root}/device-plugins/kubelet.sock")
    registration = dp_rpc.RegistrationStub(channel)
    old = dp.RegisterRequest(version="v1alpha", endpoint="x.sock", resource_name=WIDGET)
    try:
        registration.Register(old, timeout=10)
        raise AssertionError("a version of nobody was accepted")
    except grpc.RpcError as error:
        assert "v1alpha" in error.details(), error
    plugin = Plugin()
    until("four widgets", lambda: allocatable() == "4")
    plugin.sick.set()
    until("one is unhealthy", lambda: allocatable() == "3")
    plugin.sick.clear()
    until("it is well again", lambda: allocatable() == "4")
    kubectl("create", "-f", "-", given=pod("user", widgets=2))
    until("a pod with widgets runs", lambda: phase("user") == "Running")
    said = until("it says which", lambda: kubectl("logs", "user")).strip()
    ids = said.removeprefix("WIDGETS=").split(",")
    assert len(ids) == 2 and all(i.startswith("w") for i in ids), said
    resources = pr_rpc.PodResourcesListerStub(grpc.insecure_channel(f"unix://{root}/pod-resources/kubelet.sock"))
    def given():
        found = [c for p in resources.List(pr.ListPodResourcesRequest()).pod_resources if p.name == "user" for c in p.containers]
        return sorted(i for c in found for d in c.devices if d.resource_name == WIDGET for i in d.device_ids)
    assert given() == ids, (given(), ids)
    one = resources.Get(pr.GetPodResourcesRequest(pod_name="user", pod_namespace="default")).pod_resources
    assert one.containers[0].name == "main", one
    refused_code = None
    try:
        resources.Get(pr.GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"))
    except grpc.RpcError as error:
        refused_code = error.code()
    assert refused_code is not None, "a pod of nobody"
    whole = resources.GetAllocatableResources(pr.AllocatableResourcesRequest())
    assert sum(len(d.device_ids) for d in whole.devices if d.resource_name == WIDGET) == 4, whole
    plugin.stop()
    until("widgets of a plugin that is gone are nobody's to give", lambda: allocatable() == "0")
    assert phase("user") == "Running" and given() == ids
    plugin = Plugin()
    until("the plugin is back", lambda: allocatable() == "4")
    assert phase("user") == "Running" and given() == ids
    kubectl("create", "-f", "-", given=pod("other", widgets=2))
    until("what is left is given", lambda: phase("other") == "Running")
    kubectl("delete", "pod", "user", "other", "--timeout=60s")
    plugin.stop()
    print("device plugin: registers, fails, comes back; pod resources: list, get, allocatable")


pods_api()
device_plugin()
