//! A reflector over many objects misses nothing and sees nothing twice, however often the server dies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{reflector, watcher};
use serde_json::{Value, json};
use tests::{ApiServer, Connection};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const OBJECTS: usize = 5000;
const KILLS: usize = 20;
const CLIENTS: usize = 8;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What the watcher told.
enum Told {
    /// A list begins.
    Listing,
    /// An object, from a list or by itself; or that it is gone.
    Seen { listed: bool, name: String, version: u64, gone: bool },
}

fn told(event: &Event<ConfigMap>) -> Option<Told> {
    let seen = |object: &ConfigMap, listed, gone| {
        let meta = &object.metadata;
        let version = meta.resource_version.as_deref().and_then(|v| v.parse().ok()).expect("a version is a number");
        Some(Told::Seen { listed, name: meta.name.clone().expect("objects have names"), version, gone })
    };
    match event {
        Event::Init => Some(Told::Listing),
        Event::InitApply(object) => seen(object, true, false),
        Event::Apply(object) => seen(object, false, false),
        Event::Delete(object) => seen(object, false, true),
        Event::InitDone => None,
    }
}

#[derive(Debug)]
struct Seen {
    listed: bool,
    version: u64,
    gone: bool,
}

async fn create_all(server: &ApiServer) {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = Connection::http2(server).await.expect("the server accepts connections");
        clients.spawn(async move {
            for number in (client..OBJECTS).step_by(CLIENTS) {
                let body = json!({"metadata": {"name": format!("n{number}")}, "data": {"count": "0"}}).to_string();
                let answer = connection.call(Method::POST, MAPS, "application/json", body).await.expect("an answer");
                assert_eq!(answer.status(), 201);
            }
        });
    }
    clients.join_all().await;
}

