"""A chart's life as helm leads it, by the official Python client: python helm.py KUBECONFIG

Install with a hook, upgrade by three-way patches, roll back, uninstall; each time with helm's own waiting and its record of
the release in a secret. Nothing runs the pods: a thread says of each what a kubelet would.
"""
import base64
import gzip
import json
import sys
import threading

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.dynamic import DynamicClient

from common import until

config.load_kube_config(config_file=sys.argv[1])
api = client.ApiClient()
core = client.CoreV1Api(api)
objects = DynamicClient(api)

NAMESPACE, RELEASE, MANAGER = "shop", "web", "helm"
OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE},
}
# The order in which helm installs; it uninstalls the other way round.
ORDER = [
    "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "Role",
    "RoleBinding", "Service", "Deployment", "HorizontalPodAutoscaler", "StatefulSet", "Ingress", "Backup",
]
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"}
LIMIT = 60


def run_pods(stop):
    """Says of every pod what a kubelet would: those of jobs end, the others are ready."""
    seen = 0
    while not stop.is_set():
        for event in watch.Watch().stream(core.list_pod_for_all_namespaces, timeout_seconds=1):
            pod, now = event["object"], "2026-01-01T00:00:00Z"
            if event["type"] == "DELETED" or pod.metadata.deletion_timestamp or pod.status.phase != "Pending":
                continue
            owner = pod.metadata.owner_references[0].kind
            phase = "Succeeded" if owner == "Job" else "Running"
            ready = {"type": "Ready", "status": "False" if owner == "Job" else "True", "lastTransitionTime": now}
            status = {"status": {"phase": phase, "startTime": now, "conditions": [ready]}}
            try:
                core.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, status)
                seen += 1
            except ApiException as error:
                assert error.status == 404, error
    assert seen, "no pod was ever made"


def resource(item):
    return objects.resources.get(api_version=item["apiVersion"], kind=item["kind"])


def place(item):
    return {"name": item["metadata"]["name"], "namespace": None if item["kind"] in CLUSTER_WIDE else NAMESPACE}


def get(item):
    try:
        return resource(item).get(**place(item)).to_dict()
    except ApiException as error:
        assert error.status == 404, error
        return None


def create(item):
    resource(item).create(body=item, namespace=place(item)["namespace"], field_manager=MANAGER)


def delete(item):
    try:
        resource(item).delete(**place(item), body={"propagationPolicy": "Background"})
    except ApiException as error:
        assert error.status == 404, error


def named(items):
    return isinstance(items, list) and bool(items) and all(isinstance(item, dict) and "name" in item for item in items)


def three_way(original, modified, live, merges_lists):
    """The patch that takes away what is no longer said and sets what is other than said."""
    patch = {key: None for key in original if key not in modified}
    for key, new in modified.items():
        old, now = original.get(key), live.get(key)
        if isinstance(new, dict) and isinstance(now, dict):
            inner = three_way(old if isinstance(old, dict) else {}, new, now, merges_lists)
            if inner:
                patch[key] = inner
        elif merges_lists and named(new) and named(now):
            changes = []
            known = {item["name"]: item for item in now}
            before = {item["name"]: item for item in old or []}
            for item in new:
                if item["name"] not in known:
                    changes.append(item)
                    continue
                inner = three_way(before.get(item["name"], {}), item, known[item["name"]], merges_lists)
                if inner:
                    changes.append({"name": item["name"], **inner})
            names = [item["name"] for item in new]
            changes += [{"name": name, "$patch": "delete"} for name in before if name not in names and name in known]
            if changes:
                patch[key] = changes
                patch[f"$setElementOrder/{key}"] = [{"name": name} for name in names]
        elif new != now:
            patch[key] = new
    return patch


def is_ready(item):
    """What `helm --wait` asks of each kind."""
    live = get(item)
    if live is None:
        return False
    status = live.get("status") or {}
    replicas = live.get("spec", {}).get("replicas", 1)
    if item["kind"] == "Deployment":
        if status.get("observedGeneration", 0) < live["metadata"]["generation"]:
            return False
        selector = ",".join(f"{k}={v}" for k, v in live["spec"]["selector"]["matchLabels"].items())
        sets = client.AppsV1Api(api).list_namespaced_replica_set(NAMESPACE, label_selector=selector).items
        wanted = live["spec"]["template"]["spec"]["containers"]
        names = lambda s: [(c.name, c.image) for c in s.spec.template.spec.containers]
        newest = [s for s in sets if names(s) == [(c["name"], c["image"]) for c in wanted]]
        return any((s.status.ready_replicas or 0) >= replicas for s in newest)
    if item["kind"] == "StatefulSet":
        if status.get("observedGeneration", 0) < live["metadata"]["generation"]:
            return False
        if status.get("updateRevision") != status.get("currentRevision"):
            return False
        return status.get("readyReplicas", 0) == replicas
    if item["kind"] == "Service":
        return bool(live["spec"].get("clusterIP"))
    if item["kind"] == "CustomResourceDefinition":
        return any(c["type"] == "Established" and c["status"] == "True" for c in status.get("conditions") or [])
    return True


