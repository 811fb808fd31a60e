use super::*;
use proto::cri::AuthConfig;

fn records(name: &str, verification: Verification) -> (PathBuf, Records) {
    let root = std::env::temp_dir().join(format!("records-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    (root.clone(), Records::open(&root, verification, |_| {}))
}

fn secret(uid: &str, password: &str) -> Credential {
    let auth = AuthConfig { username: "u".into(), password: password.into(), ..AuthConfig::default() };
    Credential { auth, source: Source::Secret { uid: uid.into(), namespace: "n".into(), name: "s".into() } }
}

const IMAGE: &str = "a.example.com/x:1";

#[test]
fn an_image_is_for_those_who_could_pull_it() {
    let (root, records) = records("pulled", Verification::NotPreloaded);
    assert!(!records.must_pull(IMAGE, "id", &[]), "nobody pulled it: it was there before");
    assert!(records.is_open(IMAGE, "id"));
    records.begin(IMAGE).unwrap();
    assert!(records.must_pull(IMAGE, "id", &[]), "it is being pulled with who knows what");
    records.end(IMAGE, Some(("id", Some(&secret("1", "p")))));
    assert!(!file(&records.pulling, IMAGE).exists());
    assert!(records.must_pull(IMAGE, "id", &[]));
    assert!(records.must_pull(IMAGE, "id", &[secret("2", "other")]));
    assert!(!records.must_pull(IMAGE, "id", &[secret("1", "p")]));
    assert!(!records.is_open(IMAGE, "id"));
    // The same words from another secret, then that secret with other words.
    assert!(!records.must_pull(IMAGE, "id", &[secret("2", "p")]));
    assert!(!records.must_pull(IMAGE, "id", &[secret("2", "changed")]));
    // The same image by another name was not asked of that registry.
    assert!(records.must_pull("b.example.com/x:1", "id", &[secret("1", "p")]));
    let text = std::fs::read_to_string(file(&records.pulled, "id")).unwrap();
    let tree: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(tree["kind"], "ImagePulledRecord");
    assert_eq!(tree["imageRef"], "id");
    let known = tree["credentialMapping"]["a.example.com/x"]["kubernetesSecrets"].as_array().unwrap();
    assert_eq!(known.len(), 2);
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn what_nobody_needs_credentials_for_is_everybodys() {
    let (root, records) = records("open", Verification::Always);
    assert!(records.must_pull(IMAGE, "id", &[]));
    records.begin(IMAGE).unwrap();
    records.end(IMAGE, Some(("id", None)));
    assert!(!records.must_pull(IMAGE, "id", &[secret("9", "x")]) && records.is_open(IMAGE, "id"));
    let text = std::fs::read_to_string(file(&records.pulled, "id")).unwrap();
    assert!(text.contains(r#""credentialMapping":{"a.example.com/x":{"nodePodsAccessible":true}}"#), "{text}");
    records.prune(&["id"], "2999-01-01T00:00:00Z");
    assert!(file(&records.pulled, "id").exists());
    records.prune(&[], "2000-01-01T00:00:00Z");
    assert!(file(&records.pulled, "id").exists(), "the record is younger than the list");
    records.prune(&[], "2999-01-01T00:00:00Z");
    assert!(!file(&records.pulled, "id").exists());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_pull_that_an_earlier_agent_began_counts_as_pulled() {
    let (root, records) = records("intent", Verification::NotPreloaded);
    records.begin(IMAGE).unwrap();
    let again = Records::open(&root, Verification::NotPreloaded, |_| {});
    again.take_up(&[]);
    assert!(file(&again.pulling, IMAGE).exists(), "it is not there yet");
    let image = cri::Image { id: "id".into(), repo_tags: vec![IMAGE.into()], ..cri::Image::default() };
    again.take_up(&[image]);
    assert!(!file(&again.pulling, IMAGE).exists());
    assert!(again.must_pull(IMAGE, "id", &[secret("1", "p")]));
    std::fs::write(file(&again.pulled, "id"), "garbage").unwrap();
    assert!(again.must_pull(IMAGE, "id", &[]));
    std::fs::remove_dir_all(root).unwrap();
}

/// Looked for under the name with a tag, a pull that had got through was nobody's, and its image everybody's.
#[test]
fn what_is_written_without_a_tag_is_found_again_by_the_same_name() {
    let (root, records) = records("untagged", Verification::NotPreloaded);
    records.begin("a.example.com/x").unwrap();
    drop(records);
    let again = Records::open(&root, Verification::NotPreloaded, |_| {});
    assert!(again.must_pull("a.example.com/x", "id", &[secret("1", "p")]), "nobody knows yet who may have it");
    let image =
        cri::Image { id: "id".into(), repo_tags: vec!["a.example.com/x:latest".into()], ..cri::Image::default() };
    again.take_up(&[image]);
    assert!(!file(&again.pulling, "a.example.com/x").exists());
    assert!(again.must_pull("a.example.com/x", "id", &[secret("1", "p")]));
    std::fs::remove_dir_all(root).unwrap();
}

/// An image whose record is damaged must not become one that was there before, which everybody may use.
#[test]
fn a_damaged_record_is_set_aside_and_its_image_is_nobodys() {
    let (root, records) = records("damaged", Verification::NotPreloaded);
    records.begin(IMAGE).unwrap();
    records.end(IMAGE, Some(("id", None)));
    assert!(!records.must_pull(IMAGE, "id", &[]));
    std::fs::write(file(&records.pulled, "id"), "\u{0}\u{0}").unwrap();
    std::fs::write(file(&records.pulling, "b.example.com/y:1"), "{\"kind\": \"ImagePul").unwrap();
    let told = std::cell::RefCell::new(Vec::new());
    let again = Records::open(&root, Verification::NotPreloaded, |file| told.borrow_mut().push(file.aside.clone()));
    let aside = |path: PathBuf| Some(path.with_extension(ASIDE));
    assert_eq!(told.into_inner(), [aside(file(&again.pulling, "b.example.com/y:1")), aside(file(&again.pulled, "id"))]);
    assert!(!file(&again.pulled, "id").exists());
    assert!(again.must_pull(IMAGE, "id", &[]), "nobody knows what it was pulled with");
    assert!(again.must_pull("b.example.com/y:1", "other", &[]));
    assert!(!again.must_pull("c.example.com/z:1", "third", &[]), "this one was there before");
    again.begin(IMAGE).unwrap();
    again.end(IMAGE, Some(("id", None)));
    assert!(!again.must_pull(IMAGE, "id", &[]), "it is known again");
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn allowlisted_images_are_for_all() {
    let list = ["a.example.com/x".to_owned(), "b.example.com/*".to_owned()];
    let policy = Verification::new("NeverVerifyAllowlistedImages", &list);
    assert!(!policy.asks("a.example.com/x", true));
    assert!(!policy.asks("b.example.com/any/thing", true));
    assert!(policy.asks("a.example.com/xy", false));
    assert!(!Verification::new("NeverVerify", &[]).asks("x", true));
    assert!(Verification::new("AlwaysVerify", &[]).asks("x", false));
}
