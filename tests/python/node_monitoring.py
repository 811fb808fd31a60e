"""What monitors of nodes do with the pages of one: Debian's Prometheus scrapes all of them, and `kubectl top` shows what a
server of metrics makes of /metrics/resource in the way that metrics-server does.

  python node_monitoring.py KUBECONFIG NODE IMAGE PORT SCRATCH

PORT is the agent's. SCRATCH holds server.crt and server.key, a pair for the name metrics.default.svc that vouches for itself."""
import base64
import json
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from common import kubectl_with, until

kubeconfig, node, image, port, scratch = sys.argv[1:]
kubectl = kubectl_with(kubeconfig)
PAGES = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"]
# One of each page, of which there is always something.
SHOWN = ["kubelet_running_pods", "container_last_seen", "node_cpu_usage_seconds_total", "prober_probe_total", "kubernetes_healthcheck"]
unverified = ssl.create_default_context()
unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE


def prometheus(token):
    jobs = [
        {
            "job_name": page,
            "metrics_path": page,
            "scheme": "https",
            "authorization": {"credentials": token},
            "tls_config": {"insecure_skip_verify": True},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for page in PAGES
    ]
    with open(f"{scratch}/prometheus.yml", "w") as file:
        json.dump({"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}, file)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        own = free.server_address[1]
    flags = [f"--config.file={scratch}/prometheus.yml", f"--storage.tsdb.path={scratch}/tsdb", f"--web.listen-address=127.0.0.1:{own}"]
    with open(f"{scratch}/prometheus.log", "w") as log:
        scraper = subprocess.Popen(["prometheus", *flags], stdout=log, stderr=log)

    def ask(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def targets():
        return [(t["scrapePool"], t["health"], t["lastError"]) for t in ask("targets").get("activeTargets", [])]

    try:
        until(targets, lambda: [health for _, health, _ in targets()] == ["up"] * len(PAGES))
        for page, name in zip(PAGES, SHOWN):
            found = until(lambda: f"{page} has no {name}", lambda: ask(f"query?query={name}").get("result"))
            assert {series["metric"]["job"] for series in found} == {page}, found
        # Two samples, between which something is used.
        rate = f"rate(container_cpu_usage_seconds_total%7Bjob%3D%22/metrics/resource%22%2Cpod%3D%22busy%22%7D%5B20s%5D)"
        until(lambda: ask(f"query?query={rate}"), lambda: [s for s in ask(f"query?query={rate}").get("result", []) if float(s["value"][1]) > 0.01])
    finally:
        scraper.terminate()
        scraper.wait(30)
    print("Prometheus scrapes every page")


SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)(?: (\d+))?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NANOS, KIBI = 1_000_000_000, 1024


def scraped(token):
    """One look at the node as metrics-server takes it: by node and by container, seconds of CPU at a time, and bytes."""
    request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics/resource", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, context=unverified, timeout=10) as answer:
        page = answer.read().decode()
    points = {}
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value, millis = SAMPLE.match(line).groups()
        labels = dict(LABEL.findall(labels or ""))
        whose = (labels.get("namespace"), labels.get("pod"), labels.get("container"))
        point = points.setdefault(whose, {})
        match name:
            case "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total":
                assert millis, f"no time: {line}"
                point.update(cpu=float(value), at=int(millis) / 1000)
            case "node_memory_working_set_bytes" | "container_memory_working_set_bytes":
                point["memory"] = float(value)
            case "container_start_time_seconds":
                point["began"] = float(value)
    return {whose: p for whose, p in points.items() if "cpu" in p and "memory" in p}


def usage(before, after):
    nanos = (after["cpu"] - before["cpu"]) / (after["at"] - before["at"]) * NANOS
    return {"cpu": f"{int(nanos)}n", "memory": f"{int(after['memory'] / KIBI)}Ki"}


def metrics(token):
    """What /apis/metrics.k8s.io/v1beta1 answers: the usage between two looks."""
    before = scraped(token)
    assert all(p["began"] <= p["at"] for whose, p in before.items() if whose[2]), before
    time.sleep(3)
    after = scraped(token)
    assert all(after[whose]["at"] > before[whose]["at"] for whose in before if whose in after)
    used = {whose: usage(before[whose], point) for whose, point in after.items() if whose in before}
    head = {"timestamp": "2026-01-01T00:00:00Z", "window": "3s"}
    pods = {}
    for (namespace, name, container), of_it in used.items():
        if container:
            pods.setdefault((namespace, name), []).append({"name": container, "usage": of_it})
    nodes = [{"metadata": {"name": node}, **head, "usage": used[None, None, None]}]
    shown = [{"metadata": {"namespace": s, "name": n}, **head, "containers": c} for (s, n), c in pods.items()]
    return nodes, shown


def top(token):
    nodes, pods = metrics(token)
    api = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1"}
    kinds = [("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True)]
    api["resources"] = [{"name": n, "singularName": "", "namespaced": s, "kind": k, "verbs": ["get", "list"]} for n, k, s in kinds]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            match self.path.split("?")[0].split("/")[4:]:
                case []:
                    body = api
                case ["nodes"]:
                    body = {"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": nodes}
                case ["pods"] | ["namespaces", "default", "pods"]:
                    body = {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": pods}
                case other:
                    raise AssertionError(other)
            body = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{scratch}/server.crt", f"{scratch}/server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # An address of this machine is no endpoint that anybody may name; a name is.
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "default"}}
    service["spec"] = {"type": "ExternalName", "externalName": "localhost"}
    with open(f"{scratch}/server.crt", "rb") as file:
        bundle = base64.b64encode(file.read()).decode()
    spec = {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100, "caBundle": bundle}
    spec["service"] = {"namespace": "default", "name": "metrics", "port": server.server_address[1]}
    registered = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec}
    for thing in (service, registered):
        kubectl("create", "-f", "-", given=json.dumps(thing))
    kubectl("wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=60s")
    name, cpu, share, memory, _ = kubectl("top", "node", "--no-headers").split()
    assert name == node and int(cpu.removesuffix("m")) > 10 and share.endswith("%") and int(memory.removesuffix("Mi")) > 50, (cpu, memory)
    shown = {words[0]: words[1:] for words in map(str.split, kubectl("top", "pod", "--containers", "--no-headers").splitlines())}
    container, cpu, memory = shown["busy"]
    assert container == "main" and int(cpu.removesuffix("m")) > 10 and memory.endswith("Mi"), shown
    print("kubectl top shows", name, shown)


busy = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", "while :; do :; done"]}
busy["resources"] = {"limits": {"cpu": "200m"}}
busy["livenessProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 1}
spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [busy]}
kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy", "namespace": "default"}, "spec": spec}))
kubectl("create", "serviceaccount", "monitor", "-n", "default")
kubectl("create", "clusterrole", "monitor", "--verb=get", "--resource=nodes/metrics")
kubectl("create", "clusterrolebinding", "monitor", "--clusterrole=monitor", "--serviceaccount=default:monitor")
kubectl("wait", "-n", "default", "--for=condition=Ready", "pod/busy", "--timeout=60s")
token = kubectl("create", "token", "monitor", "-n", "default").strip()
prometheus(token)
top(token)
kubectl("delete", "pod", "-n", "default", "busy")
