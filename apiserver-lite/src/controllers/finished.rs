//! `ttl-after-finished-controller`: deletes jobs some time after they are over, where they ask for it.

use std::time::Duration;

use proto::time::Timestamp;

use super::feed::Change;
use super::job::finished;
use super::ownership::JOB;
use super::pods::{condition, seconds};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::status::Result;
use crate::store::{Key, ResourceId};
use crate::write::DeleteOptions;

pub struct Finished {
    client: Client,
}

impl Finished {
    pub fn new(client: Client) -> Self {
        Finished { client }
    }
}

impl Controller for Finished {
    const NAME: &'static str = "ttl-after-finished-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        vec![JOB.resource.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        if !change.deleted() {
            queue.add(change.object.key.clone());
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(JOB.resource, &key.namespace, &key.name);
        let Some(job) = found.filter(|j| !j.keys.deleting) else { return Ok(None) };
        let value = job.value();
        let (Some(keep), Some(ok)) = (value["spec"]["ttlSecondsAfterFinished"].as_i64(), finished(&value)) else {
            return Ok(None);
        };
        let end = condition(&value, if ok { "Complete" } else { "Failed" });
        let end = end.map_or(0, |c| seconds(&c["lastTransitionTime"]));
        let left = end + keep - Timestamp::now().seconds;
        if left > 0 {
            return Ok(Some(Duration::from_secs(left.unsigned_abs())));
        }
        let options = DeleteOptions { propagation: Some("Foreground".into()), ..DeleteOptions::default() };
        self.client.delete_object(JOB.resource, &job, options).await?;
        Ok(None)
    }
}
