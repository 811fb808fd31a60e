//! `token-cleaner-controller`: deletes bootstrap tokens that are over.
//!
//! Follows `pkg/controller/bootstrap/tokencleaner.go`: one whose end cannot be read is over.

use std::time::Duration;

use proto::time::Timestamp;

use super::feed::Change;
use super::queue::Queue;
use super::runner::Controller;
use crate::bootstrap_token::{BootstrapToken, NAMESPACE, TYPE};
use crate::client::Client;
use crate::status::Result;
use crate::store::ResourceId;
use crate::write::DeleteOptions;

const SECRETS: &str = "secrets";

pub struct TokenCleaner(Client);

impl TokenCleaner {
    pub fn new(client: Client) -> Self {
        TokenCleaner(client)
    }
}

impl Controller for TokenCleaner {
    const NAME: &'static str = "token-cleaner-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![SECRETS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let object = change.object;
        if !change.deleted() && &*object.key.namespace == NAMESPACE && object.field("type") == TYPE {
            queue.add(object.key.name.clone());
        }
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(secret) = self.0.get(SECRETS, NAMESPACE, name) else { return Ok(None) };
        let Some(token) = BootstrapToken::of(&secret.value()) else { return Ok(None) };
        match token.left(Timestamp::now().seconds) {
            None => Ok(None),
            Some(0) => self.0.delete_object(SECRETS, &secret, DeleteOptions::default()).await.map(|()| None),
            Some(left) => Ok(Some(Duration::from_secs(left.unsigned_abs()))),
        }
    }
}
