//! What is read in pages, or at a version, is there for as long as the server says and then gone in upstream's words.
//!
//! The server keeps the past for five minutes; here it is told to keep it for half a second.

use serde_json::{Value, json};
use tests::{Api, ApiServer};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// What upstream tells who comes back too late with a token.
const TOO_LATE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
    results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";

async fn create(api: Api<'_>, name: &str) -> Value {
    let (code, said) = api.post(MAPS, &json!({"metadata": {"name": name}})).await.expect("an answer");
    assert_eq!(code, 201, "{said}");
    said
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|o| o["metadata"]["name"].as_str()).collect()
}

fn text<'a>(list: &'a Value, field: &str) -> &'a str {
    list["metadata"][field].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_too_old_is_answered_with_a_fresh_one() {
    let flags = ["--controllers=-*", "--scheduler=false", "--etcd-compaction-interval=500ms"];
    let server = ApiServer::start("old-tokens", &flags).expect("the server starts");
    let api = Api::new(&server);
    for name in ["a", "b", "c", "d", "e"] {
        create(api, name).await;
    }
    let (_, first) = api.get(&format!("{MAPS}?limit=2")).await.expect("an answer");
    assert_eq!(names(&first), ["a", "b"]);
    let (version, token) = (text(&first, "resourceVersion"), text(&first, "continue"));
    // From now on the pages to come are of the past.
    let (code, _) = api.merge(&format!("{MAPS}/d"), &json!({"data": {"k": "v"}})).await.expect("an answer");
    assert_eq!(code, 200);
    let delete = api.ask(http::Method::DELETE, &format!("{MAPS}/c"), "application/json", &Value::Null).await;
    assert_eq!(delete.expect("an answer").0, 200);
    create(api, "f").await;

    let next = format!("{MAPS}?limit=2&continue={token}");
    let gone = api.until(&next, |code, _| code != 200).await.expect("it gets old");
    assert_eq!((&gone["code"], &gone["reason"]), (&json!(410), &json!("Expired")), "{gone}");
    assert_eq!(gone["message"], TOO_LATE);
    let fresh = text(&gone, "continue");
    assert!(!fresh.is_empty() && fresh != token, "{gone}");

    // The rest as it is now: without what went, with what came, and again in pages of one version.
    let (code, rest) = api.get(&format!("{MAPS}?limit=2&continue={fresh}")).await.expect("an answer");
    assert_eq!((code, names(&rest)), (200, vec!["d", "e"]), "{rest}");
    assert_eq!(rest["items"][0]["data"]["k"], "v");
    assert_ne!(text(&rest, "resourceVersion"), version);
    let last = format!("{MAPS}?limit=2&continue={}", text(&rest, "continue"));
    let (code, last) = api.get(&last).await.expect("an answer");
    assert_eq!((code, names(&last)), (200, vec!["f"]), "{last}");
    assert_eq!(text(&last, "resourceVersion"), text(&rest, "resourceVersion"));
    assert!(last["metadata"]["continue"].is_null(), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_too_old_is_gone_for_lists_and_for_watches() {
    let flags = ["--controllers=-*", "--scheduler=false", "--etcd-compaction-interval=500ms"];
    let server = ApiServer::start("old-versions", &flags).expect("the server starts");
    let api = Api::new(&server);
    let made = create(api, "a").await;
    let version = text(&made, "resourceVersion");
    create(api, "b").await;
    create(api, "c").await;

    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let gone = api.until(&exact, |code, _| code != 200).await.expect("it gets old");
    let wanted = "The resourceVersion for the provided list is too old.";
    assert_eq!((&gone["code"], &gone["reason"], &gone["message"]), (&json!(410), &json!("Expired"), &json!(wanted)));
    // A version and a limit mean the same; a version alone is the least that is wanted.
    let (code, said) = api.get(&format!("{MAPS}?resourceVersion={version}&limit=1")).await.expect("an answer");
    assert_eq!((code, &said["message"]), (410, &json!(wanted)));
    let (code, said) = api.get(&format!("{MAPS}?resourceVersion={version}")).await.expect("an answer");
    assert_eq!((code, names(&said)), (200, vec!["a", "b", "c"]));

    // Watches begin anywhere in the collection's own past, which goes a moment later. Then there is one event, and the end.
    let watch = format!("{MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=1");
    let event = api.until(&watch, |code, event| (code, &event["type"]) == (200, &json!("ERROR"))).await;
    let event = event.expect("it gets old for watches as well");
    let status = &event["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with(&format!("too old resource version: {version} (")), "{message}");
}

/// As long as the time has not come, the pages are those of the first one's moment.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_of_one_moment_whatever_is_written_meanwhile() {
    let server = ApiServer::start("old-pages", &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    for name in ["a", "b", "c", "d", "e"] {
        create(api, name).await;
    }
    let (mut path, mut seen, mut versions) = (format!("{MAPS}?limit=2"), Vec::new(), Vec::new());
    let mut left = Vec::new();
    loop {
        let (code, page) = api.get(&path).await.expect("an answer");
        assert_eq!(code, 200, "{page}");
        seen.extend(names(&page).into_iter().map(str::to_owned));
        versions.push(text(&page, "resourceVersion").to_owned());
        left.push(page["metadata"]["remainingItemCount"].as_u64());
        create(api, &format!("b{}", seen.len())).await;
        let delete = api.ask(http::Method::DELETE, &format!("{MAPS}/e"), "application/json", &Value::Null).await;
        assert!(matches!(delete.expect("an answer").0, 200 | 404));
        match text(&page, "continue") {
            "" => break,
            token => path = format!("{MAPS}?limit=2&continue={token}"),
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    assert_eq!(left, [Some(3), Some(1), None]);
    versions.dedup();
    assert_eq!(versions.len(), 1, "{versions:?}");
}

/// A collection that nobody writes keeps its past; a version of it goes nevertheless, with those of all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_gets_old_though_its_collection_is_not_written() {
    let flags = ["--controllers=-*", "--scheduler=false", "--etcd-compaction-interval=500ms"];
    let server = ApiServer::start("old-quiet", &flags).expect("the server starts");
    let api = Api::new(&server);
    for name in ["a", "b", "c"] {
        create(api, name).await;
    }
    let (_, first) = api.get(&format!("{MAPS}?limit=2")).await.expect("an answer");
    let (token, version) = (text(&first, "continue"), text(&first, "resourceVersion"));
    let secret = json!({"metadata": {"name": "s"}});
    assert_eq!(api.post("/api/v1/namespaces/default/secrets", &secret).await.expect("an answer").0, 201);
    let gone =
        api.until(&format!("{MAPS}?limit=2&continue={token}"), |code, _| code != 200).await.expect("it gets old");
    assert_eq!((&gone["reason"], &gone["message"]), (&json!("Expired"), &json!(TOO_LATE)), "{gone}");
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(api.get(&exact).await.expect("an answer").0, 410);
    let (_, rest) = api.get(&format!("{MAPS}?continue={}", text(&gone, "continue"))).await.expect("an answer");
    assert_eq!(names(&rest), ["c"]);
}
