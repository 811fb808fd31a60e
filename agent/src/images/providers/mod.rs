//! Credential provider plugins: programs of the node's owner that give credentials for registries.
//!
//! A program is asked when one of its patterns fits the image, with the image on its standard input and, where it wants
//! that, a token of the pod's service account. What it answers is remembered for as long as it says, for the image, the
//! registry or everything. A program that fails gives none; the pull goes on with what there is.
//!
//! Followed: `pkg/credentialprovider/plugin`.

mod config;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{Pod, ServiceAccount};
use proto::cri::AuthConfig;
use tokio::time::Instant;

use crate::api::Client;
use crate::objects::{TokenQuery, Tokens};
use crate::pod::spec::PodExt;

use super::credentials::{Credential, Source, fits, pattern_fits};

use config::TokenAttributes;
pub use config::{Provider, load};
use run::{Answer, Request};

/// As long as the API server gives a token without being asked.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// What a program answered: credentials by pattern.
type Given = Arc<BTreeMap<String, AuthConfig>>;

/// A program with what it said before.
struct Plugin {
    provider: Provider,
    cache: Mutex<HashMap<String, (Instant, Given)>>,
    /// One call at a time: whoever comes while it runs finds its answer in the cache.
    turn: tokio::sync::Mutex<()>,
}

/// All programs of this node.
pub struct Providers {
    plugins: Vec<Plugin>,
    client: Client,
    tokens: Arc<dyn Tokens>,
}

/// The service account that a program was told of.
struct Account {
    uid: String,
    token: String,
    annotations: BTreeMap<String, String>,
}

impl Providers {
    pub fn new(providers: Vec<Provider>, client: Client, tokens: Arc<dyn Tokens>) -> Self {
        let plugins = providers.into_iter().map(|provider| Plugin {
            provider,
            cache: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        });
        Providers { plugins: plugins.collect(), client, tokens }
    }

    /// The credentials for a repository (`registry/path`, without a tag), most specific first.
    pub async fn credentials(&self, repository: &str, pod: &Pod) -> Vec<Credential> {
        let mut found: Vec<(usize, Credential)> = Vec::new();
        for plugin in &self.plugins {
            if !plugin.provider.match_images.iter().any(|p| pattern_fits(p, repository).is_some()) {
                continue;
            }
            let Ok(account) = self.account(&plugin.provider, pod).await else { continue };
            let given = match plugin.ask(repository, pod, account.as_ref()).await {
                Ok(given) => given,
                Err(error) => {
                    tracing::error!(error, provider = plugin.provider.name, "no credentials from a provider");
                    continue;
                }
            };
            let source = match &account {
                Some(account) => Source::ServiceAccount {
                    uid: account.uid.clone(),
                    namespace: pod.namespace().to_owned(),
                    name: pod.spec().service_account_name.clone(),
                },
                None => Source::Node,
            };
            for (pattern, auth) in given.iter() {
                if let Some(specific) = fits(pattern, repository) {
                    found.push((specific, Credential { auth: auth.clone(), source: source.clone() }));
                }
            }
        }
        found.sort_by_key(|(specific, _)| std::cmp::Reverse(*specific));
        found.into_iter().map(|(_, credential)| credential).collect()
    }

    /// What a program is told of the pod's service account; `Err` when it is not to be asked at all.
    async fn account(&self, provider: &Provider, pod: &Pod) -> Result<Option<Account>, ()> {
        let Some(wanted) = &provider.tokens else { return Ok(None) };
        let name = &pod.spec().service_account_name;
        if name.is_empty() {
            return if wanted.require_service_account == Some(true) { Err(()) } else { Ok(None) };
        }
        let failed = |error: &dyn std::fmt::Display| {
            let namespace = pod.namespace();
            tracing::error!(%error, namespace, name, provider = provider.name, "failed to get a service account");
        };
        let found = self.client.get::<ServiceAccount>(pod.namespace(), name).await.map_err(|e| failed(&e))?;
        let empty = BTreeMap::new();
        let theirs = found.metadata.as_ref().map_or(&empty, |m| &m.annotations);
        let annotations = annotations(wanted, theirs).ok_or_else(|| {
            tracing::debug!(name, provider = provider.name, "a service account lacks an annotation of the provider");
        })?;
        let query = TokenQuery {
            namespace: pod.namespace().into(),
            service_account: name.clone(),
            audience: wanted.service_account_token_audience.clone(),
            expiration: TOKEN_LIFE,
            pod_name: pod.name().into(),
            pod_uid: pod.uid().into(),
        };
        let issued = self.tokens.issued(&query).await.map_err(|e| failed(&e))?;
        Ok(Some(Account {
            uid: found.metadata.as_ref().map_or_else(String::new, |m| m.uid.clone()),
            token: issued.token,
            annotations,
        }))
    }
}

/// The annotations that a program wants to see; `None` when one is missing that it needs.
fn annotations(wanted: &TokenAttributes, theirs: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let pair = |key: &String| theirs.get(key).map(|value| (key.clone(), value.clone()));
    let required: Option<BTreeMap<_, _>> = wanted.required_service_account_annotation_keys.iter().map(pair).collect();
    let mut all = required?;
    all.extend(wanted.optional_service_account_annotation_keys.iter().filter_map(pair));
    Some(all)
}

impl Plugin {
    async fn ask(&self, repository: &str, pod: &Pod, account: Option<&Account>) -> Result<Given, String> {
        let of_account = self.account_key(pod, account);
        if let Some(given) = self.remembered(repository, &of_account) {
            return Ok(given);
        }
        let _turn = self.turn.lock().await;
        if let Some(given) = self.remembered(repository, &of_account) {
            return Ok(given);
        }
        let request = Request {
            image: repository,
            token: account.map(|a| a.token.as_str()),
            annotations: account.map(|a| &a.annotations),
        };
        let Answer { given, cache_key, cache } = run::run(&self.provider, &request).await?;
        let given = Arc::new(given);
        let life = cache.unwrap_or(self.provider.default_cache);
        let base = match cache_key.as_str() {
            "Image" => repository,
            "Registry" => registry(repository),
            "Global" => GLOBAL,
            other => return Err(format!("credential provider plugin did not return a valid cacheKeyType: {other:?}")),
        };
        if !life.is_zero() {
            let key = cache_key_of(base, &of_account);
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            cache.retain(|_, (until, _)| *until > now);
            cache.insert(key, (now + life, given.clone()));
        }
        Ok(given)
    }

    /// Tells service accounts apart in the cache, and tokens for a program that wants that.
    fn account_key(&self, pod: &Pod, account: Option<&Account>) -> String {
        let Some(account) = account else { return String::new() };
        let by_token = self.provider.tokens.as_ref().is_some_and(|t| t.cache_type == "Token");
        let token = if by_token { account.token.as_str() } else { "" };
        let name = &pod.spec().service_account_name;
        // Of strings in quotes no two different lists look the same.
        format!("{:?}{:?}{:?}{:?}{token:?}", pod.namespace(), name, account.uid, account.annotations)
    }

    fn remembered(&self, repository: &str, account: &str) -> Option<Given> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let keys = [repository, registry(repository), GLOBAL].map(|base| cache_key_of(base, account));
        keys.iter().filter_map(|key| cache.get(key)).find(|(until, _)| *until > now).map(|(_, given)| given.clone())
    }
}

const GLOBAL: &str = "global";

fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

fn cache_key_of(base: &str, account: &str) -> String {
    format!("{base:?}{account}")
}

#[cfg(test)]
mod tests;
