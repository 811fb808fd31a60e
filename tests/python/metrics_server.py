"""A server of metrics behind APIServices: python metrics_server.py FOLDER

FOLDER holds server.crt and server.key, front.crt (who may name users), and pods.json, the names of the pods that are
measured. Prints its port, then writes a line for each request to requests.log: the user it came in the name of, and the path.
"""
import json
import pathlib
import ssl
import sys
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder = pathlib.Path(sys.argv[1])
NOW = "2026-01-01T00:00:00Z"


def resources(group, version, *names):
    found = [{"name": n, "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]} for n in names]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}", "resources": found}


def listing(kind, api, items):
    return {"kind": kind, "apiVersion": api, "metadata": {}, "items": items}


def answer(path, query):
    """Code and body for a path; None for a watch that does not begin."""
    pods = json.loads((folder / "pods.json").read_text())
    match path.split("/")[2:]:
        case ["metrics.k8s.io", "v1beta1"]:
            return 200, resources("metrics.k8s.io", "v1beta1", "pods")
        case ["custom.metrics.k8s.io", "v1beta2"]:
            return 200, resources("custom.metrics.k8s.io", "v1beta2", "pods/requests", "services/hits")
        case ["external.metrics.k8s.io", "v1beta1"]:
            return 200, resources("external.metrics.k8s.io", "v1beta1", "queue")
        case ["metrics.k8s.io", "v1beta1", "namespaces", "default", "pods"] if query.get("labelSelector") == ["app=a"]:
            usage = [{"name": "c", "usage": {"cpu": "100m", "memory": "1Mi"}}]
            items = [{"metadata": {"name": p}, "timestamp": NOW, "window": "30s", "containers": usage} for p in pods]
            return 200, listing("PodMetricsList", "metrics.k8s.io/v1beta1", items)
        case ["custom.metrics.k8s.io", "v1beta2", "namespaces", "default", "pods", "*", "requests"]:
            items = [{"describedObject": {"kind": "Pod", "name": p}, "timestamp": NOW, "value": "10"} for p in pods]
            return 200, listing("MetricValueList", "custom.metrics.k8s.io/v1beta2", items)
        case ["custom.metrics.k8s.io", "v1beta2", "namespaces", "default", "services", "web", "hits"]:
            items = [{"describedObject": {"kind": "Service", "name": "web"}, "timestamp": NOW, "value": "10500m"}]
            return 200, listing("MetricValueList", "custom.metrics.k8s.io/v1beta2", items)
        case ["external.metrics.k8s.io", "v1beta1", "namespaces", "default", "queue"]:
            assert query.get("labelSelector") == ["queue=worker"], query
            items = [{"metricName": "queue", "timestamp": NOW, "value": v} for v in ("60", "30")]
            return 200, listing("ExternalMetricValueList", "external.metrics.k8s.io/v1beta1", items)
    message = f"the server could not find the metric {path.rsplit('/', 1)[-1]}"
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": message}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        user = self.headers.get("X-Remote-User", "nobody")
        shown = self.connection.getpeercert()
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        with open(folder / "requests.log", "a") as log:
            log.write(f"{','.join(names)} {user} {self.headers.get_all('X-Remote-Group')} {url.path}\n")
        query = urllib.parse.parse_qs(url.query)
        if "watch" in query:
            return self.watch()
        code, body = answer(url.path, query)
        body = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def watch(self):
        """Two events, some time apart."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name in ("one", "two"):
            event = json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(0.5)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder / "server.crt", folder / "server.key")
context.load_verify_locations(folder / "front.crt")
context.verify_mode = ssl.CERT_REQUIRED
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
