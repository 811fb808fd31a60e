//! `bootstrap-signer-controller`: signs the kubeconfig in `kube-public/cluster-info` with every bootstrap token that is
//! meant for it, so that a machine that knows a token can tell the real server from another.
//!
//! Follows `pkg/controller/bootstrap/bootstrapsigner.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::time::Timestamp;

use super::feed::Change;
use super::ownership::done;
use super::queue::Queue;
use super::runner::Controller;
use crate::bootstrap_token::{BootstrapToken, NAMESPACE, TYPE};
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::ResourceId;

const SECRETS: &str = "secrets";
const MAPS: &str = "configmaps";
pub const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");
const SIGNATURE: &str = "jws-kubeconfig-";

pub struct BootstrapSigner(Client);

impl BootstrapSigner {
    pub fn new(client: Client) -> Self {
        BootstrapSigner(client)
    }

    /// The signatures there should be, and the seconds until one of them should go.
    fn wanted(&self, text: &str, now: i64) -> (BTreeMap<String, String>, Option<i64>) {
        let (mut out, mut next) = (BTreeMap::new(), None);
        for secret in self.0.store().snapshot(&SECRETS.into()).range(Some(NAMESPACE), None) {
            if secret.field("type") != TYPE || secret.keys.deleting {
                continue;
            }
            let token = BootstrapToken::of(&secret.value()).filter(|t| t.is_for("signing") && t.left(now) != Some(0));
            let Some(token) = token else { continue };
            next = [next, token.left(now)].into_iter().flatten().min();
            out.insert(format!("{SIGNATURE}{}", token.id), token.sign(text));
        }
        (out, next)
    }
}

impl Controller for BootstrapSigner {
    const NAME: &'static str = "bootstrap-signer-controller";
    type Key = ();

    fn watched(&self) -> Vec<ResourceId> {
        vec![SECRETS.into(), MAPS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<()>) {
        let object = change.object;
        let concerns = match change.resource {
            0 => &*object.key.namespace == NAMESPACE && object.field("type") == TYPE,
            _ => (&*object.key.namespace, &*object.key.name) == CLUSTER_INFO,
        };
        if concerns {
            queue.add(());
        }
    }

    async fn sync(&mut self, (): &()) -> Result<Option<Duration>> {
        let (namespace, name) = CLUSTER_INFO;
        let Some(map) = self.0.get(MAPS, namespace, name) else { return Ok(None) };
        let text = map.value()["data"]["kubeconfig"].as_str().unwrap_or_default().to_owned();
        let (wanted, next) = match text.as_str() {
            "" => (BTreeMap::new(), None),
            text => self.wanted(text, Timestamp::now().seconds),
        };
        let written = self.0.update(MAPS, namespace, name, |value| {
            let Some(data) = value["data"].as_object_mut() else { return Err(unchanged()) };
            // Signed was another text: the change of it brings us here again.
            if data.get("kubeconfig").and_then(|t| t.as_str()).unwrap_or_default() != text {
                return Err(unchanged());
            }
            let before = data.clone();
            data.retain(|key, _| !key.starts_with(SIGNATURE));
            data.extend(wanted.iter().map(|(key, signature)| (key.clone(), signature.clone().into())));
            if *data == before { Err(unchanged()) } else { Ok(()) }
        });
        done(written.await.map(|_| ()))?;
        Ok(next.map(|seconds| Duration::from_secs(seconds.unsigned_abs())))
    }
}
