//! The files of config maps, secrets, downward API, tokens and their projections, gathered before anything is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, DownwardApiVolumeFile, DownwardApiVolumeSource, KeyToPath, Node, Pod,
    ProjectedVolumeSource, Secret, SecretVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
};

use crate::env::fields::{Left, container_resource, metadata_value};
use crate::objects::{ObjectError, Objects, TokenQuery, Tokens};
use crate::pod::spec::PodExt;

use super::{ownership, trust};

/// One file to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Root owns it otherwise.
    pub user: Option<u32>,
}

/// By path below the volume.
pub type Payload = BTreeMap<String, File>;

/// The kubelet's default where the API server has not filled one in.
const DEFAULT_MODE: u32 = 0o644;
/// Nobody but owner and group reads a token.
const TOKEN_MODE: u32 = 0o600;
const TOKEN_SECONDS: i64 = 3600;

/// Where files come from.
pub struct Sources<'a> {
    pub pod: &'a Pod,
    pub objects: &'a dyn Objects,
    pub tokens: &'a dyn Tokens,
    pub node: &'a Node,
}

fn mode(bits: Option<i32>) -> u32 {
    bits.and_then(|bits| u32::try_from(bits).ok()).map_or(DEFAULT_MODE, |bits| bits & 0o777)
}

fn name_of(reference: Option<&proto::api::core::v1::LocalObjectReference>) -> &str {
    reference.map_or("", |r| &r.name)
}

impl Sources<'_> {
    /// # Errors
    /// The object or one of its keys is missing and not optional.
    pub async fn config_map_volume(&self, source: &ConfigMapVolumeSource) -> Result<Payload, String> {
        let name = name_of(source.local_object_reference.as_ref());
        self.config_map(name, &source.items, mode(source.default_mode), source.optional == Some(true)).await
    }

    /// # Errors
    /// The object or one of its keys is missing and not optional.
    pub async fn secret_volume(&self, source: &SecretVolumeSource) -> Result<Payload, String> {
        self.secret(&source.secret_name, &source.items, mode(source.default_mode), source.optional == Some(true)).await
    }

    /// # Errors
    /// A field or resource that does not exist.
    pub fn downward_volume(&self, source: &DownwardApiVolumeSource) -> Result<Payload, String> {
        let mut payload = Payload::new();
        let default = mode(source.default_mode);
        joined(source.items.iter().filter_map(|item| self.downward(item, default, &mut payload).err()).collect())?;
        Ok(payload)
    }

    /// # Errors
    /// All sources that cannot be had.
    pub async fn projected_volume(&self, source: &ProjectedVolumeSource) -> Result<Payload, String> {
        let (mut payload, mut errors) = (Payload::new(), Vec::new());
        for projection in &source.sources {
            match self.projection(projection, mode(source.default_mode)).await {
                Ok(files) => payload.extend(files),
                Err(why) => errors.push(why),
            }
        }
        joined(errors)?;
        Ok(payload)
    }

    async fn projection(&self, projection: &VolumeProjection, default: u32) -> Result<Payload, String> {
        if let Some(secret) = &projection.secret {
            let name = name_of(secret.local_object_reference.as_ref());
            return self.secret(name, &secret.items, default, secret.optional == Some(true)).await;
        }
        if let Some(config_map) = &projection.config_map {
            let name = name_of(config_map.local_object_reference.as_ref());
            return self.config_map(name, &config_map.items, default, config_map.optional == Some(true)).await;
        }
        if let Some(downward) = &projection.downward_api {
            let mut payload = Payload::new();
            let items = downward.items.iter();
            joined(items.filter_map(|item| self.downward(item, default, &mut payload).err()).collect())?;
            return Ok(payload);
        }
        if let Some(token) = &projection.service_account_token {
            return self.token(token, default).await;
        }
        if let Some(bundle) = &projection.cluster_trust_bundle {
            let data = trust::anchors(self.objects, bundle).await?;
            let (mode, user) = self.private_mode(default);
            return Ok([(bundle.path.clone(), File { data, mode, user })].into());
        }
        // Behind a feature gate that is off by default.
        if projection.pod_certificate.is_some() {
            return Err("pod certificate projection is not enabled on this node".into());
        }
        Ok(Payload::new())
    }

    async fn config_map(&self, name: &str, items: &[KeyToPath], mode: u32, optional: bool) -> Result<Payload, String> {
        let found = self.objects.config_map(self.pod.namespace(), name).await;
        let empty = ConfigMap::default();
        let found = present(&found, optional, &empty)?;
        let data = found.data.iter().map(|(key, text)| (key.as_str(), text.as_bytes()));
        let binary = found.binary_data.iter().map(|(key, bytes)| (key.as_str(), &bytes[..]));
        let missing = |key: &str| format!("configmap references non-existent config key: {key}");
        select(data.chain(binary).collect(), items, mode, optional, missing)
    }

    async fn secret(&self, name: &str, items: &[KeyToPath], mode: u32, optional: bool) -> Result<Payload, String> {
        let found = self.objects.secret(self.pod.namespace(), name).await;
        let empty = Secret::default();
        let found = present(&found, optional, &empty)?;
        let data = found.data.iter().map(|(key, bytes)| (key.as_str(), &bytes[..]));
        let missing = |key: &str| format!("references non-existent secret key: {key}");
        select(data.collect(), items, mode, optional, missing)
    }

    fn downward(&self, item: &DownwardApiVolumeFile, default: u32, payload: &mut Payload) -> Result<(), String> {
        let text = if let Some(field) = &item.field_ref {
            metadata_value(self.pod, &field.field_path)?
        } else if let Some(resource) = &item.resource_field_ref {
            container_resource(self.pod, resource, "", Left::of(self.node))?
        } else {
            return Err(format!("nothing to write to {}", item.path));
        };
        let mode = item.mode.map_or(default, |bits| mode(Some(bits)));
        payload.insert(item.path.clone(), File { data: text.into_bytes(), mode, user: None });
        Ok(())
    }

    async fn token(&self, source: &ServiceAccountTokenProjection, default: u32) -> Result<Payload, String> {
        let pod = self.pod;
        let seconds = source.expiration_seconds.filter(|s| *s > 0).unwrap_or(TOKEN_SECONDS);
        let query = TokenQuery {
            namespace: pod.namespace().into(),
            service_account: pod.spec().service_account_name.clone(),
            audience: source.audience.clone(),
            expiration: Duration::from_secs(seconds.unsigned_abs()),
            pod_name: pod.name().into(),
            pod_uid: pod.uid().into(),
        };
        let issued = self.tokens.issued(&query).await.map_err(|e| format!("failed to fetch token: {e}"))?;
        let (mode, user) = self.private_mode(default);
        Ok([(source.path.clone(), File { data: issued.token.into_bytes(), mode, user })].into())
    }

    /// Mode and owner of what is the pod's own: where it is known who that is, nobody else reads it.
    fn private_mode(&self, default: u32) -> (u32, Option<u32>) {
        let user = ownership::common_user(self.pod);
        // With fsGroup the group gets it on top when ownership is given.
        let mode = if user.is_some() || ownership::fs_group(self.pod).is_some() { TOKEN_MODE } else { default };
        (mode, user)
    }
}