def record(revision, state, chart):
    """The release as helm keeps it: JSON, compressed, base64 inside the base64 of secrets."""
    name = f"sh.helm.release.v1.{RELEASE}.v{revision}"
    body = json.dumps({"name": RELEASE, "version": revision, "info": {"status": state}, "manifest": chart})
    packed = base64.b64encode(gzip.compress(body.encode())).decode()
    labels = {"owner": "helm", "name": RELEASE, "status": state, "version": str(revision)}
    secret = client.V1Secret(
        metadata=client.V1ObjectMeta(name=name, labels=labels),
        type="helm.sh/release.v1",
        string_data={"release": packed},
    )
    try:
        core.create_namespaced_secret(NAMESPACE, secret, field_manager=MANAGER)
    except ApiException as error:
        assert error.status == 409 and "already exists" in error.body, error
        core.replace_namespaced_secret(name, NAMESPACE, secret, field_manager=MANAGER)


def history(state=None):
    selector = f"owner=helm,name={RELEASE}" + (f",status={state}" if state else "")
    found = core.list_namespaced_secret(NAMESPACE, label_selector=selector, field_selector="type=helm.sh/release.v1").items
    return {int(secret.metadata.labels["version"]): secret for secret in found}


def manifest_of(secret):
    packed = base64.b64decode(base64.b64decode(secret.data["release"]))
    return json.loads(gzip.decompress(packed))["manifest"]


def chart(image, replicas, color, with_ingress):
    labels = {"app": "web"}
    containers = [{"name": "web", "image": image, "ports": [{"name": "http", "containerPort": 8080}],
                   "env": [{"name": "COLOR", "value": color}], "envFrom": [{"configMapRef": {"name": "web"}}]}]
    if not with_ingress:
        containers[0]["env"].append({"name": "INTERNAL", "value": "yes"})
    template = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "web", "containers": containers}}
    store = {"app": "store"}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    who = [{"kind": "ServiceAccount", "name": "web", "namespace": NAMESPACE}]
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    all_of_it = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "web"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web"}, "stringData": {"password": "secret"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"color": color}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "web-reader"}, "rules": rules},
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "web-reader"}, "subjects": who,
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "web-reader"}},
        {"apiVersion": rbac, "kind": "Role", "metadata": {"name": "web"}, "rules": rules},
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": "web"}, "subjects": who,
         "roleRef": {"apiGroup": group, "kind": "Role", "name": "web"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
         "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
         "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "store"},
         "spec": {"replicas": 2, "serviceName": "store", "selector": {"matchLabels": store},
                  "template": {"metadata": {"labels": store},
                               "spec": {"containers": [{"name": "store", "image": image}]}}}},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
         "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}},
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "store"},
         "spec": {"minReplicas": 2, "maxReplicas": 4,
                  "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "store"},
                  "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {
                      "type": "Utilization", "averageUtilization": 80}}}]}},
        {"apiVersion": "shop.example.com/v1", "kind": "Backup", "metadata": {"name": "nightly"},
         "spec": {"schedule": "0 3 * * *", "keep": replicas}},
    ]
    if with_ingress:
        backend = {"service": {"name": "web", "port": {"name": "http"}}}
        all_of_it.append({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web"}, "spec": {
            "rules": [{"host": "shop.example.com", "http": {"paths": [
                {"path": "/", "pathType": "Prefix", "backend": backend}]}}]}})
    for item in all_of_it:
        item["metadata"].update(json.loads(json.dumps(OWNED)))
    return sorted(all_of_it, key=lambda item: ORDER.index(item["kind"]))


DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "backups.shop.example.com"},
    "spec": {"group": "shop.example.com", "scope": "Namespaced",
             "names": {"plural": "backups", "singular": "backup", "kind": "Backup", "listKind": "BackupList"},
             "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "properties": {"spec": {"type": "object", "required": ["schedule"], "properties": {
                     "schedule": {"type": "string"}, "keep": {"type": "integer", "minimum": 1},
                     "compress": {"type": "boolean", "default": True}}}}}}}]},
}


