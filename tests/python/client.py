"""What a script with the official Python client does: python client.py KUBECONFIG"""
import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

config.load_kube_config(config_file=sys.argv[1])
core, apps = client.CoreV1Api(), client.AppsV1Api()

version = client.VersionApi().get_code()
assert (version.major, version.minor) == ("1", "36"), version

seen = []
ready = threading.Event()


def follow():
    for event in watch.Watch().stream(core.list_namespaced_config_map, "default", timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        ready.set()
        if event["type"] == "DELETED" and event["object"].metadata.name == "from-python":
            return


# The watch starts from the list, so an object that is there already wakes it.
core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="first"), data={"a": "b"}))
thread = threading.Thread(target=follow)
thread.start()
assert ready.wait(10), "the watch stays silent"

made = core.create_namespaced_config_map(
    "default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="from-python"), data={"a": "b"})
)
assert made.metadata.uid and made.metadata.resource_version
changed = core.patch_namespaced_config_map("from-python", "default", {"data": {"a": "c"}})
assert changed.data == {"a": "c"}, changed.data
made.data = {"a": "d"}
try:
    core.replace_namespaced_config_map("from-python", "default", made)
    raise AssertionError("an old version was accepted")
except ApiException as error:
    assert error.status == 409, error
core.delete_namespaced_config_map("from-python", "default")
thread.join(20)
kinds = [kind for kind, name in seen if name == "from-python"]
assert kinds == ["ADDED", "MODIFIED", "DELETED"], seen
try:
    core.read_namespaced_config_map("from-python", "default")
    raise AssertionError("the object is still there")
except ApiException as error:
    assert error.status == 404 and error.reason == "Not Found", error

labels = {"app": "python"}
template = client.V1PodTemplateSpec(
    metadata=client.V1ObjectMeta(labels=labels),
    spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="localhost/busybox:1")]),
)
spec = client.V1DeploymentSpec(replicas=2, selector=client.V1LabelSelector(match_labels=labels), template=template)
made = apps.create_namespaced_deployment(
    "default", client.V1Deployment(metadata=client.V1ObjectMeta(name="from-python"), spec=spec)
)
assert made.spec.strategy.rolling_update.max_surge == "25%", made.spec.strategy
scale = apps.patch_namespaced_deployment_scale("from-python", "default", {"spec": {"replicas": 1}})
assert scale.spec.replicas == 1, scale
apps.delete_namespaced_deployment("from-python", "default")
try:
    bad = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="Not A Name"))
    core.create_namespaced_config_map("default", bad)
    raise AssertionError("a bad name was accepted")
except ApiException as error:
    assert error.status == 422, error
print("the Python client is content")
