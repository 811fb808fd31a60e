//! Bad input gets the right Status; nothing panics, hangs or loses data.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::Value;
use tests::{ApiServer, Connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LIMIT: Duration = Duration::from_secs(30);

async fn answer(server: &ApiServer, method: Method, path: &str, media: &str, body: impl Into<Bytes>) -> (u16, Value) {
    let mut connection = Connection::http1(server).await.expect("the server accepts connections");
    let answer = tokio::time::timeout(LIMIT, connection.call(method, path, media, body))
        .await
        .expect("no hang")
        .expect("an answer");
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
}

#[tokio::test]
async fn each_kind_of_bad_request_gets_its_status() {
    let server = ApiServer::start("bad-input", &[]).expect("the server starts");
    let json = "application/json";
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let deep = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{deep}}}"#);
    let cases: [(Method, &str, &str, Bytes, u16, &str); 12] = [
        (Method::POST, CONFIG_MAPS, json, "{".into(), 400, "BadRequest"),
        (Method::POST, CONFIG_MAPS, json, "".into(), 400, "BadRequest"),
        // Nothing at all is an object without a name, as upstream.
        (Method::POST, CONFIG_MAPS, json, "null".into(), 422, "Invalid"),
        (
            Method::POST,
            CONFIG_MAPS,
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","data":7}"#.into(),
            400,
            "BadRequest",
        ),
        (
            Method::POST,
            CONFIG_MAPS,
            json,
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#.into(),
            400,
            "BadRequest",
        ),
        (Method::POST, CONFIG_MAPS, json, deep.into(), 400, "BadRequest"),
        (Method::POST, CONFIG_MAPS, "text/csv", "a,b".into(), 415, "UnsupportedMediaType"),
        (
            Method::POST,
            CONFIG_MAPS,
            "application/vnd.kubernetes.protobuf",
            Bytes::from_static(b"k8s\0\x0a\xff"),
            400,
            "BadRequest",
        ),
        (
            Method::POST,
            CONFIG_MAPS,
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A B"}}"#.into(),
            422,
            "Invalid",
        ),
        (Method::GET, "/apis/nothing.example/v1/things", "", "".into(), 404, ""),
        (Method::GET, "/api/v1/namespaces/default/nothings", "", "".into(), 404, "NotFound"),
        (Method::GET, "/api/v1/pods?limit=many", "", "".into(), 400, "BadRequest"),
    ];
    for (method, path, media, body, code, reason) in cases {
        let shown: String = String::from_utf8_lossy(&body).chars().take(80).collect();
        let (status, object) = answer(&server, method, path, media, body).await;
        assert_eq!(status, code, "{path} with {shown}: {object}");
        if !reason.is_empty() {
            assert_eq!(object["kind"], "Status", "{path} with {shown}");
            assert_eq!(object["reason"], reason, "{path} with {shown}: {object}");
        }
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::test]
async fn a_body_over_three_mebibytes_is_refused_before_it_is_read() {
    let server = ApiServer::start("oversize", &[]).expect("the server starts");
    let mut stream = tests::raw::tls(&server, b"http/1.1").await.expect("connected");
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4194304\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = vec![0; 12];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut answer)).await.expect("no hang").expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_body_that_nobody_wants_does_not_cost_the_connection() {
    let server = ApiServer::start("unwanted", &[]).expect("the server starts");
    let mut connection = tests::raw::Connection::http1(&server).await.expect("connected");
    let body = Bytes::from(vec![b'a'; 200_000]);
    for _ in 0..20 {
        let answer = connection.call(Method::POST, CONFIG_MAPS, "text/csv", body.clone()).await.expect("an answer");
        assert_eq!(answer.status(), 415);
        let answer = connection.call(Method::POST, "/apis/none/v1/things", "application/json", body.clone()).await;
        assert_eq!(answer.expect("an answer").status(), 404);
    }
}

