//! Follows the stored flow schemas and levels: compiles them anew when they change, keeps those of the server's own as
//! they should be, and says of each schema whether its level exists.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bootstrap::{self, AUTO_UPDATE, PRODUCER};
use super::schema::level_of;
use super::table::{LEVELS, SCHEMAS};
use crate::client::{Client, unchanged};
use crate::controllers::{Change, Controller, Queue, done, follow, set_condition};
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::ResourceId;

/// Who writes the conditions, as field managers are named.
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Follows the configuration until the runtime ends.
pub async fn run(server: Arc<ApiServer>) {
    let client = |manager: &str| Client::new(server.clone(), "system:apiserver", manager);
    let (producer, consumer) = (client(PRODUCER), client(CONSUMER));
    follow(server.store.clone(), move || Keeper { producer: producer.clone(), consumer: consumer.clone() }).await;
}

struct Keeper {
    producer: Client,
    consumer: Client,
}

/// What there is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    Compile,
    /// An object of ours is gone or changed: resource and name.
    Restore(&'static str, Box<str>),
    /// Conditions of every schema.
    Conditions,
}

/// The server's own object of a name.
fn built_in(resource: &str, name: &str) -> Option<Value> {
    let all = if resource == SCHEMAS { bootstrap::schemas() } else { bootstrap::levels() };
    all.into_iter().find(|o| o["metadata"]["name"] == name)
}

/// Whether the specification is ours to say. What an exempt level has for itself is the operator's.
fn settles(object: &Value, name: &str) -> bool {
    if bootstrap::is_mandatory(name) {
        return true;
    }
    match object["metadata"]["annotations"][AUTO_UPDATE].as_str() {
        Some(said) => said == "true",
        None => object["metadata"]["generation"] == 1,
    }
}

impl Keeper {
    async fn restore(&self, resource: &'static str, name: &str) -> Result<()> {
        let Some(mut wanted) = built_in(resource, name) else { return Ok(()) };
        if self.producer.get(resource, "", name).is_none() {
            return match self.producer.create(resource, "", wanted).await {
                Err(error) if !error.is_already_exists() => Err(error),
                _ => Ok(()),
            };
        }
        let written = self.producer.update(resource, "", name, |object| {
            if !settles(object, name) {
                return Err(unchanged());
            }
            if let Some(own) = object["spec"].get("exempt").filter(|_| wanted["spec"].get("exempt").is_some()) {
                wanted["spec"]["exempt"] = own.clone();
            }
            if object["spec"] == wanted["spec"] {
                return Err(unchanged());
            }
            object["spec"] = wanted["spec"].clone();
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| ())
    }

    async fn conditions(&self) -> Result<()> {
        let snapshot = self.consumer.store().snapshot(&ResourceId::from(SCHEMAS));
        for schema in snapshot.range(None, None) {
            let name = &schema.key.name;
            let condition = |value: &Value| {
                let level = level_of(value);
                let quoted = crate::status::quote(level);
                let about = format!("This FlowSchema references the PriorityLevelConfiguration object named {quoted}");
                match self.consumer.get(LEVELS, "", level) {
                    Some(_) => ("False", "Found", format!("{about} and it exists")),
                    None => ("True", "NotFound", format!("{about} but there is no such object")),
                }
            };
            let is = |value: &Value| {
                let all = value["status"]["conditions"].as_array().into_iter().flatten();
                all.into_iter().find(|c| c["type"] == "Dangling").map(|c| c["status"].clone())
            };
            let stored = schema.without_owners();
            if is(&stored).is_some_and(|status| status == condition(&stored).0) {
                continue;
            }
            let written = self.consumer.update_status(SCHEMAS, "", name, |value| {
                let (status, reason, message) = condition(value);
                let condition = json!({"type": "Dangling", "status": status, "reason": reason, "message": message});
                if set_condition(value, condition) { Ok(()) } else { Err(unchanged()) }
            });
            done(written.await.map(|_| ()))?;
        }
        Ok(())
    }
}

impl Controller for Keeper {
    const NAME: &'static str = "api-priority-and-fairness";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        vec![SCHEMAS.into(), LEVELS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let spec = |object: &crate::store::ObjectRef| object.without_owners()["spec"].clone();
        // A status is nothing to compile.
        if change.previous.is_some_and(|old| !change.deleted() && spec(old) == spec(change.object)) {
            return;
        }
        let resource = [SCHEMAS, LEVELS][change.resource.min(1)];
        queue.add(Work::Compile);
        queue.add(Work::Restore(resource, change.object.key.name.clone()));
        queue.add(Work::Conditions);
    }

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        match work {
            Work::Compile => {
                let server = self.consumer.server();
                if let Some(flow) = &server.flow {
                    flow.read(&server.store);
                }
            }
            Work::Restore(resource, name) => self.restore(resource, name).await?,
            Work::Conditions => self.conditions().await?,
        }
        Ok(None)
    }
}
