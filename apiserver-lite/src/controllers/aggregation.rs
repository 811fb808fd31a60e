//! `clusterrole-aggregation-controller`: cluster roles whose rules are those of others, chosen by labels.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::ResourceId;

const ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

pub struct Aggregation {
    client: Client,
    /// Roles that are made of others.
    aggregated: HashMap<Box<str>, Vec<LabelSelector>>,
}

impl Aggregation {
    pub fn new(client: Client) -> Self {
        Aggregation { client, aggregated: HashMap::new() }
    }
}

fn selectors(role: &Value) -> Vec<LabelSelector> {
    let list = role["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten();
    list.map(LabelSelector::parse).collect()
}

impl Controller for Aggregation {
    const NAME: &'static str = "clusterrole-aggregation-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![ROLES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let object = change.object;
        let own = if change.deleted() { Vec::new() } else { selectors(&object.value()) };
        match own.is_empty() {
            true => drop(self.aggregated.remove(&object.key.name)),
            false => {
                self.aggregated.insert(object.key.name.clone(), own);
                queue.add(object.key.name.clone());
            }
        }
        for state in [Some(object), change.previous].into_iter().flatten() {
            let made_of_it = self.aggregated.iter().filter(|(_, s)| s.iter().any(|s| s.matches(&state.keys.labels)));
            made_of_it.for_each(|(name, _)| queue.add(name.clone()));
        }
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(selectors) = self.aggregated.get(name) else { return Ok(None) };
        let roles = self.client.store().snapshot(&ROLES.into());
        let mut rules: Vec<Value> = Vec::new();
        for selector in selectors {
            for role in roles.range(None, None) {
                if role.key.name == *name || !selector.matches(&role.keys.labels) {
                    continue;
                }
                for rule in role.value()["rules"].as_array().into_iter().flatten() {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        let written = self.client.update(ROLES, "", name, |role| {
            if role["rules"].as_array().cloned().unwrap_or_default() == rules {
                return Err(unchanged());
            }
            role["rules"] = rules.clone().into();
            Ok(())
        });
        done(written.await.map(|_| ()))?;
        Ok(None)
    }
}