def hook():
    """A job that runs before the rest, and goes once it has succeeded."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "migrate", "annotations": {
        "helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}},
        "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "migrate", "image": "migrate:1"}]}}}}
    delete(job)
    until("the end of an older hook", lambda: get(job) is None)
    create(job)
    batch = client.BatchV1Api(api)
    done = False
    # As helm: a watch of this one job, from the beginning.
    for event in watch.Watch().stream(
        batch.list_namespaced_job, NAMESPACE, field_selector="metadata.name=migrate", timeout_seconds=LIMIT
    ):
        conditions = event["object"].status.conditions or []
        assert not any(c.type == "Failed" and c.status == "True" for c in conditions), conditions
        if any(c.type == "Complete" and c.status == "True" for c in conditions):
            done = True
            break
    assert done, "the hook does not complete"
    delete(job)
    until("the end of the hook", lambda: get(job) is None)
    pods = lambda: core.list_namespaced_pod(NAMESPACE, label_selector="job-name=migrate").items
    until("the end of the hook's pods", lambda: not pods())


def bring_about(before, after):
    """Takes one manifest to another: what is new is made, what is there is patched, what is gone is deleted."""
    key = lambda item: (item["kind"], item["metadata"]["name"])
    known = {key(item): item for item in before}
    for item in after:
        live = get(item)
        if live is None:
            create(item)
            continue
        assert live["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE, live["metadata"]
        builtin = item["kind"] != "Backup"
        patch = three_way(known.get(key(item), {}), {k: v for k, v in item.items() if k != "stringData"}, live, builtin)
        if patch:
            media = f"application/{'strategic-' if builtin else ''}merge-patch+json"
            resource(item).patch(body=patch, **place(item), content_type=media, field_manager=MANAGER)
    wanted = {key(item) for item in after}
    for item in before:
        if key(item) not in wanted:
            delete(item)
    for item in after:
        until(f"{item['kind']} {item['metadata']['name']}", lambda: is_ready(item))


def release(revision, word, before, after):
    record(revision, f"pending-{word}", after)
    assert list(history(f"pending-{word}")) == [revision]
    if word != "rollback":
        hook()
    bring_about(before, after)
    for older, secret in history("deployed").items():
        record(older, "superseded", manifest_of(secret))
    record(revision, "deployed", after)
    assert list(history("deployed")) == [revision], history()


stop = threading.Event()
kubelet = threading.Thread(target=run_pods, args=(stop,), daemon=True)
kubelet.start()

core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
assert not history()
create(DEFINITION)
until("the definition", lambda: is_ready(DEFINITION))
objects.resources.invalidate_cache()

first = chart("web:1", 2, "red", with_ingress=True)
release(1, "install", [], first)
deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
web = get(deployment)
assert web["status"]["readyReplicas"] == 2, web["status"]
manager = web["metadata"]["managedFields"][0]
assert (manager["manager"], manager["operation"]) == (MANAGER, "Update"), manager
backup = get(first[-1])
assert backup["spec"] == {"schedule": "0 3 * * *", "keep": 2, "compress": True}, backup
budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
until("the budget's count", lambda: (get(budget).get("status") or {}).get("currentHealthy") == 2)

# Somebody changes what the chart does not speak of; an upgrade leaves it.
client.AppsV1Api(api).patch_namespaced_deployment("web", NAMESPACE, {"spec": {"template": {"metadata": {
    "annotations": {"restarted": "once"}}, "spec": {"containers": [{"name": "sidecar", "image": "sidecar:1"}]}}}})
second = chart("web:2", 3, "blue", with_ingress=False)
release(2, "upgrade", manifest_of(history("deployed")[1]), second)
web = get(deployment)
containers = {c["name"]: c for c in web["spec"]["template"]["spec"]["containers"]}
assert set(containers) == {"web", "sidecar"}, containers
assert containers["web"]["image"] == "web:2" and web["spec"]["replicas"] == 3, web["spec"]
until("the end of the older pods", lambda: get(deployment)["status"].get("replicas") == 3)
assert [e["name"] for e in containers["web"]["env"]] == ["COLOR", "INTERNAL"], containers["web"]
assert web["spec"]["template"]["metadata"]["annotations"] == {"restarted": "once"}
ingress = [item for item in first if item["kind"] == "Ingress"][0]
assert get(ingress) is None, "what the chart has no more is still there"
assert get(backup)["spec"]["keep"] == 3

release(3, "rollback", second, manifest_of(history()[1]))
web = get(deployment)
containers = {c["name"]: c for c in web["spec"]["template"]["spec"]["containers"]}
assert containers["web"]["image"] == "web:1" and web["spec"]["replicas"] == 2, web["spec"]
assert [e["name"] for e in containers["web"]["env"]] == ["COLOR"], containers["web"]
assert get(ingress)["spec"]["rules"][0]["host"] == "shop.example.com"
states = {revision: secret.metadata.labels["status"] for revision, secret in history().items()}
assert states == {1: "superseded", 2: "superseded", 3: "deployed"}, states
assert not core.list_namespaced_secret("default", label_selector="owner=helm").items

record(3, "uninstalling", first)
for item in reversed(first):
    delete(item)
for item in first:
    until(f"the end of {item['kind']} {item['metadata']['name']}", lambda: get(item) is None)
until("the end of all pods", lambda: not core.list_namespaced_pod(NAMESPACE).items)
for secret in history().values():
    core.delete_namespaced_secret(secret.metadata.name, NAMESPACE)
assert not history()
delete(DEFINITION)
until("the end of the definition", lambda: get(DEFINITION) is None)
core.delete_namespace(NAMESPACE)
until("the end of the namespace", lambda: NAMESPACE not in [n.metadata.name for n in core.list_namespace().items])
stop.set()
kubelet.join(10)
print("a chart was installed, upgraded, rolled back and uninstalled")
