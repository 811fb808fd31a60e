"""A driver of devices (dynamic resource allocation) that prepares nothing and writes down what it is asked:

  python dra_driver.py serve PROTOS ROOT FOLDER VERSION
  python dra_driver.py list PROTOS ROOT FOLDER

PROTOS is the folder of the .proto files, ROOT the agent's root folder, FOLDER one of the driver's own, VERSION `v1` or
`v1beta1`. `serve` registers and goes on until it is killed: each call is a line of FOLDER/calls, the health of its
device is what FOLDER/health says, and while FOLDER/refuse is there it prepares nothing. `list` prints what PodResources
says of claims. Needs grpcio and grpcio-tools, which is not the agent's own implementation of gRPC."""
import json
import os
import sys
import time
from concurrent import futures

import grpc

from common import compile_protos

mode, protos, root, folder = sys.argv[1:5]
names = ["dra_v1", "dra_health_v1alpha1", "pluginregistration_v1", "podresources_v1"]
stubs = f"{folder}/stubs-{os.getpid()}"
os.makedirs(stubs)
compile_protos(protos, stubs, names)
import dra_health_v1alpha1_pb2 as health  # noqa: E402
import dra_health_v1alpha1_pb2_grpc as health_rpc  # noqa: E402
import dra_v1_pb2 as dra  # noqa: E402
import pluginregistration_v1_pb2 as reg  # noqa: E402
import pluginregistration_v1_pb2_grpc as reg_rpc  # noqa: E402
import podresources_v1_pb2 as pr  # noqa: E402
import podresources_v1_pb2_grpc as pr_rpc  # noqa: E402

DRIVER = "dra.example.com"


def note(**what):
    with open(f"{folder}/calls", "a") as calls:
        calls.write(json.dumps(what) + "\n")


class Registration(reg_rpc.RegistrationServicer):
    def __init__(self, services):
        self.services = services

    def GetInfo(self, request, context):
        return reg.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=self.services)

    def NotifyRegistrationStatus(self, request, context):
        note(call="registered", ok=request.plugin_registered, error=request.error)
        return reg.RegistrationStatusResponse()


def prepare(request, context):
    answer = dra.NodePrepareResourcesResponse()
    refuse = os.path.exists(f"{folder}/refuse")
    for claim in request.claims:
        note(call="prepare", claim=claim.name, uid=claim.uid, namespace=claim.namespace, refused=refuse)
        if refuse:
            answer.claims[claim.uid].error = "not today"
            continue
        device = answer.claims[claim.uid].devices.add(pool_name="pool", device_name="device-0", request_names=["it"])
        device.cdi_device_ids.append(f"example.com/device={claim.name}")
    return answer


def unprepare(request, context):
    answer = dra.NodeUnprepareResourcesResponse()
    for claim in request.claims:
        note(call="unprepare", claim=claim.name, uid=claim.uid, namespace=claim.namespace)
        answer.claims[claim.uid].SetInParent()
    return answer


class Health(health_rpc.DRAResourceHealthServicer):
    def NodeWatchResources(self, request, context):
        said = None
        while context.is_active():
            word = open(f"{folder}/health").read().strip() if os.path.exists(f"{folder}/health") else "HEALTHY"
            if word != said:
                said = word
                device = health.DeviceHealth(health=health.HealthStatus.Value(word), last_updated_time=int(time.time()), health_check_timeout_seconds=3600, message=f"it is {word}")
                device.device.pool_name, device.device.device_name = "pool", "device-0"
                yield health.NodeWatchResourcesResponse(devices=[device])
            time.sleep(0.1)


def serve(version):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    reg_rpc.add_RegistrationServicer_to_server(Registration([f"{version}.DRAPlugin", "v1alpha1.DRAResourceHealth"]), server)
    health_rpc.add_DRAResourceHealthServicer_to_server(Health(), server)
    def method(does, question, answer):
        return grpc.unary_unary_rpc_method_handler(does, question.FromString, answer.SerializeToString)
    methods = {
        "NodePrepareResources": method(prepare, dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse),
        "NodeUnprepareResources": method(unprepare, dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse),
    }
    # Both versions have the same messages.
    name = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    socket = f"{root}/plugins_registry/{DRIVER}-reg.sock"
    if os.path.exists(socket):
        os.remove(socket)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    server.wait_for_termination()


def listed():
    resources = pr_rpc.PodResourcesListerStub(grpc.insecure_channel(f"unix://{root}/pod-resources/kubelet.sock"))
    found = {}
    for pod in resources.List(pr.ListPodResourcesRequest()).pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                of = [[r.driver_name, r.pool_name, r.device_name, [d.name for d in r.cdi_devices]] for r in claim.claim_resources]
                found.setdefault(pod.name, {})[claim.claim_name] = of
    print(json.dumps(found))


if mode == "serve":
    serve(sys.argv[5])
else:
    listed()