#[tokio::test]
async fn half_open_and_broken_connections_leave_the_server_working() {
    let mut server = ApiServer::start("half-open", &["--request-timeout=5s"]).expect("the server starts");
    let mut held = Vec::new();
    for number in 0..200 {
        let mut tcp = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.expect("connected");
        match number % 4 {
            0 => {}
            1 => tcp.write_all(b"\x16\x03\x01\x02").await.expect("sent"),
            2 => tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent"),
            _ => drop(tcp.write_all(&[0xff; 512]).await),
        }
        held.push(tcp);
    }
    // A request whose body never comes, and one that is cut in the middle.
    let mut waiting = tests::raw::tls(&server, b"http/1.1").await.expect("connected");
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    waiting.write_all(head.as_bytes()).await.expect("sent");
    let mut cut = tests::raw::tls(&server, b"http/1.1").await.expect("connected");
    cut.write_all(head.as_bytes()).await.expect("sent");
    drop(cut);
    let (code, list) = answer(&server, Method::GET, CONFIG_MAPS, "", "").await;
    assert_eq!(code, 200);
    assert!(
        list["items"].as_array().is_some_and(|items| items.iter().all(|i| i["metadata"]["name"] == "kube-root-ca.crt"))
    );
    // The server lets go of all of them by itself: of a handshake that does not come at once or in ten seconds, of a body
    // after the time that a request may take.
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(LIMIT, waiting.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(ended.is_ok() && answer.starts_with("HTTP/1.1 504"), "{ended:?}: {answer}");
    for (number, mut tcp) in held.into_iter().enumerate() {
        let mut said = Vec::new();
        let ended = tokio::time::timeout(LIMIT, tcp.read_to_end(&mut said)).await;
        assert!(ended.is_ok(), "connection {number} is held for ever");
        if number % 4 == 2 {
            let said = String::from_utf8_lossy(&said);
            assert!(said.starts_with("HTTP/1.0 400 Bad Request\r\n"), "{said}");
            assert!(said.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{said}");
        }
    }
    assert!(server.alive());
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// The first line of what comes back for text that is sent as it is.
async fn first_line(server: &ApiServer, text: &str) -> String {
    let mut stream = tests::raw::tls(server, b"http/1.1").await.expect("connected");
    // A server that has read enough may close before everything is sent.
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    let read = async {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() && byte[0] != b'\r' {
            answer.push(byte[0]);
        }
    };
    tokio::time::timeout(LIMIT, read).await.expect("no hang");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Everything that comes back for text that is sent as it is, until the server closes.
async fn all_of(server: &ApiServer, text: &str) -> String {
    let stream = tests::raw::tls(server, b"http/1.1").await.expect("connected");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let both = async {
        // A server that has read enough may close before everything is sent.
        tokio::join!(writer.write_all(text.as_bytes()), reader.read_to_end(&mut answer))
    };
    let (_, read) = tokio::time::timeout(LIMIT, both).await.expect("no hang");
    assert!(read.is_ok(), "{read:?} after {}", String::from_utf8_lossy(&answer));
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn each_limit_has_its_status() {
    let server = ApiServer::start("limits", &[]).expect("the server starts");
    let (code, _) = answer(
        &server,
        Method::POST,
        CONFIG_MAPS,
        "application/json",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#,
    )
    .await;
    assert_eq!(code, 201);
    let one = format!("{CONFIG_MAPS}/a");
    let patch = |count: usize| {
        let operation = r#"{"op":"test","path":"/data/k","value":"v"}"#;
        format!("[{}]", vec![operation; count].join(","))
    };
    let media = "application/json-patch+json";
    assert_eq!(answer(&server, Method::PATCH, &one, media, patch(10_000)).await.0, 200);
    let (code, said) = answer(&server, Method::PATCH, &one, media, patch(10_001)).await;
    assert_eq!((code, &said["reason"]), (413, &Value::from("RequestEntityTooLarge")), "{said}");
    assert_eq!(said["message"], "The allowed maximum operations in a JSON patch is 10000, got 10001");

    let large = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"b"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(3 << 20)
    );
    let (code, said) = answer(&server, Method::POST, CONFIG_MAPS, "application/json", large).await;
    assert_eq!(code, 413);
    assert_eq!(said["message"], "Request entity too large: limit is 3145728");

    // Nested too deeply, in each text format; a patch that would nest too deeply does no harm either.
    let nested = |levels: usize, open: &str, close: &str| {
        format!(r#"{{"data":{{"k":{}1{}}}}}"#, open.repeat(levels), close.repeat(levels))
    };
    let deep = |open: &str, close: &str| nested(10_000, open, close);
    for (media, body) in [
        ("application/merge-patch+json", deep("[", "]")),
        ("application/strategic-merge-patch+json", deep(r#"{"a":"#, "}")),
        ("application/apply-patch+yaml", deep("[", "]")),
    ] {
        let path = format!("{one}?fieldManager=me");
        let (code, said) = answer(&server, Method::PATCH, &path, media, body).await;
        assert_eq!((code, &said["kind"]), (400, &Value::from("Status")), "{media}: {said}");
    }
    let (code, said) = answer(&server, Method::POST, CONFIG_MAPS, "application/yaml", deep("[", "]")).await;
    assert_eq!((code, &said["kind"]), (400, &Value::from("Status")), "{said}");

    // Not too deeply, but a text is no list.
    let merge = "application/merge-patch+json";
    let (code, _) = answer(&server, Method::PATCH, &one, merge, nested(9_000, "[", "]")).await;
    assert_eq!(code, 422);
    // Copied into itself until it is too deep.
    let copies = (0..16).map(|n| format!(r#",{{"op":"copy","from":"/x","path":"/x{}"}}"#, "/a".repeat(1 << n)));
    let patch = format!(r#"[{{"op":"add","path":"/x","value":{{"a":null}}}}{}]"#, copies.collect::<String>());
    assert_eq!(answer(&server, Method::PATCH, &one, "application/json-patch+json", patch).await.0, 422);

    // Long selectors are read; parts of them that are too long are told.
    let many: Vec<String> = (0..1_000).map(|n| format!("key-{n}!=value-{n}")).collect();
    let path = format!("{CONFIG_MAPS}?labelSelector={}", many.join("%2C"));
    assert_eq!(answer(&server, Method::GET, &path, "", "").await.0, 200);
    let path = format!("{CONFIG_MAPS}?labelSelector=a%3D{}", "x".repeat(64));
    let (code, said) = answer(&server, Method::GET, &path, "", "").await;
    assert_eq!(code, 400);
    assert!(said["message"].as_str().is_some_and(|m| m.contains("must be no more than 63")), "{said}");

    // What does not fit a request's head never reaches a handler; the answer is Go's all the same.
    let long = |bytes: usize| format!("GET /version?{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(bytes));
    let headers = |count: usize| {
        format!("GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n", "x-group: one\r\n".repeat(count))
    };
    let large = format!("GET /version HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(1 << 20));
    for (head, status) in [
        (long(70_000), "414 URI Too Long"),
        (long(1 << 20), "431 Request Header Fields Too Large"),
        (large, "431 Request Header Fields Too Large"),
        (headers(1_000), "431 Request Header Fields Too Large"),
        ("GET /version\r\n\r\n".into(), "400 Bad Request"),
        ("GET /version HTTP/1.1\r\nno colon\r\n\r\n".into(), "400 Bad Request"),
        ("GE(T /version HTTP/1.1\r\n\r\n".into(), "400 Bad Request"),
    ] {
        let shown: String = head.chars().take(40).collect();
        let text = "Content-Type: text/plain; charset=utf-8\r\nConnection: close";
        assert_eq!(all_of(&server, &head).await, format!("HTTP/1.1 {status}\r\n{text}\r\n\r\n{status}"), "{shown}");
    }
    let fits = format!("GET /version?{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(65_000));
    assert!(first_line(&server, &fits).await.starts_with("HTTP/1.1 200 "));
    assert!(all_of(&server, &headers(400)).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(answer(&server, Method::GET, &one, "", "").await.0, 200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::test]
async fn a_body_that_is_half_sent_is_not_waited_for() {
    let server = ApiServer::start("half-sent", &["--request-timeout=2s"]).expect("the server starts");
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{{")
    };
    let begun = std::time::Instant::now();
    let line = first_line(&server, &head(CONFIG_MAPS)).await;
    assert!(line.starts_with("HTTP/1.1 504 "), "{line}");
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    // A body that nobody reads, in drops: the answer is there at once, and the connection does not stay.
    let mut stream = tests::raw::tls(&server, b"http/1.1").await.expect("connected");
    stream.write_all(head("/apis/none/v1/things").as_bytes()).await.expect("sent");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let drops = tokio::spawn(async move {
        while writer.write_all(b"a").await.is_ok() && writer.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut answer = Vec::new();
    // How the connection ends is not of interest.
    let _ = tokio::time::timeout(LIMIT, reader.read_to_end(&mut answer)).await.expect("the connection ends");
    assert!(answer.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&answer));
    drops.abort();
}

/// A small reproducible generator (xorshift64*), so that a failure can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const RESOURCES: &[&str] = &[
    "api/v1/namespaces/fuzz/pods",
    "api/v1/namespaces/fuzz/services",
    "api/v1/namespaces/fuzz/secrets",
    "api/v1/nodes",
    "api/v1/namespaces/fuzz/configmaps",
    "apis/apps/v1/namespaces/fuzz/deployments",
    "apis/batch/v1/namespaces/fuzz/jobs",
    "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "apis/coordination.k8s.io/v1/namespaces/fuzz/leases",
    "api/v1/persistentvolumes",
    "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "apis/autoscaling/v2/namespaces/fuzz/horizontalpodautoscalers",
    "apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "apis/networking.k8s.io/v1/namespaces/fuzz/ingresses",
];
const TAILS: &[&str] = &[
    "",
    "",
    "",
    "/a",
    "/a/status",
    "/a/scale",
    "/a/binding",
    "/a/log",
    "/a/eviction",
    "/a/token",
    "/%00",
    "/a//b",
    "/..",
    "/a/exec",
];
const QUERIES: &[&str] = &[
    "",
    "",
    "?limit=1",
    "?limit=-1",
    "?resourceVersion=x",
    "?resourceVersion=99999999",
    "?continue=zzz",
    "?labelSelector=a%20in%20(b",
    "?fieldSelector=metadata.name%3Da",
    "?dryRun=All",
    "?dryRun=x",
    "?fieldValidation=Strict",
    "?fieldManager=%00",
    "?pretty=1",
    "?watch=1&timeoutSeconds=1",
    "?gracePeriodSeconds=-1",
    "?propagationPolicy=Foreground",
    "?sendInitialEvents=true&watch=1&timeoutSeconds=1",
    "?resourceVersionMatch=Exact",
];
const MEDIA: &[&str] = &[
    "application/json",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "x",
    "",
];
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"metadata\"",
    "\"name\"",
    "\"a\"",
    "\"spec\"",
    "\"containers\"",
    "\"kind\"",
    "\"Pod\"",
    "\"apiVersion\"",
    "\"v1\"",
    "null",
    "true",
    "1",
    "-1",
    "1e999",
    "9223372036854775808",
    "0.1",
    "\"\\ud800\"",
    "\"\u{0}\"",
    "\"op\"",
    "\"path\"",
    "\"/metadata/x\"",
    "\"value\"",
    "\"$patch\"",
    "\"delete\"",
    "\"$setElementOrder/containers\"",
    "\"resources\"",
    "\"limits\"",
    "\"cpu\"",
    "\"1Zi\"",
    "\"ports\"",
    "\"status\"",
    "\n",
    "- ",
    "a: ",
];

fn body(random: &mut Random) -> Bytes {
    match random.below(4) {
        0 => (0..random.below(200)).map(|_| u8::try_from(random.below(256)).unwrap_or(0)).collect(),
        1 => {
            let mut bytes = b"k8s\0".to_vec();
            bytes.extend((0..random.below(100)).map(|_| u8::try_from(random.below(256)).unwrap_or(0)));
            bytes.into()
        }
        2 => (0..random.below(40)).map(|_| *random.pick(PIECES)).collect::<String>().into(),
        _ => {
            let kind = random.pick(&[
                "Pod",
                "Service",
                "Secret",
                "Node",
                "ConfigMap",
                "Deployment",
                "Job",
                "ClusterRole",
                "Lease",
            ]);
            let version =
                random.pick(&["v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1", "coordination.k8s.io/v1"]);
            let junk: String = (0..random.below(12)).map(|_| *random.pick(PIECES)).collect();
            let value = if serde_json::from_str::<Value>(&junk).is_ok() {
                junk
            } else {
                (*random.pick(&["{}", "[]", "null", "\"x\"", "7"])).to_owned()
            };
            let field = random.pick(&["spec", "status", "data", "rules", "containers", "template", "stringData"]);
            format!(r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"a","generateName":"g"}},"{field}":{value}}}"#).into()
        }
    }
}

/// Some requests watch for a second; in the meantime others go on.
const LANES: u64 = 8;

async fn random_requests(server: &ApiServer, seed: u64, count: u64) {
    let mut random = Random(seed);
    let mut connection = Connection::http1(server).await.expect("the server accepts connections");
    for number in 0..count {
        let method = random
            .pick(&[
                Method::GET,
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE,
                Method::HEAD,
                Method::OPTIONS,
            ])
            .clone();
        let path = format!("/{}{}{}", random.pick(RESOURCES), random.pick(TAILS), random.pick(QUERIES));
        let media = *random.pick(MEDIA);
        let body = body(&mut random);
        let what = format!("request {number} of {seed}: {method} {path} {media} {body:?}");
        let result = tokio::time::timeout(LIMIT, connection.call(method, &path, media, body))
            .await
            .unwrap_or_else(|_| panic!("hangs: {what}"));
        match result {
            // Upstream answers a few bad versions with a 500 that has no reason; one with a reason, or that talks of a
            // panic, is a bug.
            Ok(answer) => {
                let said = String::from_utf8_lossy(answer.body());
                let known = said.contains("resourceVersion");
                assert!(answer.status() != 500 || known && !said.contains("panic"), "{what}: {said}");
            }
            // Refused before the whole request was read: the server may close. It must take the next connection.
            Err(_) => connection = Connection::http1(server).await.unwrap_or_else(|e| panic!("{what}: {e:#}")),
        }
    }
}

#[tokio::test]
async fn ten_thousand_random_requests_neither_panic_nor_hang_nor_lose_data() {
    let mut server = ApiServer::start("fuzz", &[]).expect("the server starts");
    let (code, _) =
        answer(&server, Method::POST, "/api/v1/namespaces", "application/json", r#"{"metadata":{"name":"fuzz"}}"#)
            .await;
    assert_eq!(code, 201);
    let kept = r#"{"metadata":{"name":"kept"},"data":{"a":"b"}}"#;
    assert_eq!(answer(&server, Method::POST, CONFIG_MAPS, "application/json", kept).await.0, 201);
    let lanes = (0..LANES).map(|lane| random_requests(&server, 0x5eed + lane, 10_000 / LANES));
    futures_util::future::join_all(lanes).await;
    assert!(server.alive());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.stop();
    server.launch().expect("the store opens again");
    let (code, object) = answer(&server, Method::GET, &format!("{CONFIG_MAPS}/kept"), "", "").await;
    assert_eq!((code, &object["data"]["a"]), (200, &Value::from("b")));
}

/// The body used to be sent all the same, and clients took the stream for broken.
#[tokio::test]
async fn an_answer_to_head_has_no_body_over_either_protocol() {
    let server = ApiServer::start("head", &[]).expect("the server starts");
    let connections = [Connection::http1(&server).await, Connection::http2(&server).await];
    for mut connection in connections.map(|connection| connection.expect("connected")) {
        for (path, code) in [("/healthz", 200), ("/version", 405), ("/api/v1/namespaces", 405)] {
            let answer = connection.call(Method::HEAD, path, "", "").await.expect("an answer");
            assert_eq!((answer.status().as_u16(), answer.body().len()), (code, 0), "{path}");
            assert!(answer.headers().contains_key(http::header::CONTENT_LENGTH), "{path}");
        }
    }
}

#[tokio::test]
async fn a_client_without_credentials_reads_nothing() {
    let server = ApiServer::start("anonymous", &[]).expect("the server starts");
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(rustls_pki_types::CertificateDer::from_pem_file(server.dir.join("pki/ca.crt")).expect("a certificate"))
        .expect("valid");
    let config =
        rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
    let tcp = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("127.0.0.1").expect("an address");
    let mut tls = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, tcp).await.expect("TLS");
    tls.write_all(b"GET /api/v1/secrets HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut text = String::new();
    // The server may leave out TLS's closing notice once the answer is complete.
    let _ = tls.read_to_string(&mut text).await;
    assert!(text.starts_with("HTTP/1.1 403"), "{text}");
    assert!(text.contains("system:anonymous"), "{text}");
}

/// What a call is answered with: the code, the warnings and where else to look.
async fn told(server: &ApiServer, method: Method, path: &str, media: &str, body: &str) -> (u16, Vec<String>, String) {
    let mut connection = Connection::http1(server).await.expect("the server accepts connections");
    let answer = connection.call(method, path, media, body.to_owned()).await.expect("an answer");
    let all = |name: &str| -> Vec<String> {
        let values = answer.headers().get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    (answer.status().as_u16(), all("warning"), all("location").concat())
}

/// Warnings were lost where the write failed.
#[tokio::test]
async fn mistakes_that_are_passed_over_are_told_whatever_comes_of_a_write() {
    let server = ApiServer::start("warned", &[]).expect("the server starts");
    let map = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}},"wrong":1}}"#);
    let named = |name: &str| format!("{CONFIG_MAPS}/{name}");
    let merge = "application/merge-patch+json";
    for (method, path, media, body, code) in [
        (Method::POST, CONFIG_MAPS.to_owned(), "application/json", map("a"), 201),
        (Method::POST, CONFIG_MAPS.to_owned(), "application/json", map("a"), 409),
        (Method::POST, CONFIG_MAPS.to_owned(), "application/json", map("A"), 422),
        (Method::PUT, named("b"), "application/json", map("b"), 404),
        (Method::PUT, named("a"), "application/json", map("b"), 400),
        (Method::PATCH, named("a"), merge, r#"{"wrong":1,"metadata":{"resourceVersion":"1"}}"#.into(), 409),
        (Method::PATCH, named("a"), merge, map("a"), 200),
    ] {
        let (found, warnings, _) = told(&server, method.clone(), &path, media, &body).await;
        assert_eq!((found, warnings), (code, vec![r#"299 - "unknown field \"wrong\"""#.to_owned()]), "{method} {path}");
    }
    let jobs = "/apis/batch/v1/namespaces/default/jobs/none";
    let (code, warnings, _) = told(&server, Method::DELETE, jobs, "application/json", "").await;
    assert_eq!((code, warnings.len()), (404, 1), "{warnings:?}");
}

/// Whether a client can go on to a kubelet is not asked where there is none.
#[tokio::test]
async fn a_connection_goes_on_only_to_what_is_there() {
    let server = ApiServer::start("goes-on", &["--controllers=-*", "--disable-admission-plugins=ServiceAccount"]);
    let server = server.expect("the server starts");
    let ask =
        async |method: Method, path: &str, body: &str| told(&server, method, path, "application/json", body).await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"nodeName":"far","containers":[{"name":"c","image":"i"}]}}"#;
    assert_eq!(ask(Method::POST, "/api/v1/namespaces/default/pods", pod).await.0, 201);
    let streams = ["exec", "attach", "portforward"].map(|part| format!("/api/v1/namespaces/default/pods/p/{part}"));
    let proxy = "/api/v1/nodes/far/proxy";
    for path in streams.iter().map(String::as_str).chain([proxy]) {
        assert_eq!(ask(Method::GET, path, "").await.0, 404, "{path}");
    }
    let node = r#"{"metadata":{"name":"far"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}"#;
    assert_eq!(ask(Method::POST, "/api/v1/nodes", node).await.0, 201);
    for path in &streams {
        assert_eq!(ask(Method::GET, path, "").await.0, 400, "{path}");
    }
    let (code, _, place) = ask(Method::GET, "/api/v1/nodes/far/proxy?a=b", "").await;
    assert_eq!((code, &*place), (301, "/api/v1/nodes/far/proxy/?a=b"));
}

/// A path may have an empty namespace in it, where nothing is found, written or deleted.
#[tokio::test]
async fn an_empty_namespace_holds_nothing() {
    let server = ApiServer::start("empty-namespace", &[]).expect("the server starts");
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#;
    let (json, apply) = ("application/json", "application/apply-patch+yaml");
    let (status, said) = answer(&server, Method::POST, CONFIG_MAPS, json, object).await;
    assert_eq!(status, 201, "{said}");
    let (all, one) = ("/api/v1/namespaces//configmaps", "/api/v1/namespaces//configmaps/x");
    for (method, path, media, body, code, message) in [
        (Method::GET, one, "", "", 400, "Namespace parameter required."),
        (Method::PUT, one, json, object, 400, "Namespace parameter required."),
        (Method::PATCH, &*format!("{one}?fieldManager=a"), apply, object, 400, "Namespace parameter required."),
        (Method::DELETE, one, "", "", 400, "Namespace parameter required."),
        (Method::DELETE, all, "", "", 400, "Namespace parameter required."),
        (Method::POST, all, json, object, 422, "ConfigMap \"x\" is invalid: metadata.namespace: Required value"),
    ] {
        let (status, said) = answer(&server, method.clone(), path, media, body).await;
        assert_eq!((status, &said["message"]), (code, &message.into()), "{method} {path}");
    }
    let (_, list) = answer(&server, Method::GET, "/api/v1/configmaps?fieldSelector=metadata.name%3Dx", "", "").await;
    let items = list["items"].as_array().expect("a list");
    assert_eq!(items.iter().map(|item| &item["metadata"]["namespace"]).collect::<Vec<_>>(), ["default"]);
}
