//! A disk without room: writes are refused with a Status that says so, reads go on, nothing acknowledged is lost, and
//! writes go through again once there is room, without a restart.

use http::Method;
use serde_json::{Value, json};
use tests::{ApiServer, Connection};

/// Files of the server may grow to this many blocks of 512 bytes: room for its start and some hundred objects.
const LIMITED: &[&str] = &["sh", "-c", "trap '' XFSZ; ulimit -S -f 4096; exec \"$@\"", "sh"];
const PATH: &str = "/api/v1/namespaces/default/configmaps";

async fn create(connection: &mut Connection, name: &str) -> (u16, Value) {
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "x".repeat(10_000)}});
    let answer = connection.call(Method::POST, PATH, "application/json", body.to_string()).await.expect("an answer");
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).expect("JSON"))
}

async fn names(connection: &mut Connection) -> Vec<String> {
    let answer = connection.call(Method::GET, PATH, "", "").await.expect("a list");
    let list: Value = serde_json::from_slice(answer.body()).expect("JSON");
    let items = list["items"].as_array().expect("a list has items");
    let names = items.iter().filter_map(|i| i["metadata"]["name"].as_str());
    names.filter(|n| n.starts_with('n')).map(str::to_owned).collect()
}

#[tokio::test]
async fn writes_are_refused_while_there_is_no_room_and_go_through_afterwards() {
    let mut server = ApiServer::start_under(LIMITED, "full-disk", &["--controllers=-*", "--scheduler=false"])
        .expect("the server starts with small files");
    let mut connection = Connection::http2(&server).await.expect("the server accepts connections");
    let mut kept = Vec::new();
    let refused = loop {
        let name = format!("n{:04}", kept.len());
        match create(&mut connection, &name).await {
            (201, _) => kept.push(name),
            refused => break refused,
        }
        assert!(kept.len() < 5000, "the limit has no effect");
    };
    let (code, status) = refused;
    assert_eq!(
        (code, &status["kind"], &status["reason"]),
        (500, &json!("Status"), &json!("InternalError")),
        "{status}"
    );
    assert!(status["message"].as_str().is_some_and(|m| m.contains("no room")), "{status}");
    // Reads go on, and so does refusing.
    assert_eq!(names(&mut connection).await, kept);
    assert_eq!(create(&mut connection, "n-other").await.0, 500);
    let limit = std::process::Command::new("prlimit")
        .args(["--pid", &server.pid().to_string(), "--fsize=unlimited:"])
        .status()
        .expect("prlimit is part of util-linux");
    assert!(limit.success(), "the limit can be lifted");
    assert_eq!(create(&mut connection, "n-after").await.0, 201);
    kept.push("n-after".into());
    server.kill();
    server.under.clear();
    server.launch().expect("the store opens");
    let mut connection = Connection::http2(&server).await.expect("the server accepts connections");
    kept.sort();
    assert_eq!(names(&mut connection).await, kept);
}
