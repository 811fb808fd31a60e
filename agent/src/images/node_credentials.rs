//! Registry credentials of the node: Docker's configuration as whoever set up the machine left it. Every pod may use them.
//!
//! Four folders are looked through for `config.json`, then four for the older `.dockercfg`: the agent's root directory, its
//! working directory, the home directory and the root of the file system. The first file that can be read counts, and is
//! read again after five minutes at the earliest. One with a single entry that makes no sense is passed over as a whole.
//!
//! Followed: `pkg/credentialprovider` (`config.go`, `provider.go`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::credentials::{Credential, Source, auth_config, fitting};

/// The `Lifetime` that the kubelet gives what it has read.
const KEPT: Duration = Duration::from_secs(300);

/// Keys of registries, and what the file has for them.
type Entries = Vec<(String, Value)>;

/// The two forms of the file.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// `config.json`: the entries are in `auths`.
    Json,
    /// `.dockercfg`: the entries are all there is.
    Old,
}

/// See the module's documentation.
pub struct NodeCredentials {
    files: Vec<(PathBuf, Form)>,
    read: Mutex<Option<(Instant, Arc<Entries>)>>,
}

impl NodeCredentials {
    pub fn new(root_dir: &Path) -> Self {
        // Without a home directory what would be in it is looked for in the working directory.
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        Self::below(root_dir, Path::new(""), &home, Path::new("/"))
    }

    fn below(root_dir: &Path, working: &Path, home: &Path, top: &Path) -> Self {
        let json = [root_dir.to_owned(), working.to_owned(), home.join(".docker"), top.join(".docker")];
        let json = json.map(|folder| (folder.join("config.json"), Form::Json));
        let old = [root_dir, working, home, top].map(|folder| (folder.join(".dockercfg"), Form::Old));
        NodeCredentials { files: json.into_iter().chain(old).collect(), read: Mutex::default() }
    }

    /// The credentials that fit the image, most specific first.
    pub async fn for_image(&self, image: &str) -> Vec<Credential> {
        let entries = self.entries().await;
        fitting(image, entries.iter().map(|(registry, entry)| (registry.as_str(), entry, Source::Node)))
    }

    async fn entries(&self) -> Arc<Entries> {
        let mut read = self.read.lock().await;
        if let Some((at, entries)) = &*read
            && at.elapsed() < KEPT
        {
            return entries.clone();
        }
        let files = self.files.clone();
        let found = tokio::task::spawn_blocking(move || files.iter().find_map(|(path, form)| look(path, *form))).await;
        // Reading broke off: as if there were nothing.
        let entries = Arc::new(found.ok().flatten().unwrap_or_default());
        *read = Some((Instant::now(), entries.clone()));
        entries
    }
}

/// The entries of a file; `None` where there is none, or none that makes sense.
fn look(path: &Path, form: Form) -> Option<Entries> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read registry credentials of the node");
            return None;
        }
    };
    let entries = parse(&text, form);
    if entries.is_none() {
        // Nothing of what is in it is for the log.
        tracing::warn!(path = %path.display(), "registry credentials of the node make no sense; looking elsewhere");
    }
    entries
}

fn parse(text: &[u8], form: Form) -> Option<Entries> {
    let whole: Value = serde_json::from_slice(text).ok()?;
    let Value::Object(mut whole) = whole else { return None };
    let entries = match form {
        Form::Old => whole,
        Form::Json => match whole.remove("auths") {
            Some(Value::Object(entries)) => entries,
            // It is a configuration all the same, with no credentials.
            None | Some(Value::Null) => return Some(Entries::new()),
            Some(_) => return None,
        },
    };
    let make_sense = entries.values().all(|entry| entry.is_object() && auth_config(entry).is_some());
    make_sense.then(|| entries.into_iter().map(|(registry, entry)| (registry.into(), entry)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four folders that go away with the test.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("node-credentials-{name}-{}", std::process::id()));
            for folder in ["root", "working", "home/.docker", "top/.docker"] {
                std::fs::create_dir_all(path.join(folder)).unwrap();
            }
            Machine(path)
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.join(file), text).unwrap();
        }

        fn credentials(&self) -> NodeCredentials {
            let [root, working, home, top] = ["root", "working", "home", "top"].map(|name| self.0.join(name));
            NodeCredentials::below(&root, &working, &home, &top)
        }

        /// The user that the registry is shown first.
        async fn user(&self) -> Option<String> {
            let found = self.credentials().for_image("r.example/team/app:1").await;
            assert!(found.iter().all(|credential| credential.source == Source::Node), "every pod may use it");
            found.into_iter().next().map(|credential| credential.auth.username)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// They were not read at all: what the kubelet pulled with them could not be pulled.
    #[tokio::test]
    async fn the_first_file_that_makes_sense_counts() {
        let machine = Machine::new("order");
        assert_eq!(machine.user().await, None);
        let entry = |user: &str| format!(r#"{{"r.example":{{"username":"{user}","password":"p"}}}}"#);
        let places = ["root", "working", "home/.docker", "top/.docker"].map(|folder| format!("{folder}/config.json"));
        let old = ["root", "working", "home", "top"].map(|folder| format!("{folder}/.dockercfg"));
        // From the last to the first: each one takes the place of the one before.
        for (at, file) in old.iter().rev().enumerate() {
            machine.write(file, &entry(&format!("old{at}")));
            assert_eq!(machine.user().await, Some(format!("old{at}")), "{file}");
        }
        for (at, file) in places.iter().rev().enumerate() {
            machine.write(file, &format!(r#"{{"auths":{}}}"#, entry(&format!("new{at}"))));
            assert_eq!(machine.user().await, Some(format!("new{at}")), "{file}");
        }
        for nonsense in ["{", "[]", r#"{"auths":[]}"#, r#"{"auths":{"r.example":{"auth":"*"}}}"#] {
            machine.write(&places[0], nonsense);
            assert_eq!(machine.user().await.as_deref(), Some("new2"), "{nonsense}");
        }
        machine.write(&places[0], r#"{"credsStore":"desktop"}"#);
        assert_eq!(machine.user().await, None, "it says that there are none");
    }

    #[tokio::test]
    async fn what_was_read_is_kept_for_a_while() {
        let machine = Machine::new("kept");
        let write = |user: &str| {
            machine.write("root/.dockercfg", &format!(r#"{{"https://r.example/v2/team":{{"username":"{user}"}}}}"#));
        };
        write("first");
        let credentials = machine.credentials();
        let user = async || credentials.for_image("r.example/team/app").await[0].auth.username.clone();
        assert_eq!(user().await, "first");
        write("second");
        assert_eq!(user().await, "first");
        if let Some((at, _)) = &mut *credentials.read.lock().await {
            *at -= KEPT;
        }
        assert_eq!(user().await, "second");
        assert!(credentials.for_image("other.example/app").await.is_empty());
    }
}
