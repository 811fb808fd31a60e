//! Which servers there are: a Lease of each in `kube-system`, by the name of its machine (feature `APIServerIdentity`).
//!
//! Upstream renews it every ten seconds for an hour. Here it is renewed six times in that hour: an idle server shall sleep,
//! and nobody looks at more than whether the lease has run out. Leases of servers that are no more go when they have.

use std::sync::Arc;
use std::time::Duration;

use proto::time::{Timestamp, parse_rfc3339};
use ring::digest::{SHA256, digest};
use serde_json::json;

use crate::client::Client;
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::{ObjectRef, ResourceId};
use crate::write::DeleteOptions;

const LEASES: &str = "leases.coordination.k8s.io";
const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const KIND: &str = "kube-apiserver";
/// As upstream's `IdentityLeaseDurationSeconds`.
const LIFE: i64 = 3600;
const RENEW: Duration = Duration::from_secs(600);
/// After a write that failed.
const RETRY: Duration = Duration::from_secs(10);

/// `apiserver-` and the first sixteen bytes of the hash of the machine's name, in lower-case base32.
pub fn name(hostname: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = digest(&SHA256, hostname.as_bytes());
    let (mut out, mut bits, mut held) = (String::from("apiserver-"), 0_u32, 0_u32);
    for byte in hash.as_ref().iter().take(16) {
        bits = (bits << 8 | u32::from(*byte)) & 0xffff;
        held += 8;
        while held >= 5 {
            held -= 5;
            out.push(char::from(LETTERS[(bits >> held & 31) as usize]));
        }
    }
    // Sixteen bytes leave three bits.
    out.push(char::from(LETTERS[(bits << (5 - held) & 31) as usize]));
    out
}

/// Keeps this server's lease until the runtime ends.
pub async fn run(server: Arc<ApiServer>) {
    let client = Client::new(server, "system:apiserver", "kube-apiserver");
    let hostname = crate::pki::hostname();
    let name = name(&hostname);
    let holder = format!("{name}_{}", crate::random::uuid());
    loop {
        let wait = match renew(&client, &hostname, &name, &holder).await {
            Ok(()) => RENEW,
            Err(error) => {
                tracing::warn!(%error, lease = %name, "the server's own lease is tried again");
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn renew(client: &Client, hostname: &str, name: &str, holder: &str) -> Result<()> {
    let now = Timestamp::now().to_micros_text();
    let labels = json!({LABEL: KIND, "kubernetes.io/hostname": hostname});
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": LIFE, "renewTime": now});
    match client.get(LEASES, NAMESPACE, name) {
        None => {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": spec});
            client.create(LEASES, NAMESPACE, lease).await?;
        }
        Some(_) => {
            let written = client.update(LEASES, NAMESPACE, name, |value| {
                value["metadata"]["labels"] = labels.clone();
                value["spec"] = spec.clone();
                Ok(())
            });
            written.await?;
        }
    }
    let over = Timestamp::now().seconds;
    for lease in client.store().snapshot(&ResourceId::from(LEASES)).range(Some(NAMESPACE), None) {
        if *lease.key.name != *name && lease.label(LABEL) == Some(KIND) && ends(lease).is_some_and(|end| end < over) {
            // One that has to stay holds up nobody.
            if let Err(error) = client.delete_object(LEASES, lease, DeleteOptions::default()).await {
                tracing::debug!(%error, lease = %lease.key.name, "the lease of a server that is gone stays");
            }
        }
    }
    Ok(())
}

/// When a lease runs out, in seconds since 1970.
fn ends(lease: &ObjectRef) -> Option<i64> {
    let value = lease.without_owners();
    let renewed = parse_rfc3339(value["spec"]["renewTime"].as_str()?).ok()?;
    renewed.seconds.checked_add(value["spec"]["leaseDurationSeconds"].as_i64()?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_is_the_hash_of_the_machines() {
        // sha256("") begins with e3b0c44298fc1c149afbf4c8996fb924.
        assert_eq!(super::name(""), "apiserver-4oymiquy7qobjgx36tejs35zeq");
    }
}
