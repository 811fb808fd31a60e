//! What the node says of itself is what a kubelet says: its object, lease, CSINode, status patches and events, where the
//! recordings lie beside the checkout. Values that are a machine's own are left out; names, texts and shapes are not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};
use tests::ApiServer;
use tests::node::Node;

const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - level: RequestResponse\n  verbs: [create, patch, update, get]\n  userGroups: [\"system:nodes\"]\n  resources:\n\
    \x20 - {group: '', resources: [nodes, nodes/status, events]}\n  - {group: storage.k8s.io, resources: [csinodes]}\n\
    \x20 - {group: coordination.k8s.io, resources: [leases]}\n- {level: None}\n";
/// The address that the recorded node had, and ours.
const ADDRESSES: (&str, &str) = ("10.0.2.15", "127.0.0.1");

/// One request that the API server answered.
#[derive(Debug, Clone)]
struct Sent {
    verb: String,
    /// Without the query, and without the part of an event's name that is drawn.
    path: String,
    code: u64,
    body: Value,
}

impl Sent {
    fn is(&self, verb: &str, path: &str) -> bool {
        self.verb == verb && self.path == path
    }
}

/// Hides what differs from one run to the next.
fn hidden(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&serde_json::Name, &Value)| {
                let shown = match key.as_str() {
                    "lastHeartbeatTime" | "lastTransitionTime" | "renewTime" | "creationTimestamp" => json!("<time>"),
                    "uid" => json!("<uid>"),
                    "resourceVersion" => json!("<rv>"),
                    _ => hidden(value),
                };
                (key.clone(), shown)
            };
            // A field without a value is none, and the recordings leave out who manages which.
            let told = map.iter().filter(|(key, value)| !value.is_null() && *key != "managedFields");
            Value::Object(told.map(entry).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(hidden).collect()),
        Value::String(text) => json!(text.replace(ADDRESSES.1, ADDRESSES.0)),
        other => other.clone(),
    }
}

fn path_of(uri: &str) -> String {
    let path = uri.split('?').next().unwrap_or_default();
    match path.split_once("/events/") {
        Some((before, name)) => format!("{before}/events/{}", name.split('.').next().unwrap_or_default()),
        None => path.to_owned(),
    }
}

fn recorded(folder: &Path, file: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join(file))?)?)
}

/// The requests of a recording.
fn requests(list: &Value) -> Vec<Sent> {
    let text = |r: &Value, key: &str| r[key].as_str().unwrap_or_default().to_owned();
    let all = list.as_array().into_iter().flatten();
    all.map(|r| Sent {
        verb: text(r, "verb"),
        path: path_of(r["uri"].as_str().unwrap_or_default()),
        code: r["code"].as_u64().unwrap_or_default(),
        body: hidden(&r["body"]),
    })
    .collect()
}

struct World {
    server: ApiServer,
    node: Node,
    audit: PathBuf,
}

impl World {
    fn start() -> Result<Self> {
        let folder = tests::scratch("node-objects-audit")?;
        let (policy, audit) = (folder.join("policy.yaml"), folder.join("audit.log"));
        std::fs::write(&policy, POLICY)?;
        let arguments = [
            "--controllers=-*".to_owned(),
            "--scheduler=false".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
        ];
        let server = ApiServer::start("node-objects", &arguments.each_ref().map(String::as_str))?;
        let node = Node::start("node-a", &server, "clusterDNS: [10.96.0.10]\n")?;
        Ok(World { server, node, audit })
    }

