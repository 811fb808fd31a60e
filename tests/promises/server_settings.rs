//! Settings of the API server mean what they say, and wrong ones are told before anything is made.

use serde_json::json;
use tests::{ApiServer, Connection};

#[test]
fn keys_may_lie_in_a_folder_named_from_where_the_server_starts() {
    let folder = tests::scratch("relative").expect("a folder");
    let there = format!("cd {}; exec \"$@\"", folder.display());
    let server = ApiServer::start_under(&["sh", "-c", &there, "sh"], "relative-keys", &["--cert-dir=keys"]);
    let server = server.expect("the server starts");
    assert!(folder.join("keys/ca.crt").exists() && !server.dir.join("pki").exists());
}

#[test]
fn features_and_groups_that_nobody_knows_are_refused_before_anything_is_made() {
    let binary = tests::release_binary("apiserver-lite").expect("it is built");
    let folder = tests::scratch("unknown").expect("a folder");
    let file = folder.join("settings.toml");
    std::fs::write(&file, "featureGates = [\"NoSuchGate=true\"]\n").expect("writable");
    let config = format!("--config={}", file.display());
    for (flag, text) in [
        ("--feature-gates=NoSuchGate=true", "unrecognized feature gate: NoSuchGate"),
        (config.as_str(), "unrecognized feature gate: NoSuchGate"),
        ("--runtime-config=nonsense/v1=true", "unknown api groups nonsense"),
    ] {
        let data = folder.join("data");
        let output = std::process::Command::new(&binary).arg("serve").arg(flag).arg("--data-dir").arg(&data).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{flag}: {said}");
        assert!(said.contains(text), "{flag}: {said}");
        assert!(!data.exists(), "{flag}");
    }
}

#[test]
fn a_check_reads_every_file_that_the_settings_name() {
    let binary = tests::release_binary("apiserver-lite").expect("it is built");
    let folder = tests::scratch("check-files").expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("writable");
        path.display().to_string()
    };
    let check = |flags: &[String]| {
        let data = folder.join("data");
        let mut command = std::process::Command::new(&binary);
        let output = command.args(["serve", "--check", "--data-dir"]).arg(&data).args(flags).output();
        let output = output.expect("it runs");
        assert!(!data.exists(), "a check makes nothing");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let policy = file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n");
    assert_eq!(check(&[format!("--audit-policy-file={policy}")]), (Some(0), String::new()));
    let (empty, bad) = (file("empty.pem", ""), file("bad.yaml", "kind: Nonsense\n"));
    let flags = [
        format!("--client-ca-file={empty}"),
        format!("--audit-policy-file={bad}"),
        format!("--authorization-config={bad}"),
        format!("--authentication-config={bad}"),
        format!("--token-auth-file={}", folder.join("none").display()),
    ];
    let (code, said) = check(&flags);
    assert_eq!(code, Some(64), "{said}");
    for flag in &flags {
        let flag = flag.split('=').next().expect("a name");
        assert!(said.lines().any(|line| line.starts_with(&format!("apiserver-lite: {flag}: "))), "{flag}\n{said}");
    }
}

/// A plugin that is switched off makes nobody wait for what it would have looked for: the account that nobody makes here,
/// which a pod waits a second for.
#[tokio::test(flavor = "multi_thread")]
async fn pods_without_accounts_do_not_wait_for_them() {
    let flags = ["--controllers=-*", "--scheduler=false", "--disable-admission-plugins=ServiceAccount"];
    let server = ApiServer::start("no-accounts", &flags).expect("the server starts");
    let api = tests::Api::new(&server);
    let mut shortest = std::time::Duration::MAX;
    for number in 0..10 {
        let pod =
            json!({"metadata": {"name": format!("p{number}")}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let begun = std::time::Instant::now();
        let (code, said) = api.post("/api/v1/namespaces/default/pods", &pod).await.expect("an answer");
        assert_eq!(code, 201, "{said}");
        assert!(said["spec"]["serviceAccountName"].is_null(), "{said}");
        shortest = shortest.min(begun.elapsed());
    }
    // Whatever else the machine does: one that waits takes its second each time.
    assert!(shortest < std::time::Duration::from_secs(1), "each waited, {shortest:?} at least");
}

/// Answers of more than 128 KiB, of one object as well as of many.
#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_compressed_for_who_asks_unless_the_gate_is_off() {
    for (gate, packed) in [("APIResponseCompression=true", true), ("APIResponseCompression=false", false)] {
        let server = ApiServer::start("compression", &[&format!("--feature-gates={gate}")]).expect("it starts");
        let mut connection = Connection::http1(&server).await.expect("a connection");
        for (name, length, long) in [("long", 200_000, true), ("short", 100_000, false)] {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                "data": {"text": "a".repeat(length)}});
            server.create(&object).expect("created");
            let request = http::Request::get(format!("/api/v1/namespaces/default/configmaps/{name}"))
                .header("host", "127.0.0.1")
                .header("accept-encoding", "gzip")
                .body(http_body_util::Full::default())
                .expect("a request");
            let answer = connection.send(request).await.expect("an answer");
            let encoding = answer.headers().get("content-encoding").map(|value| value.as_bytes());
            let want: Option<&[u8]> = if packed && long { Some(b"gzip") } else { None };
            assert_eq!(encoding, want, "{gate} {name}");
            assert_eq!(answer.body().len() < length, want.is_some(), "{gate} {name}");
        }
    }
}
