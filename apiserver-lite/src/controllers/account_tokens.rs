//! `serviceaccount-token-controller`: fills secrets of type `kubernetes.io/service-account-token` with a token that does
//! not expire, and deletes them with their account.
//!
//! Follows `pkg/controller/serviceaccount/tokens_controller.go`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::{ApiError, Result};
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

const SECRETS: &str = "secrets";
const ACCOUNTS: &str = "serviceaccounts";
const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

pub struct AccountTokens {
    client: Client,
    /// The cluster's authority, base64 of PEM as a secret holds it.
    root_ca: String,
}

/// The account that a secret is for: name and uid, empty where it names none.
fn account_of(secret: &Value) -> (&str, &str) {
    let annotation = |key: &str| secret["metadata"]["annotations"][key].as_str().unwrap_or_default();
    (annotation(ACCOUNT_NAME), annotation(ACCOUNT_UID))
}

impl AccountTokens {
    pub fn new(client: Client, root_ca: &str) -> Self {
        AccountTokens { client, root_ca: STANDARD.encode(root_ca) }
    }

    /// What the secret lacks, or None when it is complete.
    fn missing(&self, secret: &ObjectRef, value: &Value, account: &ObjectRef) -> Result<Option<Value>> {
        let data = &value["data"];
        let empty = |key: &str| data[key].as_str().is_none_or(str::is_empty);
        let mut more = json!({});
        if data["ca.crt"] != self.root_ca.as_str() {
            more["ca.crt"] = self.root_ca.clone().into();
        }
        if empty("namespace") {
            more["namespace"] = STANDARD.encode(&*secret.key.namespace).into();
        }
        if empty("token") {
            let Some(tokens) = self.client.server().authenticator.accounts() else { return Ok(None) };
            let token = tokens.issue_for_secret(account, &secret.key.name).map_err(ApiError::internal)?;
            more["token"] = STANDARD.encode(token).into();
        }
        let named = account_of(value).1 == &*account.keys.uid;
        Ok((!named || more.as_object().is_some_and(|m| !m.is_empty())).then_some(more))
    }
}

impl Controller for AccountTokens {
    const NAME: &'static str = "serviceaccount-token-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        vec![SECRETS.into(), ACCOUNTS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            let typed = || object.keys.fields.iter().any(|(name, value)| &**name == "type" && &**value == TYPE);
            if !change.deleted() && typed() {
                queue.add(object.key.clone());
            }
        } else if change.deleted() {
            let secrets = self.client.store().snapshot(&SECRETS.into());
            for secret in secrets.range(Some(&object.key.namespace), None) {
                let value = secret.value();
                if value["type"] == TYPE && account_of(&value).0 == &*object.key.name {
                    queue.add(secret.key.clone());
                }
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(secret) = self.client.get(SECRETS, &key.namespace, &key.name) else { return Ok(None) };
        let value = secret.value();
        let (name, uid) = account_of(&value);
        if value["type"] != TYPE || name.is_empty() || secret.keys.deleting {
            return Ok(None);
        }
        let account = self.client.get(ACCOUNTS, &key.namespace, name);
        let account = account.filter(|a| uid.is_empty() || *a.keys.uid == *uid);
        let Some(account) = account else {
            return self.client.delete_object(SECRETS, &secret, DeleteOptions::default()).await.map(|()| None);
        };
        let Some(more) = self.missing(&secret, &value, &account)? else { return Ok(None) };
        let written = self.client.update(SECRETS, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *secret.keys.uid {
                return Err(unchanged());
            }
            for (name, text) in more.as_object().into_iter().flatten() {
                value["data"][name] = text.clone();
            }
            value["metadata"]["annotations"][ACCOUNT_UID] = (*account.keys.uid).into();
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| None)
    }
}
