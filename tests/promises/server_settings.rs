//! Settings of the API server mean what they say, and wrong ones are told before anything is made.

use tests::ApiServer;

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
