//! Time and allocations of the codecs on one stored pod of two containers with status and managed fields (7 kB of JSON).
//!
//! Cases: parse (no schema), decode (by schema), conform (a tree that is in order), write, protobuf from a tree, protobuf
//! from text by way of a tree and without one, protobuf to a tree. `make bench` runs it; each line is the
//! median of 21 rounds and their spread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use proto::schema::TypeSet;
use proto::{json, protobuf, transcode};
use serde_json::{Value, json};

/// The system's allocator, counting.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator with its arguments as they are.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size.saturating_sub(layout.size()) as u64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 21;
const PER_ROUND: u32 = 200;

fn measure(name: &str, mut run: impl FnMut()) {
    run();
    let (count, bytes) = (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    run();
    let (count, bytes) = (COUNT.load(Ordering::Relaxed) - count, BYTES.load(Ordering::Relaxed) - bytes);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..PER_ROUND).for_each(|_| run());
            begun.elapsed().as_secs_f64() * 1e6 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{name:<34} {:>8.2} us  ({:.2} to {:.2})  {count:>5} allocations  {:>7.1} kB",
        rounds[ROUNDS / 2],
        rounds[0],
        rounds[ROUNDS - 1],
        bytes as f64 / 1e3
    );
}

fn container(name: &str) -> Value {
    json!({"name": name, "image": "registry.example/shop/web:1.2.3", "command": ["/bin/serve", "--verbose"],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
                {"name": "MODE", "value": "production"}],
        "ports": [{"containerPort": 8080, "name": name, "protocol": "TCP"}],
        "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "16Mi"}},
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
        "volumeMounts": [{"mountPath": "/data", "name": "data"},
            {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access-abcde", "readOnly": true}],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"})
}

fn status(name: &str) -> Value {
    json!({"name": name, "ready": true, "started": true, "restartCount": 0,
        "image": "registry.example/shop/web:1.2.3", "imageID": format!("sha256:{:064x}", 7),
        "containerID": format!("containerd://{:064x}", 9), "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
}

fn owned(name: &str) -> Value {
    json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:number": {}}}, "f:spec": {"f:containers": {
        format!("k:{{\"name\":\"{name}\"}}"): {".": {}, "f:name": {}, "f:image": {}, "f:command": {}, "f:env": {".": {},
            "k:{\"name\":\"MODE\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:resources": {".": {}, "f:limits": {".": {}, "f:memory": {}}},
            "f:readinessProbe": {".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}}}},
        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}}})
}

fn pod() -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let manager = |name: &str| {
        json!({"manager": name, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": owned(name)})
    };
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web-0", "namespace": "default",
        "uid": "0e2f3a4b-0000-4000-8000-000000000000", "resourceVersion": "12345", "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web", "number": "0"},
        "managedFields": [manager("kubectl-create"), manager("node-agent")]},
        "spec": {"volumes": [{"name": "data", "emptyDir": {}},
            {"name": "kube-api-access-abcde", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
            "containers": [container("one"), container("two")], "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": "default",
            "nodeName": "node-1", "securityContext": {}, "schedulerName": "default-scheduler", "priority": 0,
            "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority", "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}],
            "hostIP": "192.0.2.1", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
            "containerStatuses": [status("one"), status("two")]}})
}

fn main() {
    let set = TypeSet::built_in();
    let id = set.kind("", "v1", "Pod").expect("built in");
    let (mut text, mut wire) = (Vec::new(), Vec::new());
    json::write(set, id, &pod(), &mut text);
    let value = json::decode(set, id, &text).expect("a sound pod").value;
    protobuf::encode(set, id, &value, &mut wire);
    println!("a pod of {} bytes in JSON, {} in protobuf", text.len(), wire.len());

    measure("parse", || drop(black_box(json::parse(&text))));
    measure("decode", || drop(black_box(json::decode(set, id, &text))));
    measure("conform", || drop(black_box(json::conform(set, id, &value))));
    measure("write", || {
        let mut out = Vec::with_capacity(text.len());
        json::write(set, id, &value, &mut out);
        black_box(out);
    });
    measure("protobuf from a tree", || {
        let mut out = Vec::with_capacity(text.len());
        protobuf::encode(set, id, &value, &mut out);
        black_box(out);
    });
    measure("protobuf from text through a tree", || {
        let value = json::parse(&text).expect("JSON").value;
        let mut out = Vec::with_capacity(text.len());
        protobuf::encode(set, id, &value, &mut out);
        black_box(out);
    });
    measure("protobuf from text", || {
        let mut out = Vec::with_capacity(text.len());
        transcode::json_to_protobuf(set, id, &text, &mut out).expect("as written");
        black_box(out);
    });
    measure("protobuf to a tree", || drop(black_box(protobuf::decode(set, id, &wire))));
}
