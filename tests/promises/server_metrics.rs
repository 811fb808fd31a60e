//! `/metrics` of the API server tells what was asked of it, under upstream's names, and nothing that a client makes up
//! becomes a series.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Far longer than anything here takes, even where much else runs.
const LONGEST: Duration = Duration::from_secs(30);

/// The value of the series of a metric that has all these labels; sums up several.
fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let fits = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|l| line.contains(l))
    };
    let found: Vec<f64> = page.lines().filter(fits).filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

async fn page(server: &ApiServer) -> Result<String> {
    let answer = Connection::http1(server).await?.call(Method::GET, "/metrics", "", Bytes::new()).await?;
    Ok(String::from_utf8_lossy(answer.body()).into_owned())
}

#[tokio::test]
async fn requests_are_counted_by_what_they_are_and_not_by_what_they_are_called() -> Result<()> {
    let server = ApiServer::start("server-metrics", &[])?;
    let api = Api::new(&server);
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    assert_eq!(api.post(MAPS, &map("a")).await?.0, 201);
    assert_eq!(api.post(&format!("{MAPS}?dryRun=All"), &map("b")).await?.0, 201);
    assert_eq!(api.get(&format!("{MAPS}/none")).await?.0, 404);
    assert_eq!(api.get(MAPS).await?.0, 200);
    assert_eq!(api.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "v"}})).await?.0, 200);
    let path = format!("{MAPS}/c?fieldManager=m");
    assert_eq!(api.ask(Method::PATCH, &path, "application/apply-patch+yaml", &map("c")).await?.0, 201);
    assert_eq!(api.ask(Method::DELETE, MAPS, "application/json", &Value::Null).await?.0, 200);
    // A watch counts as running until it ends, and as a request from then on.
    let watch = format!("{MAPS}?watch=1&resourceVersion=0&timeoutSeconds=1");
    assert_eq!(api.get(&watch).await?.0, 200);

    // What a client makes up: groups, resources, subresources, methods, names of users and agents.
    for path in [
        "/apis/made.up/v1/things",
        "/api/v1/madeups",
        "/api/v1/namespaces/default/configmaps/a/madeup",
        "/api/v9/configmaps",
        "/madeup",
    ] {
        api.get(path).await?;
    }
    let mut connection = Connection::http1(&server).await?;
    let odd = Request::builder().method("MADEUP").uri(MAPS).header("host", "127.0.0.1").header("user-agent", "madeup");
    assert_eq!(connection.send(odd.body(Full::new(Bytes::new()))?).await?.status(), 405);
    assert_eq!(api.of("madeup").get(MAPS).await?.0, 403);

    let page = page(&server).await?;
    assert!(!page.to_lowercase().contains("madeup") && !page.contains("made.up"), "{page}");
    let of = ["component=\"apiserver\"", "group=\"\"", "resource=\"configmaps\"", "subresource=\"\"", "version=\"v1\""];
    let total = |labels: &[&str]| value(&page, "apiserver_request_total", &[&of, labels].concat());
    for labels in [
        &["verb=\"POST\"", "scope=\"resource\"", "code=\"201\"", "dry_run=\"\""][..],
        &["verb=\"POST\"", "code=\"201\"", "dry_run=\"All\""],
        &["verb=\"GET\"", "scope=\"resource\"", "code=\"404\""],
        &["verb=\"LIST\"", "scope=\"namespace\"", "code=\"200\""],
        &["verb=\"PATCH\"", "code=\"200\""],
        &["verb=\"APPLY\"", "code=\"201\""],
        &["verb=\"DELETE\"", "scope=\"namespace\"", "code=\"200\""],
        &["verb=\"WATCH\"", "scope=\"namespace\"", "code=\"200\""],
    ] {
        assert_eq!(total(labels), Some(1.0), "{labels:?}\n{page}");
    }
    // Nobody who may not ask is counted.
    assert_eq!(total(&["code=\"403\""]), None, "{page}");
    let sizes =
        value(&page, "apiserver_response_sizes_count", &[&of[..], &["verb=\"LIST\"", "scope=\"namespace\""]].concat());
    assert_eq!(sizes, Some(1.0), "{page}");
    assert_eq!(
        value(&page, "apiserver_longrunning_requests", &["resource=\"configmaps\"", "verb=\"WATCH\""]),
        Some(0.0)
    );
    assert!(
        value(&page, "apiserver_current_inflight_requests", &["request_kind=\"readOnly\""]).is_some_and(|n| n >= 1.0)
    );
    assert!(
        value(&page, "apiserver_request_duration_seconds_count", &["verb=\"WATCH\"", "resource=\"configmaps\""])
            .is_some()
    );
    let promised = |verb| value(&page, "apiserver_request_sli_duration_seconds_count", &[&of[..], &[verb]].concat());
    assert_eq!((promised("verb=\"PATCH\""), promised("verb=\"WATCH\"")), (Some(1.0), None), "streams promise nothing");
    assert!(value(&page, "apiserver_client_certificate_expiration_seconds_count", &[]).is_some_and(|n| n > 1.0));
    assert_eq!(value(&page, "aggregator_unavailable_apiservice", &["name=\"v1.apps\""]), Some(0.0));
    assert_eq!(value(&page, "kubernetes_build_info", &["git_version=\"v1.36", "minor=\"36\""]), Some(1.0));
    let step = ["operation=\"CREATE\"", "rejected=\"false\"", "type=\"admit\""];
    assert!(value(&page, "apiserver_admission_step_admission_duration_seconds_count", &step).is_some_and(|n| n > 1.0));
    let plugin =
        |labels: &[&str]| value(&page, "apiserver_admission_controller_admission_duration_seconds_count", labels);
    assert!(plugin(&["name=\"NamespaceLifecycle\"", "operation=\"CREATE\"", "type=\"admit\""]).is_some());
    assert!(plugin(&["name=\"ResourceQuota\"", "operation=\"CREATE\"", "type=\"validate\""]).is_some());
    assert_eq!(plugin(&["name=\"RuntimeClass\"", "operation=\"UPDATE\""]), None, "it handles none");
    assert!(value(&page, "authenticated_user_requests", &["username=\"other\""]).is_some_and(|n| n > 1.0));
    assert!(value(&page, "authentication_attempts", &["result=\"success\""]).is_some_and(|n| n > 1.0));
    assert!(value(&page, "apiserver_storage_size_bytes", &["storage_cluster_id=\"etcd-0\""]).is_some_and(|n| n > 1.0));
    assert!(value(&page, "apiserver_storage_objects", &["resource=\"configmaps\""]).is_some());
    Ok(())
}