/// The object, or an empty one where it may be missing and is.
fn present<'a, T>(
    found: &'a Result<std::sync::Arc<T>, ObjectError>,
    optional: bool,
    empty: &'a T,
) -> Result<&'a T, String> {
    match found {
        Ok(object) => Ok(object),
        Err(error) if optional && error.is_not_found() => Ok(empty),
        Err(error) => Err(error.to_string()),
    }
}

fn select(
    data: BTreeMap<&str, &[u8]>,
    items: &[KeyToPath],
    default: u32,
    optional: bool,
    missing: impl Fn(&str) -> String,
) -> Result<Payload, String> {
    let file = |data: &[u8], mode| File { data: data.to_vec(), mode, user: None };
    if items.is_empty() {
        return Ok(data.into_iter().map(|(key, bytes)| (key.to_owned(), file(bytes, default))).collect());
    }
    let mut payload = Payload::new();
    for item in items {
        match data.get(item.key.as_str()) {
            Some(bytes) => {
                let mode = item.mode.map_or(default, |bits| mode(Some(bits)));
                payload.insert(item.path.clone(), file(bytes, mode));
            }
            None if optional => {}
            None => return Err(missing(&item.key)),
        }
    }
    Ok(payload)
}

/// Several complaints as one, in brackets; each is made once.
fn joined(mut errors: Vec<String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match &errors[..] {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_made_once() {
        let told = |errors: &[&str]| joined(errors.iter().map(|e| (*e).to_owned()).collect());
        assert_eq!((told(&[]), told(&["a", "a"])), (Ok(()), Err("a".into())));
        assert_eq!(told(&["b", "a", "b"]), Err("[b, a]".into()));
    }
}