    /// All that nodes have sent so far, in its order.
    fn sent(&self) -> Result<Vec<Sent>> {
        let text = std::fs::read_to_string(&self.audit)?;
        // The last line may be half written.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(lines
            .map(|event| Sent {
                verb: event["verb"].as_str().unwrap_or_default().to_owned(),
                path: path_of(event["requestURI"].as_str().unwrap_or_default()),
                code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
                body: hidden(&event["requestObject"]),
            })
            .collect())
    }

    /// What was sent after so many requests, once there is what is asked for among it.
    fn after(&self, seen: usize, what: &str, is_so: impl Fn(&Sent) -> bool) -> Result<Vec<Sent>> {
        let begun = Instant::now();
        loop {
            let new = self.sent()?.split_off(seen);
            if new.iter().any(&is_so) {
                return Ok(new);
            }
            ensure!(begun.elapsed() < Duration::from_secs(90), "{what} was not sent: {new:#?}\n{}", self.node.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn find<'a>(sent: &'a [Sent], verb: &str, path: &str) -> Result<&'a Sent> {
    sent.iter().find(|s| s.is(verb, path)).with_context(|| format!("{verb} {path} among {sent:#?}"))
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().map(Map::keys).into_iter().flatten().map(String::from).collect()
}

/// Fields of a node's status of which a machine gives the values but not the names.
fn status_alike(ours: &Value, theirs: &Value) -> Result<()> {
    let huge = |set: BTreeSet<String>| -> BTreeSet<String> {
        set.into_iter().filter(|name| !name.starts_with("hugepages-")).collect()
    };
    for map in ["capacity", "allocatable"] {
        ensure!(huge(keys(&ours[map])) == huge(keys(&theirs[map])), "{map}: {ours:#}");
    }
    let mut info = keys(&ours["nodeInfo"]);
    // Only a machine that has some tells it.
    info.remove("swap");
    ensure!(info == keys(&theirs["nodeInfo"]), "nodeInfo: {info:?}");
    for field in ["kubeletVersion", "operatingSystem"] {
        ensure!(ours["nodeInfo"][field] == theirs["nodeInfo"][field], "{field}: {ours:#}");
    }
    for field in ["addresses", "conditions", "declaredFeatures"] {
        ensure!(ours[field] == theirs[field], "{field}: {:#}\nrecorded: {:#}", ours[field], theirs[field]);
    }
    let (endpoints, features) = (keys(&ours["daemonEndpoints"]), keys(&ours["features"]));
    ensure!(endpoints == keys(&theirs["daemonEndpoints"]), "{endpoints:?}");
    // A runtime may be too old to tell them.
    ensure!(features.is_empty() || features == keys(&theirs["features"]), "{features:?}");
    let entry = |status: &Value, list: &str| status[list].as_array().and_then(|l| l.first().map(keys));
    for list in ["images", "runtimeHandlers"] {
        // The runtime may not have been asked yet, or be too old to tell its handlers.
        let (own, wanted) = (entry(ours, list), entry(theirs, list));
        ensure!(own.is_none() || own == wanted, "{list}: {own:?}, not {wanted:?}");
    }
    let mut fields = keys(ours);
    let mut wanted = keys(theirs);
    for may_lack in ["images", "runtimeHandlers", "features", "volumesInUse"] {
        fields.remove(may_lack);
        wanted.remove(may_lack);
    }
    ensure!(fields == wanted, "fields of the status: {fields:?}, not {wanted:?}");
    Ok(())
}

fn is_ready(sent: &Sent, status: &str) -> bool {
    let conditions = sent.body["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == status))
}

/// The first two minutes: the node, its CSINode, the patch that makes it ready, the lease.
fn registration(world: &World, folder: &Path) -> Result<()> {
    let theirs = requests(&recorded(folder, "first-registration.json")?);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let ours = world.after(0, "the lease", |s| s.is("update", &format!("{lease}/node-a")))?;
    let created = find(&ours, "create", "/api/v1/nodes")?;
    let wanted = find(&theirs, "create", "/api/v1/nodes")?;
    for part in ["labels", "annotations", "name"] {
        let (own, wanted) = (&created.body["metadata"][part], &wanted.body["metadata"][part]);
        ensure!(own == wanted, "{part}: {own:#}, not {wanted:#}");
    }
    let spec = |sent: &Sent| sent.body["spec"].as_object().cloned().unwrap_or_default();
    ensure!(spec(created) == spec(wanted), "{:#}", created.body);
    status_alike(&created.body["status"], &wanted.body["status"])?;

    let drivers = "/apis/storage.k8s.io/v1/csinodes";
    let (own, wanted) = (find(&ours, "create", drivers)?, find(&theirs, "create", drivers)?);
    let without_drivers = |body: &Value| {
        let mut body = body.clone();
        // None or an empty list.
        if let Some(spec) = body["spec"].as_object_mut() {
            spec.remove("drivers");
        }
        body
    };
    ensure!(without_drivers(&own.body) == without_drivers(&wanted.body), "{:#}\nrecorded: {:#}", own.body, wanted.body);

    let status = "/api/v1/nodes/node-a/status";
    let readies = |sent: &[Sent]| sent.iter().find(|s| s.is("patch", status) && is_ready(s, "True")).cloned();
    let (own, wanted) = (readies(&ours).context("a patch")?, readies(&theirs).context("a recorded patch")?);
    ready_alike(&own, &wanted)?;

    let (own, wanted) = (find(&ours, "create", lease)?, find(&theirs, "create", lease)?);
    ensure!(own.body == wanted.body, "{:#}\nrecorded: {:#}", own.body, wanted.body);
    let renewal = format!("{lease}/node-a");
    let (own, wanted) = (find(&ours, "update", &renewal)?, find(&theirs, "update", &renewal)?);
    ensure!(own.body == wanted.body, "{:#}\nrecorded: {:#}", own.body, wanted.body);

    // What is written, in its order: the node before all that belongs to it, and ready once drivers have a place.
    let order = |sent: &[Sent]| -> Result<Vec<usize>> {
        let at = |is: &dyn Fn(&Sent) -> bool| sent.iter().position(is).context("it is written");
        Ok(vec![
            at(&|s| s.is("create", "/api/v1/nodes") && s.code == 201)?,
            at(&|s| s.is("create", drivers) && s.code == 201)?,
            at(&|s| s.is("patch", status) && is_ready(s, "True"))?,
        ])
    };
    let rises = |order: &[usize]| order.windows(2).all(|pair| pair[0] < pair[1]);
    ensure!(rises(&order(&theirs)?) && rises(&order(&ours)?), "the order of {ours:#?}");
    // A lease that is known is not read again.
    let renewed = ours.iter().position(|s| s.is("update", &renewal)).context("renewed")?;
    ensure!(!ours[renewed..].iter().any(|s| s.is("get", &renewal)), "a lease is read before it is renewed: {ours:#?}");
    Ok(())
}

/// Patches that turn the condition Ready: which conditions they name in which order, and what they say of Ready.
fn ready_alike(own: &Sent, wanted: &Sent) -> Result<()> {
    let ready = |sent: &Sent| {
        let all = sent.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut ready = all.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
        // A beat comes with it or not.
        if let Some(map) = ready.as_object_mut() {
            map.remove("lastHeartbeatTime");
        }
        ready
    };
    let order = "$setElementOrder/conditions";
    ensure!(own.body["status"][order] == wanted.body["status"][order], "{:#}", own.body);
    let (own, mut wanted) = (ready(own), ready(wanted));
    // Within one second of the other state there is nothing to change in it.
    if own["lastTransitionTime"].is_null()
        && let Some(map) = wanted.as_object_mut()
    {
        map.remove("lastTransitionTime");
    }
    ensure!(own == wanted, "{own:#}\nrecorded: {wanted:#}");
    Ok(())
}

fn events(sent: &[Sent]) -> Vec<Value> {
    let path = "/api/v1/namespaces/default/events";
    let part = |body: &Value| {
        let names = ["type", "reason", "message", "involvedObject", "source", "reportingComponent", "count"];
        let fields = names.iter().map(|name| ((*name).to_owned(), body[*name].clone()));
        Value::Object(fields.filter(|(_, value)| !value.is_null()).collect())
    };
    sent.iter().filter(|s| s.is("create", path)).map(|s| part(&s.body)).collect()
}

/// What is told of the node: the same reasons, types, texts and places.
fn told(world: &World, folder: &Path) -> Result<()> {
    let theirs = events(&requests(&recorded(folder, "first-registration.json")?));
    let ours = events(&world.after(0, "NodeReady", |s| s.body["reason"] == "NodeReady")?);
    for wanted in &theirs {
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        match wanted["reason"].as_str().unwrap_or_default() {
            // Of a kubelet that has not seen its disk yet.
            "InvalidDiskCapacity" => continue,
            "NodeAllocatableEnforced" if !unified => continue,
            _ => {}
        }
        ensure!(ours.contains(wanted), "{wanted:#} among {ours:#?}");
    }
    Ok(())
}

/// A cordon and its end, which no recording has; upstream's words.
fn cordoned(world: &World) -> Result<()> {
    for (verb, reason) in [("cordon", "NodeNotSchedulable"), ("uncordon", "NodeSchedulable")] {
        let seen = world.sent()?.len();
        world.server.kubectl(&[verb, "node-a"])?;
        let ours = events(&world.after(seen, reason, |s| s.body["reason"] == reason)?);
        let event = ours.iter().find(|e| e["reason"] == reason).context("an event")?;
        let message = format!("Node node-a status is now: {reason}");
        ensure!(event["type"] == "Normal" && event["message"] == message, "{event:#}");
    }
    Ok(())
}

/// The runtime goes away for longer than it may, and comes back.
fn without_runtime(world: &mut World, folder: &Path) -> Result<()> {
    let theirs = requests(&recorded(folder, "runtime-stopped-and-started.json")?);
    let status = "/api/v1/nodes/node-a/status";
    let version = |s: &Sent| s.body["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().map(str::to_owned);
    let unknown = |s: &Sent| version(s).is_some_and(|v| v == "containerd://Unknown");
    let back = |s: &Sent| s.is("patch", status) && is_ready(s, "True");
    let down = |s: &Sent| s.is("patch", status) && is_ready(s, "False");
    ensure!(theirs.iter().any(unknown) && theirs.iter().any(down) && theirs.iter().any(back), "the recording");
    let seen = world.sent()?.len();
    world.node.kill_containerd();
    let ours = world.after(seen, "that the runtime is down", down)?;
    ensure!(ours.iter().any(unknown), "{ours:#?}");
    let first = |sent: &[Sent], is: &dyn Fn(&Sent) -> bool| sent.iter().find(|s| is(s)).cloned().context("a patch");
    ready_alike(&first(&ours, &down)?, &first(&theirs, &down)?)?;
    let told = |sent: &[Sent]| events(sent).into_iter().find(|e| e["reason"] == "NodeNotReady").context("an event");
    ensure!(told(&ours)? == told(&theirs)?, "{:#}", told(&ours)?);
    let seen = world.sent()?.len();
    world.node.start_containerd()?;
    let ours = world.after(seen, "that the runtime is back", back)?;
    let (own, wanted) = (first(&ours, &back)?, first(&theirs, &back)?);
    ready_alike(&own, &wanted)?;
    ensure!(version(&own).is_some_and(|v| v.starts_with("containerd://") && v != "containerd://Unknown"), "{own:#?}");
    Ok(())
}

/// Labels, taints, addresses and names by flags.
fn flagged(world: &mut World, folder: &Path) -> Result<()> {
    let all = recorded(folder, "registration-flags.json")?;
    for (name, case) in all.as_object().into_iter().flatten() {
        // These want an address of IPv6, and the name of the machine.
        if matches!(name.as_str(), "upper-case-override" | "plain-hostname") {
            continue;
        }
        let wanted = hidden(&case["nodeRequests"][0]["body"]);
        let node = wanted["metadata"]["name"].as_str().context("a name")?.to_owned();
        world.node.end_agent(Signal::SIGTERM);
        world.node.rename(&world.server, &node)?;
        let flags = case["flags"].as_str().context("flags")?.split_whitespace();
        // Those two are given to every agent of a test, and the address is the recorded node's.
        let given = flags.filter(|f| !f.starts_with("--hostname-override") && !f.starts_with("--node-ip"));
        world.node.flags = given.map(str::to_owned).collect();
        let seen = world.sent()?.len();
        world.node.start_agent()?;
        let ours = world.after(seen, name, |s| s.is("create", "/api/v1/nodes") && s.code == 201)?;
        let own = &find(&ours, "create", "/api/v1/nodes")?.body;
        ensure!(own["metadata"]["labels"] == wanted["metadata"]["labels"], "{name}: {own:#}");
        ensure!(own["metadata"]["annotations"] == wanted["metadata"]["annotations"], "{name}: {own:#}");
        ensure!(own["spec"] == wanted["spec"], "{name}: {own:#}");
        ensure!(own["status"]["addresses"] == wanted["status"]["addresses"], "{name}: {own:#}");
        let parts = |body: &Value| -> Vec<Value> {
            let conditions = body["status"]["conditions"].as_array().into_iter().flatten();
            conditions.map(|c| json!([c["type"], c["status"], c["reason"], c["message"]])).collect()
        };
        ensure!(parts(own) == parts(&wanted), "{name}: {:#?}\nrecorded: {:#?}", parts(own), parts(&wanted));
    }
    Ok(())
}

#[test]
fn the_node_says_of_itself_what_a_kubelet_says() {
    let Some(shared) = tests::recordings("node-endpoints/node/first-registration.json") else {
        tests::skipped("no recordings beside the checkout");
        return;
    };
    if tests::no_node() {
        return;
    }
    let folder = shared.join("node-endpoints/node");
    let mut world = World::start().expect("a node");
    registration(&world, &folder).expect("registered as recorded");
    told(&world, &folder).expect("events as recorded");
    cordoned(&world).expect("events of a cordon");
    without_runtime(&mut world, &folder).expect("as recorded without its runtime");
    flagged(&mut world, &folder).expect("flags as recorded");
}