/// The page as soon as it is as wanted, which takes a moment.
async fn page_that(server: &ApiServer, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let begun = Instant::now();
    loop {
        let page = page(server).await?;
        if wanted(&page) {
            return Ok(page);
        }
        ensure!(begun.elapsed() < LONGEST, "the page does not become as wanted:\n{page}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_watch_runs_until_its_client_goes() -> Result<()> {
    let server = ApiServer::start("server-metrics-watch", &[])?;
    let labels = ["resource=\"secrets\"", "verb=\"WATCH\"", "scope=\"namespace\""];
    let running = |page: &str| value(page, "apiserver_longrunning_requests", &labels);
    let total = |page: &str| value(page, "apiserver_request_total", &labels);

    let mut client = tests::raw::tls(&server, b"http/1.1").await?;
    client.write_all(format!("GET {SECRETS}?watch=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    assert_eq!(Api::new(&server).post(SECRETS, &secret).await?.0, 201);
    let mut seen = Vec::new();
    let event = async {
        while !String::from_utf8_lossy(&seen).contains("\"ADDED\"") {
            ensure!(client.read_buf(&mut seen).await? > 0, "the watch ended: {}", String::from_utf8_lossy(&seen));
        }
        Ok(())
    };
    timeout(LONGEST, event).await.context("no event")??;
    let watching = page_that(&server, |page| running(page) == Some(1.0)).await?;
    assert_eq!(total(&watching), None, "it is counted at its end:\n{watching}");

    // Nothing else ends it: it has no time of its own, and the connection is not said goodbye to.
    drop(client);
    let page = page_that(&server, |page| running(page) == Some(0.0) && total(page).is_some()).await?;
    assert_eq!(total(&page), Some(1.0), "{page}");
    assert!(value(&page, "apiserver_watch_events_total", &["resource=\"secrets\"", "version=\"v1\""]).is_some());
    Ok(())
}

/// An alert about a metric that nobody has would never ring.
#[tokio::test]
async fn what_the_packaged_alerts_and_panels_ask_for_is_there() -> Result<()> {
    let server = ApiServer::start("server-metrics-packaged", &[])?;
    let api = Api::new(&server);
    assert_eq!(api.get(MAPS).await?.0, 200);
    let page = page(&server).await?;
    let files = tests::repository().join("packaging/package/apiserver-lite/files/usr/share/apiserver-lite");
    let mut asked = 0;
    for file in ["prometheus-rules.yaml", "grafana-dashboard.json"] {
        let text = std::fs::read_to_string(files.join(file))?;
        // What is written directly before a selector; `up` is Prometheus' own.
        for before in text.split('{') {
            let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            if !name.is_empty() && name != "up" {
                ensure!(value(&page, name, &[]).is_some(), "{file} asks for {name}");
                asked += 1;
            }
        }
    }
    ensure!(asked >= 8, "{asked} names were found");
    Ok(())
}

#[tokio::test]
async fn a_delete_makes_the_counters_begin_again() -> Result<()> {
    let server = ApiServer::start("server-metrics-reset", &["--controllers=-*", "--scheduler=false"])?;
    let api = Api::new(&server);
    let counted = |page: &str| value(page, "apiserver_request_total", &["resource=\"configmaps\"", "verb=\"LIST\""]);
    assert_eq!(api.get(MAPS).await?.0, 200);
    assert_eq!(counted(&page(&server).await?), Some(1.0));
    for path in ["/metrics", "/metrics/slis"] {
        let answer = Connection::http1(&server).await?.call(Method::DELETE, path, "", Bytes::new()).await?;
        assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, &b"metrics reset\n"[..]));
        assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    }
    assert_eq!(counted(&page(&server).await?), None);
    assert_eq!(api.get(MAPS).await?.0, 200);
    assert_eq!(counted(&page(&server).await?), Some(1.0), "and counts on");
    Ok(())
}
