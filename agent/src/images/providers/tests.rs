//! Programs are shell scripts here.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::*;
use crate::api::{ClientOptions, NoServer};
use crate::objects::{Answer as Soon, Issued, ObjectError};

struct NoTokens;

impl Tokens for NoTokens {
    fn issued<'a>(&'a self, _: &'a TokenQuery) -> Soon<'a, Result<Issued, ObjectError>> {
        Box::pin(std::future::ready(Err(ObjectError::NotSynced)))
    }
    fn forget(&self, _: &str) {}
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("provider-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn providers(dir: &Path, script: &str) -> Providers {
    let program = dir.join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let provider = Provider {
        program,
        name: "program".into(),
        match_images: vec!["*.example.com".into()],
        default_cache: Duration::from_secs(600),
        api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
        args: vec![dir.display().to_string()],
        env: Vec::new(),
        tokens: None,
    };
    Providers::new(vec![provider], Client::new(Arc::new(NoServer), &ClientOptions::default()), Arc::new(NoTokens))
}

const ANSWER: &str = r#"cat >> $1/asked
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
"cacheKeyType":"Registry","auth":{"*.example.com":{"username":"u","password":"p"},"other":{"username":"x","password":"y"}}}'
"#;

#[tokio::test]
async fn a_program_is_asked_once_for_a_registry_and_only_for_its_images() {
    let dir = folder("once");
    let providers = providers(&dir, ANSWER);
    let pod = Pod::default();
    for image in ["a.example.com/x", "a.example.com/y"] {
        let found = providers.credentials(image, &pod).await;
        let logins: Vec<_> = found.iter().map(|c| (c.auth.username.as_str(), c.auth.password.as_str())).collect();
        assert_eq!(logins, [("u", "p")]);
        assert_eq!(found[0].source, Source::Node);
    }
    assert!(providers.credentials("elsewhere.com/x", &pod).await.is_empty());
    let asked = std::fs::read_to_string(dir.join("asked")).unwrap();
    let want = r#"{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/x","kind":"CredentialProviderRequest"}"#;
    assert_eq!(asked.trim(), want);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_program_that_fails_or_answers_garbage_gives_nothing() {
    let dir = folder("fails");
    let pod = Pod::default();
    for script in ["exit 3", "echo nonsense", "echo '{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"v0\"}'"]
    {
        assert!(providers(&dir, script).credentials("a.example.com/x", &pod).await.is_empty());
    }
    let mut wants_account = providers(&dir, ANSWER);
    let attributes = TokenAttributes { require_service_account: Some(true), ..TokenAttributes::default() };
    wants_account.plugins[0].provider.tokens = Some(attributes);
    assert!(wants_account.credentials("a.example.com/x", &pod).await.is_empty(), "the pod has no service account");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn annotations_that_are_needed_must_be_there() {
    let wanted = TokenAttributes {
        required_service_account_annotation_keys: vec!["a".into()],
        optional_service_account_annotation_keys: vec!["b".into(), "c".into()],
        ..TokenAttributes::default()
    };
    let theirs: BTreeMap<String, String> =
        [("a", "1"), ("c", "3"), ("d", "4")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(annotations(&wanted, &theirs).unwrap().into_keys().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(annotations(&wanted, &BTreeMap::new()), None);
}