/// Changes objects (most), takes some away and puts them back until told to stop or the server dies; what was
/// acknowledged: name, version, and whether it is gone.
async fn write(server: &ApiServer, round: usize, stop: Arc<AtomicBool>) -> JoinSet<Vec<(String, u64, bool)>> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = Connection::http2(server).await.expect("the server accepts connections");
        let stop = stop.clone();
        clients.spawn(async move {
            let mut acknowledged = Vec::new();
            for step in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Every client has objects of its own.
                let number = (round * 7919 + step * 31) * CLIENTS % (OBJECTS - OBJECTS % CLIENTS) + client;
                let (name, path) = (format!("n{number}"), format!("{MAPS}/n{number}"));
                let patch = json!({"data": {"count": format!("{round}.{step}")}}).to_string();
                let media = "application/merge-patch+json";
                let mut calls = vec![(Method::PATCH, path.clone(), media, patch)];
                if step % 5 == 4 {
                    let again = json!({"metadata": {"name": name}, "data": {"count": "again"}}).to_string();
                    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"}).to_string();
                    calls = vec![
                        (Method::DELETE, path, "application/json", options),
                        (Method::POST, MAPS.into(), "application/json", again),
                    ];
                }
                for (method, path, media, body) in calls {
                    let gone = method == Method::DELETE;
                    let Ok(answer) = connection.call(method.clone(), &path, media, body).await else {
                        return acknowledged;
                    };
                    // The server may have died after it did what an earlier round never heard of.
                    let expected = matches!(
                        (method, answer.status().as_u16()),
                        (_, 200 | 201) | (Method::PATCH | Method::DELETE, 404)
                    );
                    assert!(expected, "{path}: {}", String::from_utf8_lossy(answer.body()));
                    if answer.status().is_success() {
                        let said: Value = serde_json::from_slice(answer.body()).expect("an answer is JSON");
                        let version = said["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
                        // A deletion's answer is a Status, which has no version.
                        acknowledged.push((name.clone(), version.unwrap_or(0), gone));
                    }
                }
            }
            acknowledged
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reflector_sees_every_change_once_while_the_server_dies_twenty_times() {
    let mut server =
        ApiServer::start("reflector", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    create_all(&server).await;
    let client = super::kube_crate::client(&server).await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let (reader, writer) = reflector::store::<ConfigMap>();
    let (tell, mut events) = mpsc::unbounded_channel();
    let stream = reflector(writer, watcher(api.clone(), watcher::Config::default()));
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    if let Some(told) = told(&event)
                        && tell.send(told).is_err()
                    {
                        return;
                    }
                }
                // The watcher goes on by itself; its own pauses would grow longer with every kill.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let begun = std::time::Instant::now();
    while reader.len() < OBJECTS {
        assert!(begun.elapsed().as_secs() < 60, "{} of {OBJECTS} objects came", reader.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let mut acknowledged = Vec::new();
    for round in 0..=KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = write(&server, round, stop.clone()).await;
        tokio::time::sleep(Duration::from_millis(150 + 37 * (round as u64 % 7))).await;
        if round < KILLS {
            server.kill();
        }
        stop.store(true, Ordering::Relaxed);
        acknowledged.extend(clients.join_all().await.into_iter().flatten());
        if round < KILLS {
            server.launch().expect("the server starts again");
        }
    }
    assert!(acknowledged.len() > 10 * KILLS, "only {} changes", acknowledged.len());

    // What the reflector holds becomes what the server has.
    let mut connection = Connection::http1(&server).await.expect("the server accepts connections");
    let answer = connection.call(Method::GET, MAPS, "", "").await.expect("a list");
    let list: Value = serde_json::from_slice(answer.body()).expect("a list is JSON");
    let pair = |name: &Value, version: &Value| {
        (name.as_str().unwrap_or_default().to_owned(), version.as_str().unwrap_or_default().to_owned())
    };
    let items = list["items"].as_array().expect("a list has items");
    let wanted: BTreeMap<_, _> =
        items.iter().map(|i| pair(&i["metadata"]["name"], &i["metadata"]["resourceVersion"])).collect();
    let begun = std::time::Instant::now();
    loop {
        let held: BTreeMap<_, _> = reader
            .state()
            .iter()
            .map(|o| {
                (o.metadata.name.clone().unwrap_or_default(), o.metadata.resource_version.clone().unwrap_or_default())
            })
            .collect();
        if held == wanted {
            break;
        }
        let missing = wanted.iter().filter(|(name, version)| held.get(*name) != Some(version)).count();
        assert!(begun.elapsed().as_secs() < 60, "{missing} of {} objects are not as they are", wanted.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Every change came once and in order; a list may tell the newest again, and stands for what it replaces.
    let (mut newest, mut seen) = (HashMap::<String, u64>::new(), HashMap::<String, Vec<Seen>>::new());
    let (mut highest, mut lists) = (0, 0);
    while let Ok(told) = events.try_recv() {
        let Told::Seen { listed, name, version, gone } = told else {
            lists += 1;
            continue;
        };
        let before = newest.insert(name.clone(), version).unwrap_or(0);
        assert!(version > before || listed && version == before, "{name} went from {before} to {version}");
        assert!(listed || version > highest, "{name} at {version} came after {highest}");
        highest = highest.max(version);
        seen.entry(name).or_default().push(Seen { listed, version, gone });
    }
    println!("{} changes acknowledged, {lists} lists begun", acknowledged.len());
    for (name, version, gone) in &acknowledged {
        let all = seen.get(name).map(Vec::as_slice).unwrap_or_default();
        let there = match gone {
            // One that a list does not show any more is gone as well, as the comparison above tells.
            true => lists > 1 || all.iter().any(|seen| seen.gone),
            // One that was changed and then taken away between two lists is in neither.
            false if !wanted.contains_key(name) => true,
            false => all.iter().any(|seen| seen.version == *version || seen.listed && seen.version > *version),
        };
        assert!(there, "{name} at {version} (gone: {gone}) was not seen: {all:?}");
    }
}
